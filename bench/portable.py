"""Times Rota's portable kernels beside PyTorch's FLASH_ATTENTION backend (FA2); writes CSV.

    python3 bench/portable.py [--output bench/results/portable.csv]

bf16, 16,384 tokens, hidden 2048. Forward counts 4 b h s^2 d FLOP (half for causal), backward 2.5
times that. A figure is the median of CUDA-event times; Rota and FA2 take turns in one process, with
a rest before each, so that both meet the same clock. Each result is checked against FA2's.
"""

import argparse
import datetime
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import librota


def measure(functions, rounds=5, batch_ms=60.0):
    """Median milliseconds of each function and the spread over rounds, functions taking turns."""
    samples = [[] for _ in functions]
    for _ in range(rounds):
        for function, sample in zip(functions, samples):
            time.sleep(0.05)
            function()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            stop.record()
            stop.synchronize()
            count = max(3, int(batch_ms / max(start.elapsed_time(stop), 1e-3)))
            start.record()
            for _ in range(count):
                function()
            stop.record()
            stop.synchronize()
            sample.append(start.elapsed_time(stop) / count)
    return [(statistics.median(s), (max(s) - min(s)) / statistics.median(s)) for s in samples]


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def bench_shape(writer, head_dim, causal, seqlen, architecture, backward_names):
    heads, batch = 2048 // head_dim, 16384 // seqlen
    q, k, v, d_o = (
        torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(4)
    )
    mask = "causal" if causal else "full"
    flops = 4 * batch * heads * seqlen * seqlen * head_dim * (0.5 if causal else 1.0)
    qt, kt, vt = (t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):

        def fa2_forward():
            with torch.no_grad():
                torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=causal)

        out = torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=causal)
        d_out = d_o.transpose(1, 2)

        def fa2_backward():
            return torch.autograd.grad(out, (qt, kt, vt), d_out, retain_graph=True)

        calls = {}
        for name in backward_names:
            extra = ", deterministic = false" if name == "atomic" else ""
            model = librota.Model(
                f"return rota.attention{{head_dim = {head_dim}, heads = {heads}, mask = {mask}, "
                f'backward = "{name}"{extra}}}',
                architecture=architecture,
            )
            calls[name] = model.attention(q, k, v)
        first = next(iter(calls.values()))
        error = difference(first.forward().transpose(1, 2), out)
        times = measure([fa2_forward, first.forward])
        writer("forward", "forward", head_dim, mask, seqlen, flops, times, error)
        reference = fa2_backward()
        for name, call in calls.items():
            call.forward()
            error = max(
                difference(a.transpose(1, 2), b) for a, b in zip(call.backward(d_o), reference)
            )
            times = measure([fa2_backward, lambda: call.backward(d_o)])
            writer("backward", name, head_dim, mask, seqlen, 2.5 * flops, times, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="bench/results/portable.csv")
    parser.add_argument("--architecture", default=None)
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--seqlens", default="4096,16384")
    parser.add_argument("--backward", default="ordered,two_pass,atomic")
    options = parser.parse_args()
    torch.manual_seed(int(time.time()))
    lines = [
        f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{datetime.date.today()}; bf16, 16384 tokens, hidden 2048; FA2 = SDPA FLASH_ATTENTION, "
        "same run",
        "pass,algorithm,head_dim,mask,seqlen,rota_tflops,fa2_tflops,ratio,rota_spread,fa2_spread,"
        "difference",
    ]
    print(lines[1])

    def writer(direction, algorithm, head_dim, mask, seqlen, flops, times, error):
        (fa2, fa2_spread), (rota, rota_spread) = times
        line = (
            f"{direction},{algorithm},{head_dim},{mask},{seqlen},"
            f"{flops / rota / 1e9:.0f},{flops / fa2 / 1e9:.0f},"
            f"{fa2 / rota:.2f},{rota_spread:.3f},{fa2_spread:.3f},{error:.1e}"
        )
        print(line)
        sys.stdout.flush()
        lines.append(line)

    for head_dim in map(int, options.dims.split(",")):
        for causal in (False, True):
            for seqlen in map(int, options.seqlens.split(",")):
                bench_shape(
                    writer,
                    head_dim,
                    causal,
                    seqlen,
                    options.architecture,
                    options.backward.split(","),
                )
    with open(options.output, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
