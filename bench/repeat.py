"""The same bits in many runs, forward and backward, while another stream multiplies matrices.

    python3 -u bench/repeat.py [--runs 1000] [--library build/librota.so]

For each shape, every result of each run is compared with the first run's on the device. The hash of
all results that ends each line is the same in every process. Exit status 1 if a bit ever changed.
"""

import argparse
import hashlib
import sys
import time

import torch

import librota
from schedules import Load

BF16, FP16 = torch.bfloat16, torch.float16
# dtype, batch, length, heads, kv heads, head dim, mask
SHAPES = {
    "small": (FP16, 2, 1024, 12, 12, 64, "full"),
    "large": (BF16, 32, 1024, 32, 32, 128, "causal"),
    "grouped d64": (BF16, 2, 1024, 16, 2, 64, "causal"),
    "grouped d128": (BF16, 2, 1024, 16, 2, 128, "causal"),
}


def model_of(dtype, heads, kv_heads, head_dim, mask):
    name = "bf16" if dtype == BF16 else "fp16"
    return (
        f'return rota.attention{{dtype = "{name}", head_dim = {head_dim}, heads = {heads}, '
        f'kv_heads = {kv_heads}, mask = {mask}, backward = "ordered"}}'
    )


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def hash_of(results):
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def repeat(name, options, load):
    """Runs with other bits than the first."""
    dtype, batch, length, heads, kv_heads, head_dim, mask = SHAPES[name]
    generator = torch.Generator("cuda").manual_seed(5)

    def random(count):
        shape = batch, length, count, head_dim
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    q, k, v, d_o = random(heads), random(kv_heads), random(kv_heads), random(heads)
    model = librota.Model(model_of(dtype, heads, kv_heads, head_dim, mask), options.library)
    call = model.attention(q, k, v)

    def run():
        for output in (call.o, call.d_q, call.d_k, call.d_v):
            output.fill_(float("nan"))
        call.forward()
        return [bits(t) for t in (call.o, call.lse, *call.backward(d_o))]

    first = [t.clone() for t in run()]
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    begin = time.time()
    for i in range(1, options.runs):
        load.add(i % 8)
        differ += ~torch.stack([(a == b).all() for a, b in zip(run(), first)]).all()
    different = int(differ.item())
    print(f"{name:14} {options.runs} runs, {different} with other bits, "
          f"{time.time() - begin:.1f} s, {hash_of(first)}", flush=True)  # fmt: skip
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--library", default=None)
    options = parser.parse_args()
    load = Load()
    return 1 if sum([repeat(name, options, load) for name in SHAPES]) else 0


if __name__ == "__main__":
    sys.exit(main())
