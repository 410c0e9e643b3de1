"""Where a kernel's time goes, by ncu: how busy the tensor cores, the other pipes, shared memory, L2
and DRAM are, and what warps wait for.

    python3 bench/where_time_goes.py [--cases "forward d128 causal 4096,..."] [--library LIBRARY]
        [--output FILE.csv]

A case is a direction, a head dim, a mask without blanks and a length; bf16, 16,384 tokens (at
least one sequence), hidden 2048. Of a pass the longest kernel is shown. Nsight Compute must be
installed and allowed to read counters; some ten seconds a case on an H200.
"""

import argparse
import csv
import datetime
import io
import os
import re
import sys

from ncu import profiled

TOKENS, HIDDEN = 16384, 2048
CASES = (
    "forward d128 causal 1024,forward d128 causal 4096,forward d128 full 4096,"
    "forward d64 causal 4096,backward d128 causal 4096,backward d128 full 4096,"
    "backward d64 causal 4096,backward d64 full 4096"
)
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats")
DURATION = "gpu__time_duration.sum"
# Column: metric, percent of the peak.
SHARES = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "exp": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "alu": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active")


def run_case(case, library):
    """The profiled process: one pass between profiler marks."""
    import torch

    import librota

    direction, dim, mask, length = case.split()
    head_dim, length = int(dim[1:]), int(length)
    heads = HIDDEN // head_dim
    torch.manual_seed(1)
    shape = (max(TOKENS // length, 1), length, heads, head_dim)
    q, k, v, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    model = f"return rota.attention{{head_dim = {head_dim}, heads = {heads}, mask = {mask}}}"
    call = librota.Model(model, library=library).attention(q, k, v)
    for _ in range(3):
        call.forward()
        call.backward(d_o)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call.forward() if direction == "forward" else call.backward(d_o)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def number(text):
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return 0.0


def counted(case, options):
    """The longest kernel's metrics: {name: value}."""
    chosen = ["--page", "raw"]
    for section in SECTIONS:
        chosen += ["--section", section]
    table = profiled(chosen, __file__, ["--child", case], options.library)
    rows = list(csv.DictReader(io.StringIO(table)))
    return max(rows, key=lambda row: number(row.get(DURATION)))


def summary(metrics):
    """{column: share of the peak}, and the warps' longest waits."""
    shares = {column: number(metrics.get(name)) for column, name in SHARES.items()}
    stalls = [(number(v), STALL.match(k)[1]) for k, v in metrics.items() if STALL.match(k)]
    total = sum(value for value, _ in stalls) or 1.0
    waits = [f"{name} {100 * value / total:.0f}" for value, name in sorted(stalls)[:-6:-1]]
    return shares, " ".join(waits)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=None)
    parser.add_argument("--output", default="bench/results/where_time_goes.csv")
    parser.add_argument("--raw", default=None, help="a folder for all metrics, a file a case")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_case(options.child, options.library)
    lines = [f"# {datetime.date.today()}; bf16, hidden {HIDDEN}; shares and waits in percent"]
    lines.append(",".join(["case", "kernel", "us", *SHARES, "waits"]))
    for case in options.cases.split(","):
        metrics = counted(case, options)
        shares, waits = summary(metrics)
        microseconds = number(metrics[DURATION]) / 1e3
        cells = [case, metrics["Kernel Name"].split("(")[0], f"{microseconds:.0f}"]
        lines.append(",".join(cells + [f"{x:.0f}" for x in shares.values()] + [waits]))
        print(lines[-1], flush=True)
        if options.raw:
            with open(os.path.join(options.raw, case.replace(" ", "_") + ".txt"), "w") as file:
                file.writelines(f"{name} {value}\n" for name, value in metrics.items())
        with open(options.output, "w") as file:
            file.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
