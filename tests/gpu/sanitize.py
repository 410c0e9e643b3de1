"""Small kernels of every algorithm, for compute-sanitizer; fails where a result is not finite.

    ROTA_LIBRARY=build/librota.so PYTHONPATH=bench compute-sanitizer --tool memcheck \\
        python3 tests/gpu/sanitize.py
"""

import sys

import torch

import librota

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Fields of the model, dtype, batch, n_q, n_k, heads, kv_heads, head_dim, head_dim_v, layout.
CASES = [
    ("mask = causal", BF16, 2, 200, 131, 4, 2, 64, 64, 0),
    ('mask = window(70, 0), backward = "two_pass"', BF16, 1, 150, 150, 2, 2, 128, 128, 0),
    ('mask = where "(q - k) % 3 == 0"', BF16, 1, 130, 100, 2, 2, 192, 128, 0),
    ("score = softcap(20)", FP16, 1, 100, 90, 2, 2, 46, 46, 1),
    ("mask = causal", FP32, 1, 60, 60, 1, 1, 40, 40, 0),
    ("mask = causal", BF16, 1, 300, 300, 4, 4, 128, 128, 0),
    ("mask = window(70, 0)", FP16, 2, 300, 260, 8, 2, 128, 128, 0),
    ("mask = causal", BF16, 1, 140, 140, 1, 1, 256, 256, 0),
    ("mask = causal", BF16, 1, 140, 140, 1, 1, 512, 512, 0),
    ('backward = "atomic", deterministic = false', BF16, 1, 100, 200, 2, 2, 80, 80, 0),
    ('mask = causal, backward = "exact"', BF16, 2, 200, 131, 4, 2, 128, 64, 0),
]
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


def main():
    torch.manual_seed(0)
    failed = 0
    for fields, dtype, batch, n_q, n_k, heads, kv_heads, dim, dim_v, layout in CASES:
        model = librota.Model(
            f"return rota.attention{{head_dim = {dim}, head_dim_v = {dim_v}, heads = {heads}, "
            f'kv_heads = {kv_heads}, dtype = "{NAMES[dtype]}", {fields}}}'
        )

        def make(rows, count, width):
            return torch.randn(batch, rows, count, width, device="cuda").to(dtype)

        q, k = make(n_q, heads, dim), make(n_k, kv_heads, dim)
        v, d_o = make(n_k, kv_heads, dim_v), make(n_q, heads, dim_v)
        call = model.attention(q, k, v, layout=layout)
        results = (call.forward(), *call.backward(d_o))
        torch.cuda.synchronize()
        finite = all(bool(x.isfinite().all()) for x in results)
        failed += not finite
        print("ok  " if finite else "FAIL", fields, NAMES[dtype], dim, flush=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
