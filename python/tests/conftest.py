"""Shared by the torch tests: the fp64 reference, and inputs."""

import pytest

collect_ignore = []
try:
    import torch
except ImportError:
    torch = None
    collect_ignore = ["test_attention.py", "test_operators.py", "test_drop_in.py", "test_plain.py",
                      "test_cuda.py"]  # fmt: skip


def reference(q, k, v, allowed=None, scale=None, score=None, sink=None):
    """Dense softmax attention, [batch, tokens, heads, dim], in the dtype of its inputs (fp64).
    `allowed`: bool, broadcasts to [batch, heads, n_q, n_k]. Returns (o, lse)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (scale or q.shape[-1] ** -0.5) * (q @ k.transpose(-1, -2))
    if score is not None:
        s = score(s)
    if allowed is not None:
        s = s.masked_fill(~allowed, float("-inf"))
    if sink is not None:
        column = sink.to(s.dtype)[None, :, None, None].expand(*s.shape[:-1], 1)
        s = torch.cat((s, column), -1)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.masked_fill(lse == float("-inf"), 0.0)[..., None])
    return (p[..., : k.shape[2]] @ v).transpose(1, 2), lse


def doubles(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def random_inputs(batch, n_q, n_k, heads, kv_heads, dim, dim_v=None, dtype=None, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(rows, count, width):
        t = torch.randn(batch, rows, count, width, generator=generator)
        return t.to(dtype or torch.float32).requires_grad_()

    return make(n_q, heads, dim), make(n_k, kv_heads, dim), make(n_k, kv_heads, dim_v or dim)


def tolerance(dtype):
    return {"torch.float32": 2e-5, "torch.float16": 4e-3, "torch.bfloat16": 3e-2}[str(dtype)]


def close(found, wanted, dtype=None, factor=1.0):
    """Within the dtype's tolerance, relative to the largest magnitude."""
    error = (found.double() - wanted.double()).abs().max().item() if wanted.numel() else 0.0
    size = max(wanted.double().abs().max().item() if wanted.numel() else 0.0, 1.0)
    limit = factor * tolerance(dtype or found.dtype) * size
    assert error <= limit, f"error {error:.3g} over {limit:.3g}"


def same_bits(a, b):
    import torch

    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@pytest.fixture(autouse=True)
def _seed():
    if torch is not None:
        torch.manual_seed(1)
