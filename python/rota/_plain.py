"""Plain calls: q, k, v and what is planned with, no other tensors on the GPU. Most calls are, and
are repeated with the same shapes thousands of times, so that what is the same each time is worked
out once: a Recipe. What is left per call is to allocate outputs, write addresses into a block and
hand it over.

Nobody may look on here (see unobserved): a custom operator costs a few hundred microseconds a call
in torch's Python, an autograd function a tenth of that.
"""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _library as native
from ._call import (
    DTYPES,
    Context,
    Made,
    checks_determinism,
    current_stream,
    forward_once,
    is_capturing,
    note_use,
    run_backward,
)
from ._host import HostCopy, host_copy
from ._plans import Cache, Plan, pack_arguments

_PLAIN = (Tensor, torch.nn.Parameter)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
_unwrap = getattr(getattr(torch._C, "_functorch", None), "unwrap_if_dead", lambda tensor: tensor)
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device


def unobserved(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """No tracing, no dispatch mode, no functorch transform."""
    return (
        type(q) in _PLAIN
        and type(k) in _PLAIN
        and type(v) in _PLAIN
        and _modes is not None
        and _transforms is not None
        and _modes() == 0
        and _transforms() is None
    )


def _autocasts(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether autocast would change a dtype."""
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return False
    dtype = torch.get_autocast_dtype(kind)
    return any(t.dtype in DTYPES and t.dtype is not dtype for t in (q, k, v))


# ---- Recipes --------------------------------------------------------------------------------


class _Block:
    """rota_arguments in memory, for one run at a time."""

    __slots__ = ("memory", "words", "address")

    def __init__(self, template: bytes):
        self.memory = bytearray(template)
        self.words = memoryview(self.memory).cast("Q")
        self.address = c.addressof(c.c_char.from_buffer(self.memory))


# Workspaces up to this size are kept, one per stream and thread that launches at once: what a
# stream runs, it runs in order. Only for torch's own streams (Plan.streams): another's address may
# come to name a new stream while the old one still runs. Larger ones are allocated, which takes
# less than their kernels do.
_SPACE_KEPT = 1 << 20
_STREAMS_KEPT = 16
_spaces: dict[tuple[int, int], list[Tensor]] = {}


def _pattern(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """For empty_like, which is faster than to name a size, a dtype and a device; holds one element
    at most. (Of a single one, expanded, empty_like would keep the strides of 0.)"""
    options: Any = dict(dtype=dtype, device=device)
    return (
        torch.empty(1, **options).expand(size) if prod(size) > 1 else torch.empty(size, **options)
    )


class _Recipe:
    """What is the same in every run with the same sizes and strides."""

    __slots__ = (
        "plan", "address_mask", "template", "spare", "device", "ordinal", "workspace", "space",
        "outputs", "strides", "metadata", "backwards", "covered",
    )  # fmt: skip

    def __init__(self, made: Made, device: torch.device):
        aligned = made.layout == native.LAYOUT_ALIGNED
        self.plan = weakref.ref(made.plan)
        # Made for aligned tensors: an odd address needs another plan.
        self.address_mask = 15 if aligned else 0
        self.template = pack_arguments([(0, *view[1:]) for view in made.views])
        self.spare: list[_Block] = []
        self.device, self.ordinal = device, device.index if device.type == "cuda" else -1
        self.workspace = made.plan.workspace_size
        # Space on a CPU is aligned by hand.
        rest = 0 if self.ordinal >= 0 else 256
        self.space = _pattern((self.workspace + rest,), torch.uint8, device)
        # (size, strides) of what is to be allocated; None: as empty_like makes it of the inputs.
        # Of a forward pass also what lse is to be like.
        self.outputs: Any = None
        self.strides: Any = None  # of q, k and v
        self.metadata: Any = None  # of q, k, v, o and lse
        self.backwards: dict[Any, _Recipe] = {}  # by the strides of dO
        self.covered = made.covered

    def ready(self, addresses: int) -> Optional[Plan]:
        """The plan if this recipe serves these addresses (all of them or-ed) now."""
        if addresses & self.address_mask:
            return None
        plan = self.plan()
        if plan is None or plan.dropped:
            return None
        if self.ordinal >= 0 and _current_device() != self.ordinal:
            return None
        plan.fresh = True
        return plan

    def block(self) -> _Block:
        try:
            return self.spare.pop()
        except IndexError:
            return _Block(self.template)

    def run(self, plan: Plan, block: _Block) -> None:
        size = self.workspace
        if self.ordinal >= 0:
            stream = current_stream(self.ordinal)
            capturing = is_capturing()
            if size == 0:
                plan.run(block.address, 0, 0, stream)
            elif size > _SPACE_KEPT or capturing or stream not in plan.streams:
                memory = torch.empty_like(self.space)
                plan.run(block.address, memory.data_ptr(), size, stream)
            else:
                self._run_in_kept_space(plan, block, stream)
            if capturing or plan.dropped or stream not in plan.streams:
                note_use(plan, self.device, stream)
        elif size == 0:
            plan.run(block.address, 0, 0)
        else:
            memory = torch.empty_like(self.space)
            address = memory.data_ptr()
            plan.run(block.address, address + -address % 256, size)
        self.spare.append(block)

    def _run_in_kept_space(self, plan: Plan, block: _Block, stream: int) -> None:
        spare = _spaces.get((self.ordinal, stream))
        if spare is None:
            if len(_spaces) >= _STREAMS_KEPT:
                _spaces.clear()
            spare = _spaces[self.ordinal, stream] = []
        try:
            memory = spare.pop()
        except IndexError:
            memory = torch.empty(_SPACE_KEPT, dtype=torch.uint8, device=self.device)
        plan.run(block.address, memory.data_ptr(), self.workspace, stream)
        spare.append(memory)


_RECIPES_KEPT = 1024


def _recipe_of(made: Made, q: Tensor) -> Optional[_Recipe]:
    """Unless strides had to be mended, or an odd address made the run take the slower layout."""
    odd = made.layout == native.LAYOUT_ANY and any(view[0] % 16 for view in made.views)
    return None if made.copied or odd else _Recipe(made, q.device)


def _keep(recipes: dict[Any, _Recipe], key: Any, recipe: _Recipe) -> None:
    """Once it is complete: other threads find it at once."""
    if len(recipes) >= _RECIPES_KEPT:
        recipes.clear()
    recipes[key] = recipe


# ---- Calls ----------------------------------------------------------------------------------


def _turned(tensor: Tensor) -> Tensor:
    """Between [batch, head, row, dim] and [batch, row, head, dim]; no view as far as autograd can
    see."""
    return tensor.transpose(1, 2).data


def _metadata(*tensors: Tensor) -> list[Any]:
    return [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]


# A forward run by recipe: the recipe, and the addresses of q, k, v, o and lse.
Trace = tuple[_Recipe, tuple[int, int, int, int, int]]


class Options:
    """Of plain calls, with the recipes of those seen so far."""

    __slots__ = ("context", "heads_first", "recipes")

    def __init__(self, context: Context, heads_first: bool):
        self.context, self.heads_first = context, heads_first
        self.recipes: dict[Any, _Recipe] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Optional[Trace]]:
        signature = (
            q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
            q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
        )  # fmt: skip
        recipe = self.recipes.get(signature)
        if recipe is None:
            return self._forward_first(signature, q, k, v)
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        like_q, size_o, stride_o, like_lse = recipe.outputs
        if like_q:
            o = torch.empty_like(q)
        else:
            o = torch.empty_strided(size_o, stride_o, dtype=q.dtype, device=recipe.device)
        at_o = o.data_ptr()
        plan = recipe.ready(at_q | at_k | at_v | at_o)
        if plan is None:
            return self._forward_first(signature, q, k, v)
        lse = torch.empty_like(like_lse)
        if not recipe.covered[0]:
            o.zero_()
            lse.fill_(float("-inf"))
        block = recipe.block()
        words = block.words
        words[0], words[4], words[8], words[12] = at_q, at_k, at_v, at_o
        words[16] = at_lse = lse.data_ptr()
        recipe.run(plan, block)
        return o, lse, (recipe, (at_q, at_k, at_v, at_o, at_lse))

    def _forward_first(
        self, signature: Any, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        if self.heads_first:
            turned = [_turned(t) for t in (q, k, v)]
            o, lse, made = forward_once(turned[0], turned[1], turned[2], self.context)
            o = _turned(o)
        else:
            o, lse, made = forward_once(q, k, v, self.context)
        recipe = _recipe_of(made, q)
        if recipe is not None:
            like = torch.empty_like(q)
            like_q = like.shape == o.shape and like.stride() == o.stride()
            like_lse = _pattern(lse.shape, torch.float32, q.device)
            recipe.outputs = (like_q, tuple(o.shape), o.stride(), like_lse)
            recipe.strides = (q.stride(), k.stride(), v.stride())
            recipe.metadata = _metadata(q, k, v, o, lse)
            _keep(self.recipes, signature, recipe)
        return o, lse, None

    def backward(
        self,
        trace: Optional[Trace],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        d_o: Tensor,
    ) -> Sequence[Tensor]:
        if trace is None or checks_determinism():
            return self.backward_first(None, q, k, v, o, lse, d_o, None)
        forward, at_forward = trace
        at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())
        # The tensors of the forward run: q, k and v may only have got other strides. Others come
        # from hooks: recomputed, or brought back from elsewhere.
        if at == at_forward:
            same = (q.stride(), k.stride(), v.stride()) == forward.strides
        else:
            same = _metadata(q, k, v, o, lse) == forward.metadata
        if not same:
            return self.backward_first(None, q, k, v, o, lse, d_o, None)
        recipe = forward.backwards.get(d_o.stride())
        if recipe is None:
            return self.backward_first(forward, q, k, v, o, lse, d_o, None)
        if recipe.outputs is None:
            d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        else:
            d_q, d_k, d_v = [
                torch.empty_strided(size, stride, dtype=q.dtype, device=recipe.device)
                for size, stride in recipe.outputs
            ]
        a, b, e, f, at_lse = at
        g, h, i, j = d_o.data_ptr(), d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr()
        plan = recipe.ready(a | b | e | f | g | h | i | j)
        if plan is None:
            return self.backward_first(forward, q, k, v, o, lse, d_o, None)
        if not recipe.covered[0]:
            d_q.zero_()
        if not recipe.covered[1]:
            d_k.zero_()
            d_v.zero_()
        block = recipe.block()
        words = block.words
        words[0], words[4], words[8], words[12], words[16] = a, b, e, f, at_lse
        words[20], words[24], words[28], words[32] = g, h, i, j
        recipe.run(plan, block)
        return d_q, d_k, d_v

    def backward_first(
        self,
        forward: Optional[_Recipe],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        d_o: Tensor,
        d_lse: Optional[Tensor],
    ) -> Sequence[Tensor]:
        """`forward`: whose inputs these are, to keep what was worked out with it."""
        given = [q, k, v, o, d_o]
        turned = [_turned(t) for t in given] if self.heads_first else given
        (*found, _), made = run_backward(
            turned[4], d_lse, turned[3], lse, turned[0], turned[1], turned[2], self.context
        )
        if self.heads_first:
            found = [_turned(t) for t in found]
        if forward is not None:
            recipe = _recipe_of(made, q)
            alike = all(torch.empty_like(t).stride() == f.stride() for t, f in zip(given, found))
            if recipe is not None:
                if not alike:
                    recipe.outputs = [(tuple(t.shape), t.stride()) for t in found]
                _keep(forward.backwards, d_o.stride(), recipe)
        return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options, with_lse: bool
    ) -> Any:
        o, lse, trace = options.forward(q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options, trace
        if not with_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor] = None
    ) -> Any:
        if d_o is None and d_lse is None:
            return None, None, None, None, None
        q, k, v, o, lse = ctx.saved_tensors
        d_o = torch.zeros_like(o) if d_o is None else d_o
        options, trace = ctx.options
        if torch.is_grad_enabled() or not unobserved(q, k, v):  # create_graph, or traced
            return *_observed_backward(options, q, k, v, o, lse, d_o, d_lse), None, None
        if d_lse is None:
            d_q, d_k, d_v = options.backward(trace, q, k, v, o, lse, d_o)
        else:
            d_q, d_k, d_v = options.backward_first(None, q, k, v, o, lse, d_o, d_lse)
        return d_q, d_k, d_v, None, None


# Function.apply itself first looks for functorch, where `unobserved` has found nothing.
_record: Any = super(torch.autograd.Function, _Attention).apply  # type: ignore
# And its node's apply looks up and compares methods, to find the one above.
if hasattr(_Attention, "_backward_cls"):
    _Attention._backward_cls.apply = _Attention.backward


def _observed_backward(
    options: Options,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    d_o: Tensor,
    d_lse: Optional[Tensor],
) -> Sequence[Tensor]:
    from ._ops import attention_backward_op

    given = [d_o, o, q, k, v]
    if options.heads_first:
        given = [t.transpose(1, 2) for t in given]
    d_o, o, q, k, v = given
    found = attention_backward_op(d_o, d_lse, o, lse, q, k, v, *options.context.of_operator())[:3]
    return [t.transpose(1, 2) for t in found] if options.heads_first else found


@lru_cache(maxsize=256)
def _options(
    mask: Optional[str],
    score: Optional[str],
    scale: Optional[float],
    deterministic: bool,
    heads_first: bool,
) -> Options:
    context = Context(
        None, None, None, None, None, [], "", "", mask or "", score or "",
        0.0 if scale is None else float(scale), bool(deterministic),
    )  # fmt: skip
    return Options(context, heads_first)


def attend_plainly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[str],
    score: Optional[str],
    scale: Optional[float],
    deterministic: bool,
    heads_first: bool,
    with_lse: bool,
) -> Any:
    """o, or (o, lse); None if the call must be seen (by a tracer) or changed (by autocast)."""
    if not unobserved(q, k, v) or (_any_autocast() and _autocasts(q, k, v)):
        return None
    options = _options(mask, score, scale, deterministic, heads_first)
    return attend_by(options, q, k, v, with_lse)


# Packed sequences, used lengths and tensors of masks: what they contain is part of the options.
_OPTIONS_KEPT = 64
_by_content: Cache[Options] = Cache(_OPTIONS_KEPT)


def options_of(context: Context) -> Optional[Options]:
    """None if the context holds tensors that each run passes, a sink or a score's, or names the
    backward algorithm."""
    passed = context.sink is not None or any(t.is_floating_point() for t in context.tensors)
    if passed or context.backward != "auto":
        return None
    names = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", *context.names.split(","))
    given = (*context[:4], *context.tensors)
    copies: list[Optional[HostCopy]] = []
    for i, (tensor, name) in enumerate(zip(given, names)):
        if tensor is None:
            copies.append(None)
        elif i == 1 and tensor is given[0]:
            copies.append(copies[0])
        else:
            copies.append(host_copy(tensor, name if i < 4 else f"tensor '{name}'"))
    key = (*[copy and (copy.size, copy.key) for copy in copies], context[6:])
    options = _by_content.get(key)
    if options is None:
        # Copies: whatever becomes of the caller's tensors, a backward pass goes by these.
        kept = [copy.tensor.clone() if copy else None for copy in copies]
        tensors = [t for t in kept[4:] if t is not None]
        cu_q, cu_k, used_q, used_k = kept[:4]
        options = Options(Context(cu_q, cu_k, used_q, used_k, None, tensors, *context[6:]), False)
        _by_content.put(key, options)
    return options


def attend_by(options: Options, q: Tensor, k: Tensor, v: Tensor, with_lse: bool) -> Any:
    q, k, v = _unwrap(q), _unwrap(k), _unwrap(v)  # what a finished transform left behind
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    # A forward-mode derivative is refused there, by torch.
    if (wanted and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return _record(q, k, v, options, with_lse)
    o, lse, _ = options.forward(q, k, v)
    return (o, lse) if with_lse else o
