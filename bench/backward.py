"""The backward pass under several schedules beside cuDNN's, in one process, taking turns; a line of
CSV as soon as it is known.

    python3 -u bench/backward.py [--masks causal,full] [--dims 128,64] [--seqlens 512,4096,16384]
        [--schedules auto,shortest_first,...] [--output bench/results/backward.csv]

bf16, 16,384 tokens (at least one sequence), hidden 2048; the whole pass, medians of CUDA-event
times. `atomic` and `exact` among the schedules are the algorithms of that name; the former is not
deterministic, as cuDNN's is not. Exit status 1 if a gradient is further from cuDNN's than rounding
explains. Half a minute for a mask, a head dim and three lengths.
"""

import argparse
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import librota
from report import csv_lines

TOKENS, HIDDEN = 16384, 2048
SCHEDULES = "auto,atomic,shortest_first,longest_first,symmetric_shift,optimized"
TOLERANCE = 6e-3  # relative, of bf16 gradients
FIELDS = "mask,head_dim,length,schedule,tflops,milliseconds,ratio_to_cudnn,difference"


def difference(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def cudnn(q, k, v, d_o, causal):
    """The backward pass of torch's SDPA; gradients as [batch, row, head, dim]."""
    inputs = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        out = scaled_dot_product_attention(*inputs, is_causal=causal)
    gradient = d_o.transpose(1, 2)

    def backward():
        found = torch.autograd.grad(out, inputs, gradient, retain_graph=True)
        return [g.transpose(1, 2) for g in found]

    return backward


def rota(q, k, v, d_o, mask, schedule, library):
    how = f'backward = "ordered", schedule = "{schedule}"'
    if schedule == "atomic":
        how = 'backward = "atomic", deterministic = false'
    if schedule == "exact":
        how = 'backward = "exact"'
    heads, head_dim = q.shape[2:]
    model = librota.Model(
        f"return rota.attention{{head_dim = {head_dim}, heads = {heads}, mask = {mask}, {how}}}",
        library=library,
    )
    call = model.attention(q, k, v)
    call.forward()
    return lambda: call.backward(d_o)


def measure(calls, rounds=3, batch_ms=14.0):
    """Median milliseconds of each call, taking turns, with a rest before each."""
    samples = {name: [] for name in calls}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(call, count):
        start.record()
        for _ in range(count):
            call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / count

    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            time.sleep(0.05)
            calls[name]()
            once = timed(calls[name], 2)
            samples[name].append(timed(calls[name], max(3, int(batch_ms / once))))
    return {name: statistics.median(sample) for name, sample in samples.items()}


def bench_shape(options, mask, head_dim, length, write):
    """Writes a line for each schedule; how many gradients are wrong."""
    heads, batch = HIDDEN // head_dim, max(1, TOKENS // length)
    shape = batch, length, heads, head_dim
    q, k, v, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    calls = {"cudnn": cudnn(q, k, v, d_o, mask == "causal")}
    expected = [g.clone() for g in calls["cudnn"]()]
    errors = {"cudnn": 0.0}
    for schedule in options.schedules.split(","):
        calls[schedule] = rota(q, k, v, d_o, mask, schedule, options.library)
        errors[schedule] = max(map(difference, calls[schedule](), expected))
    times = measure(calls)
    flops = 10 * batch * heads * length**2 * head_dim * (0.5 if mask == "causal" else 1)
    for name, milliseconds in times.items():
        write(
            f"{mask},{head_dim},{length},{name},{flops / milliseconds / 1e9:.0f},"
            f"{milliseconds:.4f},{times['cudnn'] / milliseconds:.2f},{errors[name]:.1e}"
        )
    return sum(not error < TOLERANCE for error in errors.values())


def integers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--dims", type=integers, default=[128, 64])
    parser.add_argument("--seqlens", type=integers, default=[512, 4096, 16384])
    parser.add_argument("--schedules", default=SCHEDULES)
    parser.add_argument("--library", default=None)
    parser.add_argument("--output", default="bench/results/backward.csv")
    options = parser.parse_args()
    torch.manual_seed(0)
    wrong = 0
    about = f"bf16, {TOKENS} tokens, hidden {HIDDEN}; whole backward pass"
    with csv_lines(options.output, about) as write:
        write(FIELDS)
        for head_dim in options.dims:
            for mask in options.masks.split(","):
                for length in options.seqlens:
                    wrong += bench_shape(options, mask, head_dim, length, write)
    print(f"{wrong} wrong" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
