"""Host time of a forward + backward pair: what calling costs beyond the kernels.

    python bench/host_overhead.py [--device cuda] [--calls 2000] [--output results.csv]

Columns per attention, rounds taking turns:
  autograd    o = attention(q, k, v); torch.autograd.grad(o, ...): what a training step sees
  one thread  the same under torch.autograd.set_multithreading_enabled(False): backward passes of
              tensors on a GPU run in the thread that asks for them, not in one of torch's own
  direct      the same two passes called one after the other, without torch's autograd
  GPU         on a GPU, the kernels alone: a CUDA graph of the pair, replayed
Attentions: Rota; PyTorch's (SDPA; on a GPU its flash backend); an autograd function that only
allocates gradients, which is what torch's autograd costs anyone who writes Python.

On a GPU calls are queued and not waited for: as long as the kernels are short, this is the time
that the host needs, launches included. On a CPU one token is used, and what librota itself needs
is printed too.
"""

import argparse
import contextlib
import csv
import statistics
import time

import rota
import torch
import torch.nn.functional as F
from rota import _plain, _plans
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS = 15


def rota_causal(q, k, v):
    return rota.attention(q, k, v, mask="causal", layout="bhsd")


def torch_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx, d_o):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def pair(attention, q, k, v, d_o):
    return torch.autograd.grad(attention(q, k, v), (q, k, v), d_o)


@torch.no_grad()
def rota_direct(q, k, v, d_o):
    options = _plain._options("causal", None, None, True, True)
    o, lse, trace = options.forward(q, k, v)
    return options.backward(trace, q, k, v, o, lse, d_o)


@torch.no_grad()
def flash_direct(q, k, v, d_o):
    operators = torch.ops.aten
    o, *rest = operators._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = rest
    return operators._scaled_dot_product_flash_attention_backward(
        d_o, q, k, v, o, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
    )


@torch.no_grad()
def torch_cpu_direct(q, k, v, d_o):
    operators = torch.ops.aten
    o, lse = operators._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    return operators._scaled_dot_product_flash_attention_for_cpu_backward(
        d_o, q, k, v, o, lse, 0.0, True
    )


def measure(calls, per_round, synchronize):
    """Microseconds per call of each function: (least, median) over the rounds. Other load only
    ever adds, and the first rounds are slow (caches, clocks)."""
    spent = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(100):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            synchronize()
            started = time.perf_counter()
            for _ in range(per_round):
                call()
            spent[name].append(1e6 * (time.perf_counter() - started) / per_round)
            synchronize()
    return {name: (min(found), statistics.median(found)) for name, found in spent.items()}


def on_the_gpu(call):
    """Microseconds per call on the GPU alone."""
    graph, replays, stream = torch.cuda.CUDAGraph(), 200, torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / replays


def inside_librota(inputs, calls):
    """Microseconds per pair spent in rota_run, the least of all calls."""
    spent, run = [], _plans.Plan.run

    def timed(*arguments):
        started = time.perf_counter()
        run(*arguments)
        spent.append(time.perf_counter() - started)

    _plans.Plan.run = timed
    try:
        for _ in range(calls):
            pair(rota_causal, *inputs)
    finally:
        _plans.Plan.run = run
    return 1e6 * (min(spent[0::2]) + min(spent[1::2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--output", help="a CSV file")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    shape = (1, 4, 128, 64) if on_gpu else (1, 1, 1, 8)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    q, k, v, d_o = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)] + [d_o]
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{device}, torch {torch.__version__}, {list(shape)} {dtype}, microseconds per pair")

    def bound(function, *arguments):
        return lambda: function(*arguments, *inputs)

    pairs = {
        "rota": bound(pair, rota_causal),
        "torch": bound(pair, torch_causal),
        "nothing": bound(pair, Nothing.apply),
    }
    direct = {
        ("rota", "direct"): bound(rota_direct),
        ("torch", "direct"): bound(flash_direct if on_gpu else torch_cpu_direct),
    }
    flash = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if on_gpu else contextlib.nullcontext()
    rows = []
    with flash:
        per_round = max(options.calls // ROUNDS, 1)
        calls = {(name, "autograd"): call for name, call in pairs.items()} | direct
        found = measure(calls, per_round, synchronize)
        if on_gpu:
            with torch.autograd.set_multithreading_enabled(False):
                calls = {(name, "one thread"): call for name, call in pairs.items()}
                found |= measure(calls, per_round, synchronize)
        for (name, column), (least, median) in found.items():
            rows.append((name, column, least, median))
        if on_gpu:
            for name in ("rota", "torch"):
                alone = on_the_gpu(pairs[name])
                rows.append((name, "GPU", alone, alone))
        else:
            inner = inside_librota(inputs, options.calls)
            rows.append(("rota", "inside librota", inner, inner))
    for name, column, least, median in rows:
        print(f"{name:8} {column:14} least {least:7.1f}  median {median:7.1f}")
    if options.output:
        with open(options.output, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["attention", "column", "least_us", "median_us", "device", "torch"])
            for name, column, least, median in rows:
                times = f"{least:.1f}", f"{median:.1f}"
                writer.writerow([name, column, *times, device, torch.__version__])


if __name__ == "__main__":
    main()
