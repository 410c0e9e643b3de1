"""All schedules of the ordered backward pass, measured against the DAG model; writes CSV.

    python3 bench/schedules.py [--runs 50] [--output bench/results/schedules.csv] [--costs FILE]

bf16, 16,384 tokens, hidden 2048, masks full, causal, window and documents, lengths 512 to 16k. For
each schedule: the largest difference of dQ, dK and dV from the two_pass algorithm's (which adds
nothing in turn), the same bits in `--runs` runs while another stream multiplies matrices, the time
of the whole backward pass (median of CUDA-event times, schedules taking turns), and the makespan
that `rota plan` says. At the end the rank correlation of times and makespans: of the schedules
within each shape, and of all times relative to the shape's fastest.

Two minutes on an H200 with 50 runs; exit status 1 if a result is wrong or not stable.
"""

import argparse
import datetime
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch

import librota

TOKENS, HIDDEN = 16384, 2048
MASKS = {
    "full": "full",
    "causal": "causal",
    "window": "causal & window(1024, 0)",
    "document": "causal & document",
}


def model_of(options, mask, how):
    heads = HIDDEN // options.head_dim
    return (
        f"return rota.attention{{head_dim = {options.head_dim}, heads = {heads}, "
        f"mask = {MASKS[mask]}, {how}}}"
    )


def documents(batch, length):
    """Numbers of documents of uneven lengths, a different cut in each sequence."""
    numbers = torch.empty(batch, length, dtype=torch.int32)
    generator = torch.Generator().manual_seed(length)
    for row in range(batch):
        cuts = torch.randint(0, length, (max(1, length // 700),), generator=generator)
        ends = torch.zeros(length, dtype=torch.int32)
        ends[cuts] = 1
        numbers[row] = torch.cumsum(ends, 0)
    return numbers


def write_inputs(path, options, document):
    """A sparse .safetensors file: q, k, v of the shape, all zero, and the documents."""
    batch, length = document.shape
    shape = [batch, length, HIDDEN // options.head_dim, options.head_dim]
    size = 2 * batch * length * HIDDEN
    data = document.numpy().tobytes()
    header, at = {}, 0
    for name in ("q", "k", "v"):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header["document"] = {
        "dtype": "I32",
        "shape": [batch, length],
        "data_offsets": [at, at + len(data)],
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(at, os.SEEK_CUR)
        file.write(data)


def plans_of(options, mask, length, document):
    """What `rota plan` says of all schedules for a shape."""
    command = [options.rota, "plan", "-e", model_of(options, mask, 'backward = "ordered"')]
    command += ["--schedule", "all", "--json"]
    if options.costs:
        command += ["--costs", options.costs]
    with tempfile.TemporaryDirectory() as folder:
        if document is None:
            command += ["--seqlen", str(length), "--batch", str(TOKENS // length)]
        else:
            path = os.path.join(folder, "inputs.safetensors")
            write_inputs(path, options, document)
            command += ["--input", path]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return {plan["schedule"]: plan for plan in json.loads(result.stdout)}


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


class Load:
    """Keeps another stream busy: matrices are multiplied beside what is measured."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def add(self, count):
        with torch.cuda.stream(self.stream):
            for _ in range(count):
                torch.mm(self.matrix, self.matrix)


def unstable_runs(call, d_o, runs, load):
    """Runs whose bits differ from the first one's."""
    first = [t.clone().view(torch.int16) for t in call.backward(d_o)]
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    for i in range(runs):
        load.add(1 + i % 4)
        for t in (call.d_q, call.d_k, call.d_v):
            t.fill_(float("nan"))
        results = call.backward(d_o)
        same = [(t.view(torch.int16) == reference).all() for t, reference in zip(results, first)]
        differ += ~torch.stack(same).all()
    torch.cuda.synchronize()
    return int(differ.item())


def measure(calls, d_o, rounds=5, batch_ms=12.0):
    """Median milliseconds of each call's backward pass, calls taking turns."""
    samples = {name: [] for name in calls}
    for turn in range(rounds):
        names = list(calls) if turn % 2 == 0 else list(calls)[::-1]
        for name in names:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            calls[name].backward(d_o)
            start.record()
            calls[name].backward(d_o)
            stop.record()
            stop.synchronize()
            count = max(2, int(batch_ms / max(start.elapsed_time(stop), 1e-3)))
            start.record()
            for _ in range(count):
                calls[name].backward(d_o)
            stop.record()
            stop.synchronize()
            samples[name].append(start.elapsed_time(stop) / count)
    return {name: statistics.median(sample) for name, sample in samples.items()}


def ranks(values):
    """Ranks from 1, ties sharing their mean."""
    return [
        sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values
    ]


def correlation(x, y):
    """Spearman's; None where one of them is constant."""
    a, b = ranks(x), ranks(y)
    mean = (len(a) + 1) / 2
    up = sum((p - mean) * (q - mean) for p, q in zip(a, b))
    down = (sum((p - mean) ** 2 for p in a) * sum((q - mean) ** 2 for q in b)) ** 0.5
    return up / down if down else None


def bench_shape(options, mask, length, load, record):
    heads, batch = HIDDEN // options.head_dim, TOKENS // length
    document = documents(batch, length) if mask == "document" else None
    tensors = {} if document is None else {"document": document}
    plans = plans_of(options, mask, length, document)
    q, k, v, d_o = (
        torch.randn(
            batch, length, heads, options.head_dim, device="cuda", dtype=torch.bfloat16
        )
        for _ in range(4)
    )

    def prepare(how):
        model = librota.Model(model_of(options, mask, how), library=options.library)
        return model.attention(q, k, v, tensors=tensors)

    reference = prepare('backward = "two_pass"')
    reference.forward()
    expected = [t.clone() for t in reference.backward(d_o)]
    calls = {}
    for name in plans:
        calls[name] = prepare(f'backward = "ordered", schedule = "{name}"')
        calls[name].arguments.o = reference.arguments.o
        calls[name].arguments.lse = reference.arguments.lse
    errors, unstable = {}, {}
    for name, call in calls.items():
        errors[name] = max(difference(a, b) for a, b in zip(call.backward(d_o), expected))
        unstable[name] = unstable_runs(call, d_o, options.runs, load)
    times = measure({**calls, "two_pass": reference}, d_o)
    for name, plan in plans.items():
        record(mask, length, name, plan, times[name], errors[name], unstable[name])
    names = list(plans)
    within = correlation([plans[n]["makespan"] for n in names], [times[n] for n in names])
    best = min(names, key=times.get)
    chosen = min(names, key=lambda n: plans[n]["makespan"])
    print(
        f"{mask:9} {length:6}  fastest {best:16} {times[best]:7.3f} ms  the model's {chosen:16} "
        f"{times[chosen]:7.3f} ms  two_pass {times['two_pass']:7.3f} ms  "
        f"rank correlation {'-' if within is None else format(within, '.2f')}"
    )
    sys.stdout.flush()
    return within


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--output", default="bench/results/schedules.csv")
    parser.add_argument("--rota", default="build/rota")
    parser.add_argument("--library", default=None)
    parser.add_argument("--costs", default=None, help="for the model: see rota plan --costs")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--lengths", default="512,1024,4096,16384")
    return parser.parse_args()


def main():
    options = parse()
    torch.manual_seed(1)
    lines = [
        f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{datetime.date.today()}; bf16, head dim {options.head_dim}, {TOKENS} tokens, hidden "
        f"{HIDDEN}; whole backward pass; {options.runs} runs under load; costs "
        f"{options.costs or 'as shipped'}",
        "mask,length,schedule,milliseconds,makespan_us,bound_ratio,stall_share,difference,"
        "unstable_runs,digest",
    ]
    print(lines[0])
    cells, failures = {}, []

    def record(mask, length, name, plan, milliseconds, error, unstable):
        lines.append(
            f"{mask},{length},{name},{milliseconds:.4f},{plan['makespan']:.1f},"
            f"{plan['bound_ratio']:.4f},{plan['stall_share']:.4f},{error:.2e},{unstable},"
            f"{plan['digest']}"
        )
        cells.setdefault((mask, length), []).append((plan["makespan"], milliseconds))
        if not error < 1e-2 or unstable:
            failures.append(f"{mask} {length} {name}: difference {error:.1e}, {unstable} of "
                            f"{options.runs} runs gave other bits")  # fmt: skip

    begin, load, within = time.time(), Load(), []
    for mask in options.masks.split(","):
        for length in map(int, options.lengths.split(",")):
            within.append(bench_shape(options, mask, length, load, record))
    relative = [
        (makespan / min(m for m, _ in cell), milliseconds / min(t for _, t in cell))
        for cell in cells.values()
        for makespan, milliseconds in cell
    ]
    told = [x for x in within if x is not None]
    print(
        f"rank correlation: median of shapes {statistics.median(told) if told else 0:.2f}, all "
        f"relative to their shape's fastest {correlation(*zip(*relative)) or 0:.2f}; "
        f"{len(relative)} cells, {time.time() - begin:.0f} s"
    )
    os.makedirs(os.path.dirname(options.output) or ".", exist_ok=True)
    with open(options.output, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(failures) if failures else "all right, all stable")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
