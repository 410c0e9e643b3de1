"""rota.attention and what reads its arguments the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union, overload

import torch
from torch import Tensor

from . import _library as native
from . import _plans
from ._call import DTYPES, Context, check_inputs, invalid, plans_of_call
from ._masks import Mask
from ._ops import attend
from ._plain import attend_plainly

Lengths = Union[Tensor, Sequence[int]]
_LAYOUTS = ("bshd", "bhsd")


def _lengths(given: Optional[Lengths]) -> Optional[Tensor]:
    if given is None or isinstance(given, Tensor):
        return given
    return torch.tensor(list(given), dtype=torch.int32)


def _autocast(q: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return (q, *others)
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if t.dtype in DTYPES else t for t in (q, *others))


def _score_tensor(name: str, tensor: Tensor) -> Tensor:
    """Float tensors go to the kernel as float32; their gradients are not computed."""
    if not tensor.is_floating_point():
        return tensor
    if tensor.requires_grad and torch.is_grad_enabled():
        raise native.Unsupported(
            "UNSUPPORTED",
            f"tensor '{name}' requires a gradient, which Rota does not compute for tensors of a "
            "score: pass tensor.detach(), or add the bias outside",
        )
    return tensor.detach().to(torch.float32)


def _text(expression: Union[None, str, Mask]) -> str:
    if expression is None:
        return ""
    return expression.text if isinstance(expression, Mask) else expression


def _operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Union[None, str, Mask] = None,
    score: Optional[str] = None,
    tensors: Optional[Mapping[str, Tensor]] = None,
    scale: Optional[float] = None,
    deterministic: bool = True,
    *,
    values: Optional[Mapping[str, float]] = None,
    sink: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    cu_seqlens_k: Optional[Lengths] = None,
    seqused_q: Optional[Lengths] = None,
    seqused_k: Optional[Lengths] = None,
    backward: str = "auto",
    bound: str = "norm",
    layout: str = "bshd",
) -> tuple[tuple[Tensor, Tensor, Tensor], Context]:
    """The operator's operands: tensors as [batch, row, head, dim], all else in order."""
    if layout not in _LAYOUTS:
        raise invalid(
            f"layout {layout!r}: 'bshd' (as flash-attn) or 'bhsd' (as torch) is expected"
        )
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise invalid("cu_seqlens_q and cu_seqlens_k go together")
    if scale is not None and scale == 0:
        raise invalid("scale 0 would make all keys equal; leave it out for 1/sqrt(head_dim)")
    packed = cu_seqlens_q is not None
    if layout == "bhsd" and not packed:
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
            raise invalid("layout 'bhsd': q, k and v must be [batch, heads, tokens, head_dim]")
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    q, k, v = _autocast(q, k, v)
    named = dict(mask.tensors) if isinstance(mask, Mask) else {}
    for name, tensor in (tensors or {}).items():
        if name in named:
            raise invalid(f"tensor '{name}' is given twice: by the mask and in `tensors`")
        named[name] = tensor
    context = Context(
        _lengths(cu_seqlens_q),
        _lengths(cu_seqlens_k),
        _lengths(seqused_q),
        _lengths(seqused_k),
        sink.float() if sink is not None else None,
        [_score_tensor(name, tensor) for name, tensor in named.items()],
        ",".join(named),
        ",".join([f"{name}={float(value)!r}" for name, value in (values or {}).items()]),
        _text(mask),
        score or "",
        0.0 if scale is None else float(scale),
        bool(deterministic),
        backward,
        bound,
    )
    return (q, k, v), context


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Union[None, str, Mask] = None,
    score: Optional[str] = None,
    tensors: Optional[Mapping[str, Tensor]] = None,
    scale: Optional[float] = None,
    deterministic: bool = True,
    return_lse: Literal[False] = False,
    layout: str = "bshd",
    *,
    values: Optional[Mapping[str, float]] = None,
    sink: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    cu_seqlens_k: Optional[Lengths] = None,
    seqused_q: Optional[Lengths] = None,
    seqused_k: Optional[Lengths] = None,
    backward: str = "auto",
    bound: str = "norm",
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Union[None, str, Mask] = None,
    score: Optional[str] = None,
    tensors: Optional[Mapping[str, Tensor]] = None,
    scale: Optional[float] = None,
    deterministic: bool = True,
    *,
    return_lse: Literal[True],
    layout: str = "bshd",
    values: Optional[Mapping[str, float]] = None,
    sink: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    cu_seqlens_k: Optional[Lengths] = None,
    seqused_q: Optional[Lengths] = None,
    seqused_k: Optional[Lengths] = None,
    backward: str = "auto",
    bound: str = "norm",
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Union[None, str, Mask] = None,
    score: Optional[str] = None,
    tensors: Optional[Mapping[str, Tensor]] = None,
    scale: Optional[float] = None,
    deterministic: bool = True,
    return_lse: bool = False,
    layout: str = "bshd",
    *,
    values: Optional[Mapping[str, float]] = None,
    sink: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    cu_seqlens_k: Optional[Lengths] = None,
    seqused_q: Optional[Lengths] = None,
    seqused_k: Optional[Lengths] = None,
    backward: str = "auto",
    bound: str = "norm",
) -> Union[Tensor, tuple[Tensor, Tensor]]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Union[None, str, Mask] = None,
    score: Optional[str] = None,
    tensors: Optional[Mapping[str, Tensor]] = None,
    scale: Optional[float] = None,
    deterministic: bool = True,
    return_lse: bool = False,
    layout: str = "bshd",
    *,
    values: Optional[Mapping[str, float]] = None,
    sink: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    cu_seqlens_k: Optional[Lengths] = None,
    seqused_q: Optional[Lengths] = None,
    seqused_k: Optional[Lengths] = None,
    backward: str = "auto",
    bound: str = "norm",
) -> Any:
    """softmax(score(scale * q k^T) where mask) v, with gradients that repeat bit for bit.

    q, k, v: [batch, tokens, heads, head_dim] ("bshd"), [batch, heads, tokens, head_dim] ("bhsd"),
    or, with cu_seqlens_*, [tokens, heads, head_dim]; bfloat16, float16 or float32; any strides;
    on a CPU or a GPU. Fewer heads in k and v are shared by groups of q's.

    mask, score: expressions in the vocabulary of lua/masks.lua and lua/scores.lua, such as
    "causal & window(4096, 0)" and "softcap(30)"; tensors: what they name, integers for masks,
    floats (without gradients) for scores; values: numbers in place of their parameters' own.
    scale: default 1/sqrt(head_dim). sink: one logit per head that joins the softmax's denominator.

    cu_seqlens_*: batch + 1 offsets; seqused_*: used length per sequence. On a GPU they, like
    tensors of masks, are copied to the host once; lists and CPU tensors cost no copy.

    backward: "ordered", "exact", "two_pass" ... in place of what is chosen; "exact" may come with
    bound="spread", tighter than "norm" where V has outliers, for which the forward pass saves one
    more number a row.

    Returns o, or (o, lse) with lse float32 [batch, heads, tokens] or [heads, tokens].
    deterministic=False allows, but does not demand, a faster algorithm whose bits vary.
    """
    if (
        not torch.compiler.is_compiling()
        and backward == "auto"
        and bound == "norm"
        and tensors is None
        and values is None
        and sink is None
        and cu_seqlens_q is None
        and cu_seqlens_k is None
        and seqused_q is None
        and seqused_k is None
        and (mask is None or isinstance(mask, str))
        and layout in _LAYOUTS
        and scale != 0
        and q.dim() == k.dim() == v.dim() == 4
    ):
        found = attend_plainly(
            q, k, v, mask, score, scale, deterministic, layout == "bhsd", return_lse
        )
        if found is not None:
            return found
    operands, context = _operands(
        q, k, v, mask, score, tensors, scale, deterministic,
        values=values, sink=sink, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q, seqused_k=seqused_k, backward=backward, bound=bound, layout=layout,
    )  # fmt: skip
    found = attend(*operands, context, return_lse)
    if layout == "bhsd" and cu_seqlens_q is None:
        return (found[0].transpose(1, 2), found[1]) if return_lse else found.transpose(1, 2)
    return found


def digest(*arguments: Any, **options: Any) -> str:
    """32 hex digits that change whenever the bits of results could. Log it beside a checkpoint.

    With attention()'s arguments: of that call's forward and backward pass. Without any: of all
    plans that this process has made so far."""
    if not arguments and not options:
        return _plans.digest_of_process()
    options.pop("return_lse", None)
    (q, k, v), context = _operands(*arguments, **options)
    check_inputs(q, k, v, context.cu_seqlens_q is not None, context.sink)
    plans = plans_of_call(q, k, v, context)
    return _plans.combine_digests([plan.digest for plan in plans])
