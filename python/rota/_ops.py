"""The custom operators torch.ops.rota.attention and attention_backward, their fake and autograd
registrations, and the short way past the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from . import _library as native
from ._call import (
    Context,
    check_gradient,
    check_inputs,
    empty_gradients,
    empty_outputs,
    forward_once,
    run_backward,
    run_forward,
)
from ._plain import attend_by, options_of, unobserved


@torch.library.custom_op("rota::attention", mutates_args=(), device_types=("cpu", "cuda"))
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor],
    seqused_q: Optional[Tensor],
    seqused_k: Optional[Tensor],
    sink: Optional[Tensor],
    tensors: Sequence[Tensor],
    names: str,
    values: str,
    mask: str,
    score: str,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    context = Context(
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, sink, tensors,
        names, values, mask, score, scale, deterministic,
    )  # fmt: skip
    return run_forward(q, k, v, context)


@attention_op.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, sink, *_rest):
    check_inputs(q, k, v, cu_seqlens_q is not None, sink)
    return empty_outputs(q, v)


@torch.library.custom_op("rota::attention_backward", mutates_args=(), device_types=("cpu", "cuda"))
def attention_backward_op(
    d_o: Tensor,
    d_lse: Optional[Tensor],
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor],
    seqused_q: Optional[Tensor],
    seqused_k: Optional[Tensor],
    sink: Optional[Tensor],
    tensors: Sequence[Tensor],
    names: str,
    values: str,
    mask: str,
    score: str,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    context = Context(
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, sink, tensors,
        names, values, mask, score, scale, deterministic,
    )  # fmt: skip
    return run_backward(d_o, d_lse, o, lse, q, k, v, context)[0]


@attention_backward_op.register_fake
def _(d_o, d_lse, o, lse, q, k, v, cu_q, cu_k, used_q, used_k, sink, *_rest):
    check_gradient(d_o, d_lse, o, lse, q, v)
    return empty_gradients(q, k, v, sink)


# ---- Autograd -------------------------------------------------------------------------------


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, cu_q, cu_k, used_q, used_k, sink, tensors, *rest = inputs
    ctx.save_for_backward(*output, q, k, v, cu_q, cu_k, used_q, used_k, sink, *tensors)
    ctx.rest, ctx.tensor_count = rest, len(tensors)


def _differentiate(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
    nothing = (None,) * 4
    if d_o is None and d_lse is None:
        return (None,) * 8 + ([None] * ctx.tensor_count,) + (None,) * 6
    o, lse, q, k, v, cu_q, cu_k, used_q, used_k, sink, *tensors = ctx.saved_tensors
    d_o = torch.zeros_like(o) if d_o is None else d_o
    d_q, d_k, d_v, d_sink = attention_backward_op(
        d_o, d_lse, o, lse, q, k, v, cu_q, cu_k, used_q, used_k, sink, tensors, *ctx.rest
    )
    d_sink = d_sink if sink is not None else None
    return (d_q, d_k, d_v, *nothing, d_sink, [None] * ctx.tensor_count, *(None,) * 6)


attention_op.register_autograd(_differentiate, setup_context=_save)


def _refuse(ctx: Any, *_gradients: Any) -> Any:
    raise native.Unsupported(
        "UNSUPPORTED",
        "rota.attention has no second derivative: its gradients cannot be differentiated again "
        "(drop create_graph=True, or use torch's math attention for that part)",
    )


attention_backward_op.register_autograd(_refuse)


# ---- Without the dispatcher -----------------------------------------------------------------
# As in _plain.py, for calls with a sink or tensors of a score, or whose backward pass is chosen.


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], context: Context
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        o, lse, made = forward_once(q, k, v, context)
        # What the context holds is saved too, so that torch notices a change before the backward.
        ctx.save_for_backward(q, k, v, o, lse, made.mean_square, *context[:5], *context.tensors)
        ctx.context = context
        return o, lse

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]
    ) -> Any:
        if d_o is None and d_lse is None:
            return None, None, None, None, None
        q, k, v, o, lse, mean_square, *_ = ctx.saved_tensors
        d_o = torch.zeros_like(o) if d_o is None else d_o
        context: Context = ctx.context
        if torch.is_grad_enabled() or not unobserved(q, k, v):  # create_graph, or traced
            found = attention_backward_op(d_o, d_lse, o, lse, q, k, v, *context.of_operator())
        else:
            found, _ = run_backward(d_o, d_lse, o, lse, q, k, v, context, mean_square)
        return (*found[:3], found[3] if context.sink is not None else None, None)


def attend(q: Tensor, k: Tensor, v: Tensor, context: Context, with_lse: bool = True) -> Any:
    """o, or (o, lse), by the operator where it must be seen and directly where not."""
    if torch.compiler.is_compiling() or not unobserved(q, k, v):
        found = attention_op(q, k, v, *context.of_operator())
    else:
        options = options_of(context)
        if options is not None:
            return attend_by(options, q, k, v, with_lse)
        if torch.is_grad_enabled():
            found = _Attention.apply(q, k, v, context.sink, context)
        else:
            found = run_forward(q, k, v, context)
    return found if with_lse else found[0]
