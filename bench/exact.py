"""How accurate `backward = "exact"` is: errors of dQ against fp64, row by row, for inputs that make
its bound loose. Two tables as CSV.

    python3 bench/exact.py [--rows 4096] [--output bench/results/exact.csv]

simulated: the error of adding up alone, all else in fp64: fp32 sums, integers by the norm bound (as
the kernels scale) and by the spread bound, beside the error that rounding dS to bf16 makes.
measured: the kernels, `ordered` and `exact`, and what sets `exact` apart from `ordered`.
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


CASES = {
    "normal": lambda *x: None,
    "8 K channels x 50": channels,
    "one V row x 100": row_of_v,
    "K channels x 50 and V row x 1000": both,
    "logits x 8": peaked,
    "V + 30": far_mean,
}


def inputs(case, rows):
    torch.manual_seed(1)
    tensors = normal(rows)
    CASES[case](*tensors)
    return [x.bfloat16() for x in tensors]


def gradient(q, k, v, d_o):
    """dS (unscaled), dQ without the softmax scale, P, O: fp64, causal."""
    q, k, v, d_o = (x.double() for x in (q, k, v, d_o))
    s = q @ k.T / DIM**0.5
    s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu_(1), -torch.inf)
    p = torch.softmax(s, -1)
    o = p @ v
    ds = p * (d_o @ v.T - (d_o * o).sum(-1, keepdim=True))
    return ds, ds @ k, p, o


def partials(ds, k):
    """dQ of each kv tile."""
    for tile in range(0, k.shape[0], TILE):
        yield ds[:, tile : tile + TILE] @ k[tile : tile + TILE]


def fixed_sum(ds, k, scale):
    return sum(torch.round(x * scale) for x in partials(ds, k)) / scale


def scales(q, k, v, d_o, p, o):
    """2^30 over the norm bound, rounded down as the kernels do, and over the spread bound."""
    column = k.abs().amax(0)
    row = d_o.norm(dim=1, keepdim=True) * v.norm(dim=1).max() * column.max()
    norm = torch.exp2(torch.floor(torch.log2(2**30 / row)))
    square = p @ (v**2).sum(1, keepdim=True)
    spread = torch.maximum(square - (o**2).sum(1, keepdim=True), square * 2**-6)
    bound = column * d_o.norm(dim=1, keepdim=True) * spread.sqrt()
    return norm, 2**30 / bound.clamp_min(1e-300)


def by_row(found, expected):
    """99th percentile and worst; rows of which nothing is left (the first) apart."""
    size = expected.norm(dim=1)
    error = ((found - expected).norm(dim=1) / size)[size > 1e-9 * size.mean()]
    return f"{error.quantile(0.99).item():.0e},{error.max().item():.0e}"


def simulate(case, rows):
    q, k, v, d_o = inputs(case, rows)
    ds, dq, p, o = gradient(q, k, v, d_o)
    k, v, d_o = k.double(), v.double(), d_o.double()
    rounded = ds.bfloat16().double() @ k
    fp32 = torch.zeros_like(dq, dtype=torch.float32)
    for x in partials(ds, k):
        fp32 += x.float()
    norm, spread = scales(q, k, v, d_o, p, o)
    columns = [rounded, fp32.double(), fixed_sum(ds, k, norm), fixed_sum(ds, k, spread)]
    return ",".join(by_row(x, dq) for x in columns)


def measure(case, rows, library):
    q, k, v, d_o = inputs(case, rows)
    dq = gradient(q, k, v, d_o)[1] / DIM**0.5
    found = {}
    for algorithm in ("ordered", "exact"):
        model = librota.Model(
            f"return rota.attention{{head_dim = {DIM}, mask = causal, "
            f'backward = "{algorithm}"}}',
            library=library,
        )
        q4, k4, v4, d_o4 = (x[None, :, None] for x in (q, k, v, d_o))
        call = model.attention(q4, k4, v4)
        call.forward()
        found[algorithm] = call.backward(d_o4)[0][0, :, 0].double()
    whole = [((x - dq).norm() / dq.norm()).item() for x in found.values()]
    rows_of = [by_row(found["ordered"], dq), by_row(found["exact"], dq)]
    apart = by_row(found["exact"], found["ordered"])
    return f"{whole[0]:.2e},{whole[1]:.2e},{rows_of[0]},{rows_of[1]},{apart}"


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
            "spread_worst"
        )
        for case in CASES:
            write(f"{case},{simulate(case, options.rows)}")
        write(
            "measured,ordered,exact,ordered_99,ordered_worst,exact_99,exact_worst,"
            "apart_99,apart_worst"
        )
        for case in CASES:
            write(f"{case},{measure(case, options.rows, options.library)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
