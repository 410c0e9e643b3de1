"""Bytes that a backward pass moves, counted by ncu, beside what `rota plan --explain` models.

    python3 bench/traffic.py [--rota build/rota] [--library LIBRARY] [--output FILE.csv]

For each case the kernels of one backward pass are profiled (Nsight Compute must be installed and
allowed to read counters): sectors of 32 bytes that multiprocessors exchange with the L2, and bytes
of DRAM. The passes before it have warmed the caches, as in training, and ncu leaves them alone.
"""

import argparse
import csv
import datetime
import io
import json
import os
import subprocess
import sys

from ncu import profiled

HIDDEN = 2048
# name: (algorithm, head dim, mask, length, sequences)
CASES = {
    "d128 causal 4k": ("ordered", 128, "causal", 4096, 4),
    "d128 full 4k": ("ordered", 128, "full", 4096, 4),
    "d128 causal 16k": ("ordered", 128, "causal", 16384, 1),
    "d64 causal 4k": ("ordered", 64, "causal", 4096, 4),
    "d128 window 16k": ("ordered", 128, "causal & window(1024, 0)", 16384, 1),
    "d128 causal 4k two_pass": ("two_pass", 128, "causal", 4096, 4),
    "d256 causal 4k": ("auto", 256, "causal", 4096, 4),
    "d512 causal 4k": ("auto", 512, "causal", 4096, 4),
}
METRICS = {
    "lts__t_sectors_srcunit_tex.sum": ("l2", 32),
    "dram__bytes_read.sum": ("dram", 1),
    "dram__bytes_write.sum": ("dram", 1),
}


def model_of(case):
    algorithm, head_dim, mask, _, _ = CASES[case]
    return (
        f"return rota.attention{{head_dim = {head_dim}, heads = {HIDDEN // head_dim}, "
        f'mask = {mask}, backward = "{algorithm}"}}'
    )


def run_cases(cases, library):
    """The profiled process: one backward pass of each case between profiler marks, behind a kernel
    that spins, which tells the cases apart."""
    import torch

    import librota

    for case in cases:
        _, head_dim, _, length, batch = CASES[case]
        torch.manual_seed(1)
        shape = (batch, length, HIDDEN // head_dim, head_dim)
        q, k, v, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        call = librota.Model(model_of(case), library=library).attention(q, k, v)
        call.forward()
        call.backward(d_o)
        call.backward(d_o)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)
        call.backward(d_o)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def parse_counts(text, cases):
    """ncu's CSV -> for each case {"l2": bytes, "dram": bytes} of the pass, and its kernels."""
    counts, kernels, last = [], [], None
    for row in csv.DictReader(io.StringIO(text)):
        name, new = row["Kernel Name"].split("(")[0], row["ID"] != last
        last = row["ID"]
        if "spin" in name:
            if new:
                counts.append({"l2": 0.0, "dram": 0.0})
                kernels.append([])
            continue
        kind, unit = METRICS[row["Metric Name"]]
        counts[-1][kind] += unit * float(row["Metric Value"].replace(",", ""))
        if new:
            kernels[-1].append(name)
    if len(counts) != len(cases):
        sys.exit(f"ncu counted {len(counts)} of {len(cases)} cases")
    return dict(zip(cases, zip(counts, kernels)))


def counted(cases, options):
    child = ["--child", "--cases", ",".join(cases)]
    table = profiled(["--metrics", ",".join(METRICS)], __file__, child, options.library)
    return parse_counts(table, cases)


def modelled(case, options):
    _, _, _, length, batch = CASES[case]
    command = [options.rota, "plan", "-e", model_of(case), "--seqlen", str(length)]
    command += ["--batch", str(batch), "--explain", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    told = next(p for p in json.loads(result.stdout) if p["direction"] == "backward")["modelled"]
    of = next(a for a in told["algorithms"] if a["algorithm"] == told["chosen"])
    return told["chosen"], {"l2": of["l2_bytes"], "dram": of["dram_bytes"]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rota", default="build/rota")
    parser.add_argument("--library", default=None)
    parser.add_argument("--output", default="bench/results/traffic.csv")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse()
    cases = options.cases.split(",")
    if options.child:
        run_cases(cases, options.library)
        return 0
    lines = [f"# {datetime.date.today()}; bf16, hidden {HIDDEN}; bytes of one whole backward pass"]
    columns = ["case", "algorithm"]
    columns += [f"{kind}_{x}" for kind in ("l2", "dram") for x in ("modelled", "counted", "ratio")]
    lines.append(",".join(columns))
    counts = counted(cases, options)
    for case in cases:
        algorithm, model = modelled(case, options)
        count, kernels = counts[case]
        cells = [case, algorithm]
        for kind in ("l2", "dram"):
            ratio = model[kind] / count[kind]
            cells += [f"{model[kind]:.4g}", f"{count[kind]:.4g}", f"{ratio:.3f}"]
        lines.append(",".join(cells))
        print(f"{lines[-1]}   {' '.join(kernels)}", flush=True)
    os.makedirs(os.path.dirname(options.output) or ".", exist_ok=True)
    with open(options.output, "w") as file:
        file.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
