"""Times the forward pass under its best few tilings, in one process, taking turns, and says how
far the ranking of lua/configurations.lua is off; a line of CSV as soon as it is known.

    python3 -u bench/tilings.py [--masks causal,full] [--dims 64,96,128,192,256,192/128]
        [--seqlens 512,1024,4096,16384] [--rota build/rota] [--output bench/results/tilings.csv]

bf16, 16,384 tokens, hidden 2048 (16 heads where the head dim does not divide it); medians of
CUDA-event times. `rank` is the tiling's place for the shape's length, `chosen` marks the one that
is taken without tuning: docs/configurations.md. Half a minute.
"""

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import librota

TOKENS, HIDDEN, HEADS = 16384, 2048, 16
ROUNDS, ROUND_MS, REST_S = 4, 4.0, 0.003
TOLERANCE = 6e-3  # relative, between two tilings
FIELDS = ["head_dim", "mask", "seqlen", "tiling", "rank", "chosen", "tflops", "ms", "to_fastest"]


def script(dims, heads, mask, tiling=None):
    named = f', tiling = {{forward = "{tiling}"}}' if tiling else ""
    return (
        f"return rota.attention{{head_dim = {dims[0]}, head_dim_v = {dims[1]}, "
        f"heads = {heads}, mask = {mask}{named}}}"
    )


def candidates(rota, text, seqlen):
    """Tilings and their ranks, as `rota tune` would try them; the model's word, nothing is run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [rota, "tune", "-e", text, "--arch", "sm_90", "--direction", "forward", "--json"]
        command += ["--seqlen", str(seqlen), "--output", f"{folder}/tuning.json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {entry["tiling"]: entry["tiling_rank"] for entry in json.loads(done.stdout)}


def elapsed(function, calls):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        function()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / calls


def measure(calls):
    """Median milliseconds of each call."""
    times, counts = {name: [] for name in calls}, {}
    for round_number in range(ROUNDS):
        for name in calls if round_number % 2 == 0 else reversed(list(calls)):
            function = calls[name].forward
            if name not in counts:
                counts[name] = max(2, int(ROUND_MS / elapsed(function, 2)))
            time.sleep(REST_S)
            function()
            times[name].append(elapsed(function, counts[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def run_case(options, models, dims, mask, seqlen):
    """Lines of one shape, fastest first, and the largest difference to the chosen tiling."""
    heads, batch = (HIDDEN // dims[0] if HIDDEN % dims[0] == 0 else HEADS), TOKENS // seqlen
    q, k, v = (
        torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=torch.bfloat16)
        for dim in (dims[0], dims[0], dims[1])
    )
    ranks = candidates(options.rota, script(dims, heads, mask), seqlen)
    calls = {}
    for tiling in [None, *ranks]:
        key = dims, mask, tiling
        if key not in models:
            models[key] = librota.Model(script(dims, heads, mask, tiling))
        calls[tiling] = models[key].attention(q, k, v)
    chosen = calls.pop(None)
    o = chosen.forward().double()
    worst = max(((c.forward().double() - o).norm() / o.norm()).item() for c in calls.values())
    times = measure(calls)
    fastest, share = min(times.values()), 0.5 if mask == "causal" else 1.0
    flops = 2 * batch * heads * share * seqlen * seqlen * (dims[0] + dims[1])
    lines = []
    for tiling in sorted(times, key=times.get):
        line = ["/".join(map(str, dict.fromkeys(dims))), mask, seqlen, tiling, ranks[tiling]]
        ms = times[tiling]
        line += [int(tiling == chosen.tiles()), f"{flops / ms / 1e9:.0f}", f"{ms:.4f}"]
        lines.append([*line, f"{ms / fastest:.3f}"])
    return lines, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--dims", default="64,96,128,192,256,192/128")
    parser.add_argument("--seqlens", default="512,1024,4096,16384")
    parser.add_argument("--rota", default="build/rota")
    parser.add_argument("--output", default="bench/results/tilings.csv")
    options = parser.parse_args()
    models, wrong = {}, 0
    with open(options.output, "w", newline="") as file:
        device = torch.cuda.get_device_name()
        file.write(f"# forward tilings | {device} | {datetime.date.today()} | bf16\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for dim in options.dims.split(","):
            dims = tuple(int(x) for x in (dim.split("/") * 2)[:2])
            for mask in options.masks.split(","):
                for seqlen in (int(n) for n in options.seqlens.split(",")):
                    lines, difference = run_case(options, models, dims, mask, seqlen)
                    writer.writerows(lines)
                    file.flush()
                    wrong += difference > TOLERANCE
                    words = [f"{x[3]}{'*' if x[5] else ''} ({x[4]}) {x[6]}" for x in lines]
                    print(f"{dim} {mask} {seqlen}: {'  '.join(words)}", flush=True)
    sys.exit(f"{wrong} shapes differ between tilings" if wrong else 0)


if __name__ == "__main__":
    main()
