"""How accurate `backward = "exact"` is: errors of dQ against fp64, row by row, for inputs that make
its bounds loose. Two tables as CSV.

    python3 bench/exact.py [--rows 4096] [--output bench/results/exact.csv]

simulated: the error of adding up alone, all else in fp64: fp32 sums, integers by the norm and by
the spread bound as the kernels scale, and by the latter with a factor for each column of K, beside
the error that rounding dS to bf16 makes.
measured: the kernels, `ordered` and `exact` by both bounds, and how far those are from `ordered`.
Errors are relative to the row's own gradient: the 99th percentile of rows, and the worst.
"""

import argparse
import sys

import torch

import librota
from report import csv_lines

DIM, TILE = 128, 128


def normal(rows):
    return [torch.randn(rows, DIM, device="cuda") for _ in range(4)]


def channels(q, k, v, d_o):
    k[:, :8] *= 50


def row_of_v(q, k, v, d_o):
    v[77] *= 100


def both(q, k, v, d_o):
    k[:, :8] *= 50
    v[77] *= 1000


def peaked(q, k, v, d_o):
    q *= 8


def far_mean(q, k, v, d_o):
    v += 30


def farther_mean(q, k, v, d_o):
    v += 1000


# Name -> what is done to normal inputs, and what else the model has.
CASES = {
    "normal": (lambda *x: None, {}),
    "8 K channels x 50": (channels, {}),
    "one V row x 100": (row_of_v, {}),
    "K channels x 50 and V row x 1000": (both, {}),
    "logits x 8": (peaked, {}),
    "V + 30": (far_mean, {}),
    "V + 1000": (farther_mean, {}),
    "one V row x 100 and a sink": (row_of_v, {"sink": 5.0}),
    "one V row x 100 and a window of 256": (row_of_v, {"window": 256}),
    "V + 30 and a gradient of LSE": (far_mean, {"d_lse": True}),
}


def inputs(case, rows):
    """q, k, v, dO; sink, window and dLSE, or None."""
    torch.manual_seed(1)
    tensors = normal(rows)
    change, more = CASES[case]
    change(*tensors)
    d_lse = torch.randn(rows, device="cuda") if "d_lse" in more else None
    return [x.bfloat16() for x in tensors], more.get("sink"), more.get("window"), d_lse


def gradient(case, rows):
    """dS (unscaled), dQ without the softmax scale, P, O: fp64, causal."""
    tensors, sink, window, d_lse = inputs(case, rows)
    q, k, v, d_o = (x.double() for x in tensors)
    s = q @ k.T / DIM**0.5
    allowed = torch.ones_like(s, dtype=torch.bool).tril_()
    if window:
        allowed.triu_(-window)
    s.masked_fill_(~allowed, -torch.inf)
    if sink is not None:
        s = torch.cat([s, torch.full_like(s[:, :1], sink)], 1)
    p = torch.softmax(s, -1)[:, :rows]
    o = p @ v
    delta = (d_o * o).sum(-1, keepdim=True)
    if d_lse is not None:
        delta -= d_lse.double()[:, None]
    ds = p * (d_o @ v.T - delta)
    return ds, ds @ k, p, o


def partials(ds, k):
    """dQ of each kv tile."""
    for tile in range(0, k.shape[0], TILE):
        yield ds[:, tile : tile + TILE] @ k[tile : tile + TILE]


def fixed_sum(ds, k, scale):
    return sum(torch.round(x * scale) for x in partials(ds, k)) / scale


def group_squares(v):
    """|V|^2 of every key, of eight that a thread of the kernels adds up the largest: keys 8 n + 2 c
    and the next of four neighbouring n."""
    largest = (v**2).sum(1).view(-1, 4, 4, 2).amax((1, 3), keepdim=True)
    return largest.expand(-1, 4, 4, 2).reshape(-1)


def power(bound):
    """2^30 over a bound, rounded down as the kernels do."""
    return torch.exp2(torch.floor(torch.log2(2**30 / bound.clamp_min(1e-300))))


def scales(k, v, d_o, d_lse, p, o):
    """By the norm bound, by the spread bound, and by the latter with the column's largest K."""
    column, row = k.abs().amax(0), d_o.norm(dim=1, keepdim=True)
    more = 0 if d_lse is None else d_lse.double().abs()[:, None]
    square = p @ group_squares(v)[:, None]
    spread = torch.maximum(square - (o**2).sum(1, keepdim=True), square * 2**-6).sqrt()
    norm = row * v.norm(dim=1).max() + more
    spread = row * spread + more
    return power(norm * column.max()), power(spread * column.max()), power(spread * column)


def by_row(found, expected):
    """99th percentile and worst; rows of which nothing is left (the first) apart."""
    size = expected.norm(dim=1)
    error = ((found - expected).norm(dim=1) / size)[size > 1e-9 * size.mean()]
    return f"{error.quantile(0.99).item():.0e},{error.max().item():.0e}"


def simulate(case, rows):
    (_, k, v, d_o), _, _, d_lse = inputs(case, rows)
    ds, dq, p, o = gradient(case, rows)
    k, v, d_o = k.double(), v.double(), d_o.double()
    rounded = ds.bfloat16().double() @ k
    fp32 = torch.zeros_like(dq, dtype=torch.float32)
    for x in partials(ds, k):
        fp32 += x.float()
    integers = [fixed_sum(ds, k, scale) for scale in scales(k, v, d_o, d_lse, p, o)]
    return ",".join(by_row(x, dq) for x in [rounded, fp32.double(), *integers])


# All backward passes go by the last one's forward pass.
MODELS = {
    "ordered": 'backward = "ordered"',
    "norm": 'backward = "exact"',
    "spread": 'backward = "exact", bound = "spread"',
}


def measure(case, rows, library):
    tensors, sink, window, d_lse = inputs(case, rows)
    dq = gradient(case, rows)[1] / DIM**0.5
    q, k, v, d_o = (x[None, :, None] for x in tensors)
    mask = f"window({window}, 0)" if window else "causal"
    logit = torch.full((1,), sink, device="cuda") if sink is not None else None
    found, first = [], None
    for how in reversed(MODELS.values()):
        model = librota.Model(
            f"return rota.attention{{head_dim = {DIM}, mask = {mask}, "
            f"sink_logit = {str(sink is not None).lower()}, {how}}}",
            library=library,
        )
        call = model.attention(q, k, v, sink=logit)
        if d_lse is not None:
            call.arguments.d_lse = librota.strided(d_lse[None, :, None])
        call.forward()
        first = first or call
        call.o.copy_(first.o)  # whose last bits depend on whether squares are added up as well
        call.lse.copy_(first.lse)
        found.insert(0, call.backward(d_o)[0][0, :, 0].double())
    columns = [f"{((x - dq).norm() / dq.norm()).item():.2e}" for x in found]
    columns += [by_row(x, dq) for x in found]
    columns += [by_row(x, found[0]) for x in found[1:]]
    return ",".join(columns)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--library", default=None)
    parser.add_argument("--output", default="bench/results/exact.csv")
    options = parser.parse_args()
    about = (
        f"dQ, head dim {DIM}, causal, {options.rows} rows, bf16; errors by row: 99th percentile, "
        "worst"
    )
    with csv_lines(options.output, about) as write:
        write(
            "simulated,ds_bf16_99,ds_bf16_worst,fp32_99,fp32_worst,norm_99,norm_worst,spread_99,"
            "spread_worst,by_column_99,by_column_worst"
        )
        for case in CASES:
            write(f"{case},{simulate(case, options.rows)}")
        write(
            "measured,ordered,norm,spread,ordered_99,ordered_worst,norm_99,norm_worst,spread_99,"
            "spread_worst,norm_apart_99,norm_apart_worst,spread_apart_99,spread_apart_worst"
        )
        for case in CASES:
            write(f"{case},{measure(case, options.rows, options.library)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
