"""The drop-ins against the functions that they stand in for, or against dense fp64 attention where
those are not installed (flash-attn needs a GPU: test_cuda.py compares with it there)."""

import inspect

import pytest
import rota
import torch
import torch.nn.functional as F
from conftest import close, doubles, random_inputs, reference, same_bits

# Signatures of flash-attn 2.7, so that a caller's keywords keep their meaning.
FLASH = {
    "flash_attn_func": "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes "
    "deterministic return_attn_probs",
    "flash_attn_qkvpacked_func": "qkv dropout_p softmax_scale causal window_size softcap "
    "alibi_slopes deterministic return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs block_table",
}


@pytest.mark.parametrize("name", FLASH)
def test_flash_signatures(name):
    assert list(inspect.signature(getattr(rota, name)).parameters) == FLASH[name].split()


def flash_allowed(n_q, n_k, causal, window):
    """As flash-attn's documentation words it."""
    left, right = window
    i, j = torch.arange(n_q)[:, None] + n_k - n_q, torch.arange(n_k)[None]
    allowed = torch.ones(n_q, n_k, dtype=torch.bool)
    if left >= 0:
        allowed &= j >= i - left
    if right >= 0:
        allowed &= j <= i + right
    return allowed & (j <= i) if causal else allowed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (10, 0), (10, 5), (-1, 7), (12, -1), (0, 0)])
@pytest.mark.parametrize("lengths", [(40, 40), (30, 50), (50, 30)])
def test_flash_attn_func(causal, window, lengths):
    q, k, v = random_inputs(2, *lengths, 4, 2, 16)
    o, lse, _ = rota.flash_attn_func(
        q, k, v, causal=causal, window_size=window, return_attn_probs=True
    )
    wide = doubles(q, k, v)
    wanted, wanted_lse = reference(*wide, flash_allowed(*lengths, causal, window))
    close(o, wanted)
    finite = wanted_lse > float("-inf")
    close(lse[finite], wanted_lse[finite])
    d_o = torch.randn_like(o)
    for a, b in zip(
        torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(wanted, wide, d_o.double())
    ):
        close(a, b, factor=2)


@pytest.mark.parametrize("per_batch", [False, True])
def test_flash_softcap_and_alibi(per_batch):
    q, k, v = random_inputs(2, 30, 40, 4, 2, 16)
    slope = torch.rand(2, 4) if per_batch else torch.rand(4)
    o = rota.flash_attn_func(q, k, v, softmax_scale=0.5, causal=True, softcap=4.0,
                             alibi_slopes=slope)  # fmt: skip
    i, j = torch.arange(30)[:, None] + 10, torch.arange(40)[None]
    steep = slope.double()[..., None, None] * (i - j).abs()
    wanted, _ = reference(*doubles(q, k, v), j <= i, 0.5, lambda s: 4 * torch.tanh(s / 4) - steep)
    close(o, wanted)


def test_flash_qkvpacked_reads_in_place():
    qkv = torch.randn(2, 30, 3, 4, 16, requires_grad=True)
    o = rota.flash_attn_qkvpacked_func(qkv, causal=True)
    separate = [t.detach().clone().requires_grad_() for t in qkv.unbind(2)]
    alone = rota.flash_attn_func(*separate, causal=True)
    assert same_bits(o, alone)
    d_o = torch.randn_like(o)
    (found,) = torch.autograd.grad(o, qkv, d_o)
    wanted = torch.stack(torch.autograd.grad(alone, separate, d_o), 2)
    assert same_bits(found, wanted)
    with pytest.raises(rota.InvalidArgument, match="3, heads"):
        rota.flash_attn_qkvpacked_func(qkv[:, :, :2])


def test_flash_varlen():
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 12, 40], [0, 30, 52]))
    q, k, v = (t[0].detach() for t in random_inputs(1, 40, 52, 4, 2, 16))
    o, lse, _ = rota.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 28, 30, causal=True, window_size=(8, 0), return_attn_probs=True
    )
    for s in range(2):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        allowed = flash_allowed(rows.stop - rows.start, keys.stop - keys.start, True, (8, 0))
        wanted, wanted_lse = reference(
            *(t[None].double() for t in (q[rows], k[keys], v[keys])), allowed
        )
        close(o[rows], wanted[0])
        finite = wanted_lse[0] > float("-inf")
        close(lse[:, rows][finite], wanted_lse[0][finite])


def test_what_flash_does_not_serve_is_refused():
    q, k, v = random_inputs(1, 8, 8, 1, 1, 16)
    with pytest.raises(rota.Unsupported, match="dropout"):
        rota.flash_attn_func(q, k, v, 0.1)
    with pytest.raises(rota.Unsupported, match="dropout"):
        rota.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    cu = torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(rota.Unsupported, match="paged"):
        rota.flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 8, 8, block_table=cu[None])


# ---- scaled_dot_product_attention against torch's own ----


def sdpa_pair(q, k, v, factor=1.0, **options):
    found = rota.scaled_dot_product_attention(q, k, v, **options)
    wide = doubles(q, k, v)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.double()
    wanted = F.scaled_dot_product_attention(*wide, **options)
    assert found.shape == wanted.shape
    close(found, wanted, factor=factor)
    d_o = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v), d_o), torch.autograd.grad(wanted, wide, d_o.double())
    ):
        close(a, b, factor=2 * factor)


def leaves(*shapes, dtype=torch.float32):
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def test_sdpa_signature():
    ours = inspect.signature(rota.scaled_dot_product_attention)
    assert list(ours.parameters) == [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    ]  # fmt: skip
    text = F.scaled_dot_product_attention.__doc__
    for name, parameter in ours.parameters.items():
        default = parameter.default
        assert name in text if default is inspect.Parameter.empty else f"{name}={default}" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(40, 40), (30, 50), (50, 30)])
def test_sdpa(dtype, is_causal, lengths):
    n_q, n_k = lengths
    shapes = (2, 4, n_q, 32), (2, 4, n_k, 32), (2, 4, n_k, 16)
    sdpa_pair(*leaves(*shapes, dtype=dtype), is_causal=is_causal)


def test_sdpa_grouped_heads_and_scale():
    q, k, v = leaves((2, 6, 30, 16), (2, 2, 30, 16), (2, 2, 30, 16))
    sdpa_pair(q, k, v, is_causal=True, scale=0.4, enable_gqa=True)
    with pytest.raises(rota.InvalidArgument, match="enable_gqa"):
        rota.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("shape", [(30, 40), (1, 40), (30, 1), (4, 30, 40), (2, 1, 30, 40),
                                   (1, 4, 1, 40), (2, 4, 30, 40), (2, 1, 1, 40)])  # fmt: skip
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_sdpa_masks(shape, kind):
    mask = torch.rand(shape) < 0.7 if kind == "bool" else torch.randn(shape)
    sdpa_pair(*leaves((2, 4, 30, 16), (2, 4, 40, 16), (2, 4, 40, 16)), attn_mask=mask)


def test_sdpa_float_mask_with_infinities():
    mask = torch.zeros(30, 30).masked_fill(torch.rand(30, 30) < 0.5, float("-inf"))
    mask[:, 7] = 0.0
    sdpa_pair(*leaves(*((2, 4, 30, 16),) * 3), attn_mask=mask)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_sdpa_ranks(lead):
    shapes = (*lead, 20, 16), (*lead, 25, 16), (*lead, 25, 16)
    sdpa_pair(*leaves(*shapes))
    if len(lead) == 3:
        sdpa_pair(*leaves(*shapes), attn_mask=torch.rand(2, 1, 1, 20, 25) < 0.7)
    sdpa_pair(*leaves(*shapes), attn_mask=torch.rand(20, 25) < 0.7)


def test_sdpa_row_without_keys():
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool)
    mask[..., 3, :] = False
    q, k, v = leaves(*((1, 2, 20, 16),) * 3)
    sdpa_pair(q, k, v, attn_mask=mask)


def test_sdpa_refusals():
    q, k, v = leaves(*((1, 2, 20, 16),) * 3)
    mask = torch.ones(20, 20, dtype=torch.bool)
    with pytest.raises(rota.InvalidArgument, match="exclude"):
        rota.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
    with pytest.raises(rota.InvalidArgument, match="broadcast"):
        rota.scaled_dot_product_attention(q, k, v, mask[:, :7])
    with pytest.raises(rota.InvalidArgument, match="int32"):
        rota.scaled_dot_product_attention(q, k, v, mask.int())
    with pytest.raises(rota.Unsupported, match="gradient"):
        rota.scaled_dot_product_attention(q, k, v, torch.zeros(20, 20, requires_grad=True))


# ---- FlexAttention's block masks ----

flex = pytest.importorskip("torch.nn.attention.flex_attention")


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return (q // 100 == k // 100) & (q >= k)


def per_head(b, h, q, k):
    return (q - k).abs() <= 60 * (h + 1) + 40 * b


def per_batch(b, h, q, k):
    return (q - k).abs() <= 60 + 40 * b


def blocks_only(b, h, q, k):
    return (q // 64 + k // 64) % 2 == 0


@pytest.mark.parametrize("mask_mod, shape", [(causal, (None, None)), (documents, (None, None)),
                                             (per_head, (2, 4)), (per_batch, (2, 1))])  # fmt: skip
@pytest.mark.parametrize("lengths", [(256, 256), (300, 200)])
def test_block_mask_with_element_mask(mask_mod, shape, lengths):
    n_q, n_k = lengths
    block_mask = flex.create_block_mask(mask_mod, *shape, n_q, n_k, device="cpu", BLOCK_SIZE=64)
    dense = flex.create_mask(mask_mod, *shape, n_q, n_k, device="cpu")
    mask = rota.from_block_mask(block_mask, partial=dense)
    q, k, v = random_inputs(2, n_q, n_k, 4, 4, 16)
    o = rota.attention(q, k, v, mask=mask)
    wanted, _ = reference(*doubles(q, k, v), dense)
    close(o, wanted)
    turned = [t.detach().double().transpose(1, 2) for t in (q, k, v)]
    close(o, flex.flex_attention(*turned, block_mask=block_mask).transpose(1, 2))


def test_block_mask_with_a_rota_mask_and_without_partial_blocks():
    q, k, v = random_inputs(2, 256, 256, 4, 4, 16)
    block_mask = flex.create_block_mask(causal, None, None, 256, 256, device="cpu", BLOCK_SIZE=64)
    with pytest.raises(rota.InvalidArgument, match="partial"):
        rota.from_block_mask(block_mask)
    wanted = rota.attention(q, k, v, mask="causal")
    for partial in ("causal", rota.Mask('where("k <= q")')):
        mask = rota.from_block_mask(block_mask, partial=partial)
        close(rota.attention(q, k, v, mask=mask), wanted)
    # Partial blocks count for what `partial` says, full ones in any case.
    none = rota.from_block_mask(block_mask, partial='where("k < 0")')
    o = rota.attention(q, k, v, mask=none)
    assert (o[:, :64] == 0).all() and (o[:, 64:] != 0).any()

    full_only = flex.create_block_mask(
        blocks_only, None, None, 256, 256, device="cpu", BLOCK_SIZE=64
    )
    o = rota.attention(q, k, v, mask=rota.from_block_mask(full_only))
    dense = flex.create_mask(blocks_only, None, None, 256, 256, device="cpu")
    close(o, reference(*doubles(q, k, v), dense)[0])


def test_masks_compose():
    ids = torch.arange(40, dtype=torch.int32)[None] // 15
    documents = rota.Mask("document", {"document": ids})
    q, k, v = random_inputs(1, 40, 40, 2, 2, 16)
    plain = rota.attention(q, k, v, mask="causal & document", tensors={"document": ids})
    assert same_bits(rota.attention(q, k, v, mask=documents & "causal"), plain)
    i, j = torch.arange(40)[:, None], torch.arange(40)[None]
    outside, _ = reference(*doubles(q, k, v), (i // 15 != j // 15) | (j < 3))
    close(rota.attention(q, k, v, mask=~documents | "sinks(3)"), outside)
    with pytest.raises(rota.InvalidArgument, match="document"):
        documents | rota.Mask("document", {"document": ids.clone()})
    with pytest.raises(rota.InvalidArgument, match="twice"):
        rota.attention(q, k, v, mask=documents, tensors={"document": ids})
