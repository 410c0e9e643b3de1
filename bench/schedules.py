"""All schedules of the ordered backward pass: right, the same bits every time, and measured against
the DAG model; writes CSV.

    python3 -u bench/schedules.py [--runs 200] [--rounds 5] [--output bench/results/schedules.csv]
        [--schedules ascending,...] [--masks full,...] [--lengths 512,...] [--head-dim 128]

bf16, 16,384 tokens, hidden 2048, masks full, causal, window and documents, lengths 512 to 16k. For
each schedule: the largest difference of dQ, dK and dV from the two_pass algorithm's (which adds
nothing in turn); in how many of `--runs` runs the bits were others, while another stream multiplies
matrices (0: neither is looked at); the time of the whole backward pass (median of `--rounds`
CUDA-event times, schedules taking turns; 0: none), and the makespan that `rota plan` says. `atomic`
among the schedules is the algorithm of that name, for comparison: it is timed only. At the end the
rank correlation of times and makespans: of the schedules within each shape, and of all times
relative to the shape's fastest.

Exit status 1 if a result is wrong or not stable.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch

import librota

TOKENS, HIDDEN = 16384, 2048
SCHEDULES = (
    "ascending,descending,shift,symmetric_shift,shortest_first,longest_first,rotate,optimized"
)
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


def how_of(schedule):
    if schedule == "atomic":
        return 'backward = "atomic", deterministic = false'
    return f'backward = "ordered", schedule = "{schedule}"'


def documents(batch, length):
    """Numbers of documents of uneven lengths, a different cut in each sequence."""
    numbers, generator = [], random.Random(length)
    for _ in range(batch):
        cuts = {generator.randrange(length) for _ in range(max(1, length // 700))}
        document, row = 0, []
        for place in range(length):
            document += place in cuts
            row.append(document)
        numbers.append(row)
    return torch.tensor(numbers, dtype=torch.int32)


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


def plan_of(options, command, name):
    result = subprocess.run(command + ["--schedule", name], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout)[0]


def plans_of(options, mask, length, document):
    """What `rota plan` says of each schedule for a shape; nothing without the command."""
    names = [name for name in options.schedules.split(",") if name != "atomic"]
    if not options.rota:
        return {}
    command = [options.rota, "plan", "--json", "-e", model_of(options, mask, how_of(names[0]))]
    if options.costs:
        command += ["--costs", options.costs]
    if document is None:
        command += ["--seqlen", str(length), "--batch", str(max(1, TOKENS // length))]
        return {name: plan_of(options, command, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "inputs.safetensors")
        write_inputs(path, options, document)
        command += ["--input", path]
        return {name: plan_of(options, command, name) for name in names}


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


class Load:
    """Keeps another stream busy: matrices are multiplied beside what is measured."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def add(self, count):
        with torch.cuda.stream(self.stream):
            for _ in range(count):
                torch.mm(self.matrix, self.matrix)


def unstable_runs(call, d_o, runs, load):
    """Runs whose bits differ from the first one's."""
    first = [t.clone().view(torch.int16) for t in call.backward(d_o)]
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    for i in range(runs):
        load.add(1 + i % 8)
        for t in (call.d_q, call.d_k, call.d_v):
            t.fill_(float("nan"))
        results = call.backward(d_o)
        same = [(t.view(torch.int16) == reference).all() for t, reference in zip(results, first)]
        differ += ~torch.stack(same).all()
    torch.cuda.synchronize()
    return int(differ.item())


def measure(calls, d_o, rounds, batch_ms=7.0):
    """Median milliseconds of each call's backward pass, calls taking turns."""
    samples = {name: [] for name in calls}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            time.sleep(0.005)
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


def prepare(options, mask, tensors, document):
    """Calls of all schedules over the same forward pass, and the two_pass algorithm's gradients,
    if they are asked for."""
    q, k, v, d_o = tensors
    named = {} if document is None else {"document": document}

    def attention(how):
        model = librota.Model(model_of(options, mask, how), library=options.library)
        return model.attention(q, k, v, tensors=named)

    names = options.schedules.split(",")
    calls = {name: attention(how_of(name)) for name in names}
    first = calls[names[0]]
    first.forward()
    for call in calls.values():
        call.arguments.o, call.arguments.lse = first.arguments.o, first.arguments.lse
    expected = None
    if options.runs:
        reference = attention('backward = "two_pass"')
        reference.arguments.o, reference.arguments.lse = first.arguments.o, first.arguments.lse
        expected = [t.clone() for t in reference.backward(d_o)]
    return calls, expected


def bench_shape(options, mask, length, load, record):
    heads, batch = HIDDEN // options.head_dim, max(1, TOKENS // length)
    document = documents(batch, length) if mask == "document" else None
    shape = batch, length, heads, options.head_dim
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    calls, expected = prepare(options, mask, tensors, document)
    d_o = tensors[3]
    errors, unstable, times = {}, {}, {}
    for name, call in calls.items():
        if options.runs and name != "atomic":
            errors[name] = max(difference(a, b) for a, b in zip(call.backward(d_o), expected))
            unstable[name] = unstable_runs(call, d_o, options.runs, load)
    if options.rounds:
        times = measure(calls, d_o, options.rounds)
    plans = plans_of(options, mask, length, document)
    for name in calls:
        record(mask, length, name, plans.get(name), times.get(name), errors.get(name),
               unstable.get(name))  # fmt: skip
    within = None
    if plans and times:
        within = correlation([p["makespan"] for p in plans.values()], [times[n] for n in plans])
    listed = [f"{name} {times[name]:.3f}" for name in sorted(times, key=times.get)]
    print(
        f"{mask} {length}: {sum(unstable.values())} unstable, ms: {', '.join(listed) or '-'}; "
        f"rank correlation {'-' if within is None else format(within, '.2f')}"
    )
    sys.stdout.flush()
    return within


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="bench/results/schedules.csv")
    parser.add_argument("--rota", default="build/rota", help="the command; empty: no model")
    parser.add_argument("--library", default=None)
    parser.add_argument("--costs", default=None, help="for the model: see rota plan --costs")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--schedules", default=SCHEDULES)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--lengths", default="512,1024,4096,16384")
    return parser.parse_args()


class Table:
    """The CSV file, of which each line is written as soon as it is known; cells for the
    correlation, and what failed."""

    def __init__(self, options):
        self.options, self.cells, self.failures = options, {}, []
        os.makedirs(os.path.dirname(options.output) or ".", exist_ok=True)
        self.file = open(options.output, "w")
        self.write(
            f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA "
            f"{torch.version.cuda}, {datetime.date.today()}; bf16, {TOKENS} tokens, hidden "
            f"{HIDDEN}; whole backward pass; {options.runs} runs under load, times of "
            f"{options.rounds} rounds; costs {options.costs or 'as shipped'}"
        )
        self.write(
            "mask,head_dim,length,schedule,milliseconds,makespan_us,bound_ratio,stall_share,"
            "difference,unstable_runs,digest"
        )

    def write(self, line):
        self.file.write(line + "\n")
        self.file.flush()

    def record(self, mask, length, name, plan, milliseconds, error, unstable):
        def text(value, form=""):
            return "" if value is None else format(value, form)

        fields = [
            mask, str(self.options.head_dim), str(length), name, text(milliseconds, ".4f"),
            text(plan and plan["makespan"], ".1f"), text(plan and plan["bound_ratio"], ".4f"),
            text(plan and plan["stall_share"], ".4f"), text(error, ".2e"), text(unstable),
            plan["digest"] if plan else "",
        ]  # fmt: skip
        self.write(",".join(fields))
        if plan and milliseconds:
            self.cells.setdefault((mask, length), []).append((plan["makespan"], milliseconds))
        if error is not None and (not error < 1e-2 or unstable):
            self.failures.append(
                f"{mask} {length} {name}: difference {error:.1e}, {unstable} of "
                f"{self.options.runs} runs gave other bits"
            )

    def relative(self):
        return [
            (makespan / min(m for m, _ in cell), milliseconds / min(t for _, t in cell))
            for cell in self.cells.values()
            for makespan, milliseconds in cell
        ]


def main():
    options = parse()
    torch.manual_seed(1)
    table, begin, load, within = Table(options), time.time(), Load(), []
    for mask in options.masks.split(","):
        for length in map(int, options.lengths.split(",")):
            within.append(bench_shape(options, mask, length, load, table.record))
    told, relative = [x for x in within if x is not None], table.relative()
    if told:
        print(
            f"rank correlation: median of shapes {statistics.median(told):.2f}, all relative to "
            f"their shape's fastest {correlation(*zip(*relative)) or 0:.2f}; {len(relative)} cells"
        )
    print("\n".join(table.failures) if table.failures else "all right, all stable")
    print(f"{time.time() - begin:.0f} s")
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
