"""Times the forward pass for few queries against many keys, as in decoding or short chunks.

    python3 bench/few_queries.py [--output bench/results/few_queries_h200]

64 query heads on 8 kv heads, head dim 128, bf16, no mask; one sequence and a batch of 16. Method as
in bench/attention.py: the libraries take turns in one process, medians of calls replayed from a
CUDA graph. GB/s counts K and V once, which is the least that must be read.
"""

import argparse
import csv
import datetime
import itertools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import librota
from attention import DIFFERENCE_MAX, difference, measure

HEAD_DIM, HEADS, KV_HEADS = 128, 64, 8
QUERIES, KEYS, BATCHES = (1, 4, 16, 64, 256), (2048, 8192, 65536), (1, 16)
FIELDS = ["n_q", "n_k", "batch", "library", "us", "gb_per_s", "difference"]


def rota(q, k, v):
    heads = f"heads = {HEADS}, kv_heads = {KV_HEADS}"
    script = f"return rota.attention{{head_dim = {HEAD_DIM}, {heads}}}"
    return librota.Model(script).attention(q, k, v).forward


def sdpa(backend, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        with torch.no_grad(), sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2)

    return call


def run(n_q, n_k, batch):
    shapes = ((n_q, HEADS), (n_k, KV_HEADS), (n_k, KV_HEADS))
    q, k, v = (
        torch.randn(batch, rows, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        for rows, heads in shapes
    )
    calls = {
        "Rota": rota(q, k, v),
        "cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v),
        "FA2": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v),
    }
    reference = calls["FA2"]()
    for (name, call), (ms, _) in zip(calls.items(), measure(list(calls.values()))):
        speed = f"{2 * k.numel() * k.element_size() / ms / 1e6:.0f}"
        yield [n_q, n_k, batch, name, f"{ms * 1e3:.1f}", speed, difference(call(), reference)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="bench/results/few_queries", help="without .csv")
    options = parser.parse_args()
    torch.manual_seed(0)
    wrong = 0
    with open(options.output + ".csv", "w", newline="") as file:
        device, date = torch.cuda.get_device_name(), datetime.date.today()
        file.write(f"# {device}, {date}, torch {torch.__version__}; bf16\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for batch, n_k, n_q in itertools.product(BATCHES, KEYS, QUERIES):
            for line in run(n_q, n_k, batch):
                wrong += not line[-1] < DIFFERENCE_MAX
                line[-1] = f"{line[-1]:.1e}"
                writer.writerow(line)
                file.flush()
                print(*line, sep=",", flush=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
