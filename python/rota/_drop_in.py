"""Functions with the names, signatures and meaning of flash-attn's and torch's own. What they do
not serve (dropout, paged caches) raises. All of them are deterministic, whatever `deterministic`
says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _library as native
from ._attention import attention
from ._call import invalid
from ._masks import Mask, element_mask, index_text


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise native.Unsupported(
            "UNSUPPORTED",
            f"dropout_p is {dropout_p}: Rota serves no dropout; pass 0.0 (in evaluation, "
            "0.0 if not self.training)",
        )


def _window_mask(causal: bool, window_size: Sequence[int]) -> Optional[str]:
    """flash-attn's meaning: (left, right), -1 for no limit, aligned with the last keys; causal is
    a right limit of 0."""
    left, right = window_size
    if causal:
        right = 0 if right < 0 else min(right, 0)
    if left < 0 and right < 0:
        return None
    if left < 0 and right == 0:
        return "causal"
    sides = ["math.huge" if side < 0 else str(int(side)) for side in (left, right)]
    return f"window({sides[0]}, {sides[1]})"


def _bias(
    softcap: float, alibi_slopes: Optional[Tensor]
) -> tuple[Optional[str], Optional[dict[str, Tensor]]]:
    """The cap first, then ALiBi, as flash-attn does."""
    parts, tensors = [], None
    if softcap > 0:
        parts.append(f"softcap({float(softcap)!r})")
    if alibi_slopes is not None:
        index = "b, h" if alibi_slopes.dim() == 2 else "h"
        parts.append(f'score("s - slope[{index}] * abs(q + n_k - n_q - k)")')
        tensors = {"slope": alibi_slopes}
    return " >> ".join(parts) or None, tensors


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_func: q [batch, tokens, heads, head_dim]; causal is aligned with the
    last keys. With return_attn_probs: (o, lse, None); the probabilities are never there."""
    _refuse_dropout(dropout_p)
    score, tensors = _bias(softcap, alibi_slopes)
    mask = _window_mask(causal, window_size)
    found = attention(q, k, v, mask, score, tensors, softmax_scale, return_lse=return_attn_probs)
    return (*found, None) if return_attn_probs else found


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_qkvpacked_func: qkv [batch, tokens, 3, heads, head_dim], read in
    place."""
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise invalid(f"qkv {list(qkv.shape)}: [batch, tokens, 3, heads, head_dim] is expected")
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
) -> Any:
    """flash_attn.flash_attn_varlen_func: q [tokens, heads, head_dim] and offsets. max_seqlen_* are
    not needed: the offsets say it."""
    _refuse_dropout(dropout_p)
    if block_table is not None:
        raise native.Unsupported("UNSUPPORTED", "block_table: paged caches are not served")
    score, tensors = _bias(softcap, alibi_slopes)
    mask = _window_mask(causal, window_size)
    found = attention(
        q, k, v, mask, score, tensors, softmax_scale, return_lse=return_attn_probs,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
    )  # fmt: skip
    return (*found, None) if return_attn_probs else found


# ---- torch.nn.functional --------------------------------------------------------------------


def _four_dims(tensor: Tensor, lead: Sequence[int]) -> Tensor:
    """[.., heads, tokens, dim] as [batch, heads, tokens, dim]; `lead`: the dims before heads."""
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() == 3:
        return tensor[:, None]  # torch calls this dimension a batch
    if tensor.dim() == 4 and tensor.shape[0] == lead[0]:
        return tensor  # a view would cost as much as the launch
    return tensor.expand(*lead, *tensor.shape[-3:]).flatten(0, -4)


def _mask_dims(mask: Tensor, rank: int, lead: Sequence[int]) -> Tensor:
    """A mask that broadcasts to [.., heads, tokens, keys] in four dimensions of full size or 1."""
    if mask.dim() > rank or mask.dim() < 2:
        raise invalid(f"attn_mask {list(mask.shape)} does not broadcast to the scores")
    mask = mask[(None,) * (rank - mask.dim())]
    if rank == 2:
        return mask[None, None]
    if rank == 3:
        return mask[:, None]
    if all(extent == 1 for extent in mask.shape[:-3]):
        return mask.flatten(0, -4)
    return mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)


def _sdpa_mask(
    attn_mask: Tensor, rank: int, lead: Sequence[int], full: Sequence[int], dtype: torch.dtype
) -> tuple[Union[None, str, Mask], Optional[str], Optional[dict[str, Tensor]]]:
    """(mask, score, tensors). A bool mask says who may attend, a float one is added to scores."""
    mask = _mask_dims(attn_mask, rank, lead)
    for extent, wanted in zip(mask.shape, full):
        if extent not in (1, wanted):
            raise invalid(f"attn_mask {list(attn_mask.shape)} does not broadcast to {list(full)}")
    if mask.dtype == torch.bool:
        return element_mask("attn_mask", mask), None, None
    if mask.dtype not in (dtype, torch.float32):
        raise invalid(f"attn_mask is {mask.dtype}: bool, float32 or q's {dtype} is expected")
    score = f'score("s + attn_bias[{index_text(mask.shape)}]")'
    return None, score, {"attn_bias": mask}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention: query [.., heads, tokens, head_dim];
    is_causal is aligned with the first keys, as torch's is. A bool attn_mask is planned with on
    the host: prefer rota.attention with an expression where lengths are long."""
    _refuse_dropout(dropout_p)
    if attn_mask is not None and is_causal:
        raise invalid("attn_mask and is_causal exclude each other")
    rank = query.dim()
    if rank < 2 or key.dim() != rank or value.dim() != rank:
        raise invalid("query, key and value need the same number of dimensions, at least two")
    lead = query.shape[:-3]
    if key.shape[:-3] != lead or value.shape[:-3] != lead:
        lead = torch.broadcast_shapes(lead, key.shape[:-3], value.shape[:-3])
    q, k, v = (_four_dims(t, lead) for t in (query, key, value))
    if rank > 2 and not enable_gqa and q.shape[1] != k.shape[1]:
        raise invalid(
            f"query has {q.shape[1]} heads, key {k.shape[1]}: pass enable_gqa=True to share them"
        )
    mask: Union[None, str, Mask] = 'causal{align = "top_left"}' if is_causal else None
    score, tensors = None, None
    if attn_mask is not None:
        full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        mask, score, tensors = _sdpa_mask(attn_mask, rank, lead, full, query.dtype)
    o = attention(q, k, v, mask, score, tensors, scale, layout="bhsd")
    if rank > 4:
        return o.unflatten(0, lead)
    return o if rank == 4 else o[:, 0] if rank == 3 else o[0, 0]
