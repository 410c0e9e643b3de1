"""Host time of a forward + backward pair: what calling costs beyond the kernels.

    python bench/host_overhead.py [--device cuda] [--calls 2000]

On a GPU the calls are queued and not waited for: as long as the kernels are short, this is the
time that the host needs, launches included; the GPU's own time per pair, by replaying a graph of
it, is printed beside it. On a CPU one token is used and the time inside librota is taken off.
PyTorch's own attention (SDPA; on a GPU its flash backend) beside it, rounds taking turns.
"""

import argparse
import contextlib
import statistics
import time

import rota
import torch
import torch.nn.functional as F
from rota import _plans

ROUNDS = 9


def pair(attention, q, k, v, d_o):
    o = attention(q, k, v)
    torch.autograd.grad(o, (q, k, v), d_o)


def measure(attentions, inputs, calls, synchronize):
    """Microseconds per pair of each, (least, median) of nine rounds in turns: other load only ever
    adds, and the first rounds are slow (caches, clocks)."""
    per_round = max(calls // ROUNDS, 1)
    spent = [[] for _ in attentions]
    for attention in attentions:
        for _ in range(100):
            pair(attention, *inputs)
    for _ in range(ROUNDS):
        for attention, found in zip(attentions, spent):
            synchronize()
            started = time.perf_counter()
            for _ in range(per_round):
                pair(attention, *inputs)
            found.append(1e6 * (time.perf_counter() - started) / per_round)
            synchronize()
    return [(min(found), statistics.median(found)) for found in spent]


def on_the_gpu(attention, inputs):
    """Microseconds per pair on the GPU alone: a graph of one, replayed."""
    graph, replays = torch.cuda.CUDAGraph(), 200
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pair(attention, *inputs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        pair(attention, *inputs)
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


def rota_causal(q, k, v):
    return rota.attention(q, k, v, mask="causal")


def torch_causal(q, k, v):
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    shape = (1, 128, 4, 64) if on_gpu else (1, 1, 1, 8)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    q, k, v, d_o = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)] + [d_o]
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{name}, torch {torch.__version__}, {list(shape)} {dtype}, microseconds per pair")

    flash = contextlib.nullcontext()
    if on_gpu:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        flash = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    attentions = {"rota": rota_causal, "torch": torch_causal}
    with flash:
        found = measure(list(attentions.values()), inputs, options.calls, synchronize)
        for (name, attention), (least, median) in zip(attentions.items(), found):
            line = f"{name:6} least {least:7.1f}  median {median:7.1f}"
            if on_gpu:
                line += f"  on the GPU {on_the_gpu(attention, inputs):6.1f}"
            elif name == "rota":
                inner = inside_librota(inputs, options.calls)
                line += f"  inside librota {inner:.1f}, beyond it {least - inner:.1f}"
            print(line)


if __name__ == "__main__":
    main()
