"""Rota's CUDA results against fp64, and against PyTorch's error in the same precision.

    ROTA_LIBRARY=build/librota.so PYTHONPATH=bench python3 tests/gpu/compare_torch.py [--quick]

Needs torch and a GPU. For each configuration: fresh random inputs, poisoned outputs; error =
||x - x64|| / ||x64||. Passes where every error is at most twice PyTorch's (matmul and softmax in
the tensors' dtype, P rounded to it, autograd for the gradients).
"""

import argparse
import concurrent.futures
import itertools
import os
import sys
import time

import torch

import librota

FREE = 'where "(q >= k and q - k <= 256) or (q >= 4 and k <= 4)"'
# Name, mask in Lua, the same in torch from (q, k, n_q, n_k, document of q, document of k).
MASKS = [
    ("full", "full", lambda q, k, n_q, n_k, dq, dk: torch.ones_like(q + k, dtype=torch.bool)),
    ("causal", "causal", lambda q, k, n_q, n_k, dq, dk: k <= q + n_k - n_q),
    (
        "window",
        "window(100, 0)",
        lambda q, k, n_q, n_k, dq, dk: (k <= q + n_k - n_q) & (k >= q + n_k - n_q - 100),
    ),
    (
        "document",
        "document & causal",
        lambda q, k, n_q, n_k, dq, dk: (k <= q + n_k - n_q) & (dq == dk),
    ),
    (
        "free",
        FREE,
        lambda q, k, n_q, n_k, dq, dk: ((q >= k) & (q - k <= 256)) | ((q >= 4) & (k <= 4)),
    ),
]
DIMS = [(40, 40), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256)]
LENGTHS = [(1, 1), (113, 113), (1024, 1024), (2048, 1024)]


def attention(q, k, v, allowed, group):
    """Dense attention [b, n, h, d] in the tensors' dtype; rows without allowed keys give zeros."""
    q, k, v = (
        t.transpose(1, 2)
        for t in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    )
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    s = s.to(exact).masked_fill(~allowed, float("-inf"))
    empty = ~allowed.any(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return (p.to(q.dtype) @ v).transpose(1, 2)


def error(x, reference):
    norm = reference.norm().item()
    difference = (x.double() - reference).norm().item()
    return difference / norm if norm > 0 else difference


def model_script(script, dims, heads, dtype, algorithm):
    (d, dv), (h, h_kv) = dims, heads
    return (
        f"return rota.attention{{head_dim = {d}, head_dim_v = {dv}, heads = {h}, "
        f'kv_heads = {h_kv}, dtype = "{"bf16" if dtype == torch.bfloat16 else "fp16"}", '
        f'mask = {script}, backward = "{algorithm}"}}'
    )


def prepare(scripts):
    """Models with their kernels, compiled side by side."""

    def one(script):
        model = librota.Model(script)
        for direction in (librota.FORWARD, librota.BACKWARD):
            model.kernel(direction)
        return model

    torch.zeros(1, device="cuda")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(scripts, pool.map(one, scripts)))


def run_case(models, name, script, predicate, dims, lengths, heads, dtype, algorithm):
    (d, dv), (n_q, n_k), (h, h_kv) = dims, lengths, heads
    batch, group = 2, h // h_kv
    make = lambda n, heads_, dim: torch.randn(batch, n, heads_, dim, device="cuda", dtype=dtype)
    q, k, v, d_o = make(n_q, h, d), make(n_k, h_kv, d), make(n_k, h_kv, dv), make(n_q, h, dv)
    ids = torch.sort(torch.randint(0, 5, (batch, max(n_q, n_k)), device="cuda"), 1).values.int()
    iq, ik = torch.arange(n_q, device="cuda")[:, None], torch.arange(n_k, device="cuda")[None]
    # The shorter of queries and keys is aligned with the end.
    place_q, place_k = iq + max(n_k - n_q, 0), ik + max(n_q - n_k, 0)
    allowed = torch.stack(
        [
            predicate(iq, ik, n_q, n_k, ids[b][place_q], ids[b][place_k]).expand(n_q, n_k)
            for b in range(batch)
        ]
    )[:, None]
    tensors = {"document": ids} if name == "document" else {}
    model = models[model_script(script, dims, heads, dtype, algorithm)]
    call = model.attention(q, k, v, tensors=tensors)
    for poisoned in (call.o, call.lse, call.d_q, call.d_k, call.d_v):
        poisoned.fill_(float("nan"))
    call.forward()
    ours = (call.o, *call.backward(d_o))
    results = []
    for precision in (torch.float64, dtype):
        inputs = [t.to(precision).detach().requires_grad_() for t in (q, k, v)]
        out = attention(*inputs, allowed, group)
        results.append((out, *torch.autograd.grad(out, inputs, d_o.to(precision))))
    exact, same = results
    pairs = [(error(x, e), error(y, e)) for x, e, y in zip(ours, exact, same)]
    # The floor covers gradients that are exactly zero (one key: dQ = dK = 0): no scale for errors.
    passed = all(a <= 2 * b + 1e-3 for a, b in pairs)
    print(
        f"{'ok  ' if passed else 'FAIL'} {name:9} d {d}/{dv} n {n_q}x{n_k} heads {h}/{h_kv} "
        f"{str(dtype)[6:]:9} {algorithm:9}"
        + "".join(
            f" {label} {a:.1e}/{b:.1e}" for label, (a, b) in zip(("O", "dQ", "dK", "dV"), pairs)
        ),
        flush=True,
    )
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every seventh configuration")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    print("seed", options.seed)
    cases = list(
        itertools.product(
            MASKS,
            DIMS,
            LENGTHS,
            [(2, 2), (8, 2)],
            [torch.bfloat16, torch.float16],
            ["ordered", "two_pass"],
        )
    )
    if options.quick:
        cases = cases[::7]
    scripts = {model_script(case[0][1], case[1], *case[3:]) for case in cases}
    models = prepare(sorted(scripts))
    print(len(models), "models prepared", flush=True)
    failed = 0
    for (name, script, predicate), dims, lengths, heads, dtype, algorithm in cases:
        try:
            failed += not run_case(
                models, name, script, predicate, dims, lengths, heads, dtype, algorithm
            )
        except RuntimeError as complaint:
            failed += 1
            print("FAIL", name, dims, lengths, heads, dtype, algorithm, complaint, flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
