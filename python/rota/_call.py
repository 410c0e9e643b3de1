"""One call on torch tensors: checked, planned and launched. Tensors are [batch, row, head, dim],
packed [row, head, dim]; gradients are the caller's business.

Memory comes from torch's allocator and work goes to the current stream of the tensors' device;
nothing here waits for a GPU. Mask, score and parameters travel as text, so that a traced graph
holds them as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _library as native
from ._host import HostCopy, host_copy
from ._plans import (
    NO_TENSOR,
    Model,
    NamedTensor,
    Plan,
    PlanKey,
    Shape,
    Target,
    cached_plan,
    condemn,
    make_plan,
    named_array,
    pack_arguments,
)

DTYPES = {torch.bfloat16: native.BF16, torch.float16: native.FP16, torch.float32: native.FP32}

_check_determinism = False


def checks_determinism() -> bool:
    return _check_determinism


def set_deterministic_check(enabled: bool) -> None:
    """Runs every backward pass twice and compares the gradients bit for bit; a difference raises
    NondeterministicError. A debugging aid: it doubles the time and waits for the GPU."""
    global _check_determinism
    _check_determinism = bool(enabled)


def invalid(message: str) -> native.InvalidArgument:
    return native.InvalidArgument("INVALID_ARGUMENT", message)


# ---- Arguments ------------------------------------------------------------------------------


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"


def check_inputs(q: Tensor, k: Tensor, v: Tensor, packed: bool, sink: Optional[Tensor]) -> None:
    """Shapes, dtypes and devices; everything that tracing can know."""
    rank, size_q, size_k, size_v = 3 if packed else 4, q.shape, k.shape, v.shape
    if len(size_q) != rank or len(size_k) != rank or len(size_v) != rank:
        form = "[tokens, heads, head_dim]" if packed else "[batch, tokens, heads, head_dim]"
        raise invalid(f"{_shapes(q, k, v)}: each must be {form}")
    if q.dtype not in DTYPES:
        raise native.Unsupported(
            "UNSUPPORTED", f"dtype {q.dtype}: Rota takes bfloat16, float16 and float32"
        )
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise invalid(f"dtypes differ: q {q.dtype}, k {k.dtype}, v {v.dtype}")
    if k.device != q.device or v.device != q.device:
        raise invalid(f"devices differ: q {q.device}, k {k.device}, v {v.device}")
    if size_k[:-1] != size_v[:-1]:
        raise invalid(f"{_shapes(q, k, v)}: k and v must agree in all but the head dim")
    if size_q[-1] != size_k[-1]:
        raise invalid(f"{_shapes(q, k, v)}: q and k must have the same head dim")
    if not packed and size_q[0] != size_k[0]:
        raise invalid(f"{_shapes(q, k, v)}: batch sizes differ")
    heads, kv_heads = size_q[-2], size_k[-2]
    if heads == 0 or kv_heads == 0 or heads % kv_heads != 0:
        raise invalid(f"{_shapes(q, k, v)}: q's heads must be a multiple of k's")
    if sink is not None and (
        sink.shape != (heads,) or sink.dtype != torch.float32 or sink.device != q.device
    ):
        raise invalid(f"sink must be float32 [{heads}], one logit per head, on {q.device}")


class Context(NamedTuple):
    """What a call says beyond q, k and v: what the two operators share, in their order; then how,
    which operators cannot be told."""

    cu_seqlens_q: Optional[Tensor]
    cu_seqlens_k: Optional[Tensor]
    seqused_q: Optional[Tensor]
    seqused_k: Optional[Tensor]
    sink: Optional[Tensor]
    tensors: Sequence[Tensor]
    names: str  # of the tensors, with commas between
    values: str  # "window_left=512,slope=0.5"
    mask: str
    score: str
    scale: float
    deterministic: bool
    backward: str = "auto"
    bound: str = "norm"

    def of_operator(self) -> tuple[Any, ...]:
        if self.backward != "auto":
            raise native.Unsupported(
                "UNSUPPORTED",
                f"backward={self.backward!r} is for direct calls: neither torch.compile, functorch "
                "nor create_graph=True can see through one",
            )
        return self[:12]


@lru_cache(maxsize=1024)
def _parse_values(text: str) -> tuple[tuple[str, float], ...]:
    pairs = (item.partition("=") for item in text.split(",")) if text else ()
    return tuple((name, float(number)) for name, _, number in pairs)


def _offsets(tensor: Tensor, what: str, rows: int) -> tuple[bytes, bool]:
    """cu_seqlens on the host, and whether they cover all `rows`. librota checks that they ascend,
    but cannot know where the tensors end."""
    copy = host_copy(tensor, what)
    if len(copy.size) != 1 or copy.size[0] < 1:
        raise invalid(f"{what} must be one row of batch + 1 offsets, not {list(copy.size)}")
    ends = copy.tensor[:: max(copy.size[0] - 1, 1)].tolist()
    first, last = ends[0], ends[-1]
    if first < 0 or last > rows:
        raise invalid(f"{what} runs from {first} to {last}, but there are {rows} rows")
    return copy.bytes(), first == 0 and last == rows


class _Geometry(NamedTuple):
    shape: Shape
    q_covered: bool  # every row belongs to a sequence; else outputs begin as zeros
    k_covered: bool
    copies: list[Optional[HostCopy]]  # of the tensors; None: each run passes it


def _named(
    q: Tensor, context: Context
) -> tuple[tuple[NamedTensor, ...], list[Optional[HostCopy]]]:
    """Integer tensors belong to masks and are planned with; float ones go with each run."""
    if not context.names:
        return (), []
    entries: list[NamedTensor] = []
    copies: list[Optional[HostCopy]] = []
    for name, tensor in zip(context.names.split(","), context.tensors):
        if tensor.is_floating_point():
            if tensor.dtype != torch.float32 or tensor.device != q.device:
                raise invalid(f"tensor '{name}' of the score must be float32 on {q.device}")
            entries.append(NamedTensor(name, native.FP32, tuple(tensor.shape)))
            copies.append(None)
        else:
            copy = host_copy(tensor, f"tensor '{name}'")
            entries.append(NamedTensor(name, native.INT32, copy.size, copy.key))
            copies.append(copy)
    return tuple(entries), copies


def _used(tensor: Optional[Tensor], what: str, batch: int) -> bytes | None:
    if tensor is None:
        return None
    copy = host_copy(tensor, what)
    if copy.size != (batch,):
        raise invalid(f"{what} must be [{batch}], one length per sequence, not {list(copy.size)}")
    return copy.bytes()


def _geometry(q: Tensor, k: Tensor, context: Context) -> _Geometry:
    entries, copies = _named(q, context)
    batch, n_q, n_k, cu_q, cu_k, q_covered, k_covered = 0, 0, 0, None, None, True, True
    if context.cu_seqlens_q is not None and context.cu_seqlens_k is not None:
        cu_q, q_covered = _offsets(context.cu_seqlens_q, "cu_seqlens_q", q.shape[0])
        cu_k, k_covered = _offsets(context.cu_seqlens_k, "cu_seqlens_k", k.shape[0])
        if len(cu_q) != len(cu_k):
            raise invalid("cu_seqlens_q and cu_seqlens_k differ in length")
        batch = len(cu_q) // 4 - 1
    else:
        batch, n_q, n_k = q.shape[0], q.shape[1], k.shape[1]
    shape = Shape(
        batch,
        n_q,
        n_k,
        q.shape[-2],
        k.shape[-2],
        cu_q,
        cu_k,
        _used(context.seqused_q, "seqused_q", batch),
        _used(context.seqused_k, "seqused_k", batch),
        entries,
        _parse_values(context.values),
    )
    return _Geometry(shape, q_covered, k_covered, copies)


def _dense_dim(tensor: Tensor) -> Tensor:
    """Kernels take any strides but the head dim's, which must be 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _view(tensor: Tensor) -> tuple[int, int, int, int]:
    """(address, batch, row, head stride) of a [.., row, head, dim] tensor. A dimension of size 1
    gets stride 0, whatever torch says: nothing steps along it."""
    size, stride = tensor.shape, tensor.stride()
    batch = stride[0] if len(size) == 4 and size[0] > 1 else 0
    row = stride[-3] if size[-3] > 1 else 0
    return tensor.data_ptr(), batch, row, stride[-2] if size[-2] > 1 else 0


def _view_lse(lse: Tensor) -> tuple[int, int, int, int]:
    """Of a [.., head, row] tensor of floats."""
    stride = lse.stride()
    if len(stride) == 2:
        return lse.data_ptr(), 0, stride[1], stride[0]
    return lse.data_ptr(), stride[0], stride[2], stride[1]


def _layout(views: Sequence[tuple[int, int, int, int]], itemsize: int, *dims: int) -> int:
    """The aligned class if 16-byte loads reach every row of every tensor."""
    step = 16 // itemsize
    bits = 0
    for dim in dims:
        bits |= dim % step
    for address, batch, row, head in views:
        bits |= address % 16 | batch % step | row % step | head % step
    return native.LAYOUT_ANY if bits else native.LAYOUT_ALIGNED


# ---- Plans and launches ---------------------------------------------------------------------


def _model(q: Tensor, k: Tensor, v: Tensor, context: Context) -> Model:
    return Model(
        DTYPES[q.dtype],
        q.shape[-1],
        v.shape[-1],
        q.shape[-2] // k.shape[-2],
        context.mask,
        context.score,
        context.scale,
        context.sink is not None,
        context.deterministic,
        context.backward,
        context.bound,
    )


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _plan_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Context,
    direction: int,
    layout: int,
    geometry: _Geometry,
) -> PlanKey:
    device = q.device
    kind = native.DEVICE_CUDA if device.type == "cuda" else native.DEVICE_CPU
    target = Target(direction, kind, device.index or 0, layout)
    return PlanKey(_model(q, k, v, context), target, geometry.shape)


def find_plan(key: PlanKey, device: torch.device, geometry: _Geometry) -> Plan:
    plan = cached_plan(key)
    if plan is None:
        if _capturing(device):
            raise native.NotPrepared(
                "NOT_PREPARED",
                "the first call with this model and shape would compile and plan, and a stream "
                "is being captured: call forward and backward once before capturing",
            )
        addresses = [copy.address if copy else None for copy in geometry.copies]
        plan = make_plan(key, addresses)
    return plan


def _current_stream(ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream


# Ten times faster, if it is there.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)


# Stream ids of torch's own streams, which live as long as the process, are small; one that the
# caller made goes by its address, of which CUDA gives two out to all: 1, and 2, each thread's own.
_OWN_STREAMS = 1 << 20
_SHARED_ADDRESSES = (1, 2)
is_capturing = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


def note_use(plan: Plan, device: torch.device, stream: int) -> None:
    """So that the plan outlives its launches: graphs for good, streams until they are done."""
    if is_capturing():
        plan.pinned = True
    elif stream not in plan.streams:
        current = torch.cuda.current_stream(device)
        if current.stream_id < _OWN_STREAMS and stream not in _SHARED_ADDRESSES:
            plan.streams[stream] = current
        else:
            plan.events[stream] = current.record_event(plan.events.get(stream))
    if plan.dropped:
        condemn(plan)


def _launch(
    plan: Plan,
    q: Tensor,
    context: Context,
    views: Sequence[tuple[int, int, int, int]],
    d_sink: Optional[Tensor] = None,
) -> None:
    sink = context.sink.contiguous() if context.sink is not None else None
    passed = [
        (name, native.FP32, tensor.shape, tensor.stride(), tensor.data_ptr())
        for name, tensor in zip(context.names.split(","), context.tensors)
        if tensor.is_floating_point()
    ]
    named = named_array(passed) if passed else None
    at, d_at = (0 if t is None else t.data_ptr() for t in (sink, d_sink))
    packed = pack_arguments(views, at, d_at, named, len(passed))
    _enqueue(plan, q.device, packed)


def _enqueue(plan: Plan, device: torch.device, packed: bytes) -> None:
    size = plan.workspace_size
    if device.type == "cuda":
        # The caching allocator aligns to 512 bytes, and hands memory freed here out in the
        # stream's order.
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        stream = current_stream(device.index)
        plan.run(packed, workspace.data_ptr(), size, stream)
        note_use(plan, device, stream)
    elif size == 0:
        plan.run(packed, 0, 0)
    else:
        workspace = torch.empty(size + 256, dtype=torch.uint8)
        address = workspace.data_ptr()
        plan.run(packed, address + -address % 256, size)


# ---- Runs -----------------------------------------------------------------------------------


class Made(NamedTuple):
    """What a run went by, for those who want to repeat it."""

    plan: Plan
    views: Sequence[tuple[int, int, int, int]]  # all eleven of pack_arguments
    layout: int
    copied: bool  # some input's strides did not serve
    covered: tuple[bool, bool]  # every row of q, of k is some sequence's; else outputs begin as 0
    mean_square: Optional[Tensor] = None  # like lse; of a forward pass by bound="spread"


def _on_own_device(tensor: Tensor) -> bool:
    return not tensor.is_cuda or tensor.device.index == torch.cuda.current_device()


def empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """o [.., row, head, dim_v] and lse [.., head, row]."""
    o = q.new_empty((*q.shape[:-1], v.shape[-1]))
    rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return o, q.new_empty(rows, dtype=torch.float32)


def run_forward(q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    return forward_once(q, k, v, context)[:2]


def forward_once(q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Made]:
    if not _on_own_device(q):
        with torch.cuda.device(q.device):
            return forward_once(q, k, v, context)
    check_inputs(q, k, v, context.cu_seqlens_q is not None, context.sink)
    given = (q, k, v)
    dense = [_dense_dim(t) for t in given]
    geometry = _geometry(q, k, context)
    o, lse = empty_outputs(q, v)
    if not geometry.q_covered:
        o.zero_()
        lse.fill_(float("-inf"))
    views = [_view(t) for t in (*dense, o)]
    layout = _layout(views, q.element_size(), q.shape[-1], v.shape[-1])
    key = _plan_key(q, k, v, context, native.FORWARD, layout, geometry)
    plan = find_plan(key, q.device, geometry)
    square = torch.empty_like(lse) if context.bound == "spread" else None
    last = _view_lse(square) if square is not None else NO_TENSOR
    views += [_view_lse(lse), *(NO_TENSOR,) * 5, last]
    _launch(plan, q, context, views)
    copied = any(a is not b for a, b in zip(given, dense))
    return o, lse, Made(plan, views, layout, copied, geometry[1:3], square)


def check_gradient(
    d_o: Tensor, d_lse: Optional[Tensor], o: Tensor, lse: Tensor, q: Tensor, v: Tensor
) -> None:
    """What torch.ops callers could get wrong; autograd does not."""
    shape = (*q.shape[:-1], v.shape[-1])
    rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    if o.shape != shape or d_o.shape != shape or o.dtype != q.dtype or d_o.dtype != q.dtype:
        raise invalid(f"o and its gradient must be {list(shape)} of {q.dtype}")
    for tensor in (lse,) if d_lse is None else (lse, d_lse):
        if tensor.shape != rows or tensor.dtype != torch.float32:
            raise invalid(f"lse and its gradient must be float32 {list(rows)}")
    if d_o.device != q.device or o.device != q.device or lse.device != q.device:
        raise invalid("o, lse and their gradients must be on the device of q")


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dSink is empty where there is no sink: an operator returns tensors only."""
    d_sink = q.new_empty((q.shape[-2] if sink is not None else 0,), dtype=torch.float32)
    return _empty_gradient(q), _empty_gradient(k), _empty_gradient(v), d_sink


def _empty_gradient(tensor: Tensor) -> Tensor:
    """Strides in the order of the tensor's own, unless the head dim's would not be 1."""
    made = torch.empty_like(tensor)
    return made if made.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def backward_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    d_o: Tensor,
    d_lse: Optional[Tensor],
    context: Context,
    mean_square: Optional[Tensor] = None,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Made]:
    check_inputs(q, k, v, context.cu_seqlens_q is not None, context.sink)
    check_gradient(d_o, d_lse, o, lse, q, v)
    d_q, d_k, d_v, d_sink = empty_gradients(q, k, v, context.sink)
    given = (q, k, v, o, d_o)
    dense = [_dense_dim(t) for t in given]
    geometry = _geometry(q, k, context)
    if not geometry.q_covered:
        d_q.zero_()
    if not geometry.k_covered:
        d_k.zero_()
        d_v.zero_()
    elements = [_view(t) for t in (*dense, d_q, d_k, d_v)]
    layout = _layout(elements, q.element_size(), q.shape[-1], v.shape[-1])
    key = _plan_key(q, k, v, context, native.BACKWARD, layout, geometry)
    plan = find_plan(key, q.device, geometry)
    last = [_view_lse(t) if t is not None else NO_TENSOR for t in (d_lse, mean_square)]
    views = (*elements[:4], _view_lse(lse), *elements[4:], *last)
    _launch(plan, q, context, views, d_sink if context.sink is not None else None)
    copied = any(a is not b for a, b in zip(given, dense))
    return (d_q, d_k, d_v, d_sink), Made(plan, views, layout, copied, geometry[1:3])


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.view(bits), b.view(bits))


def run_backward(
    d_o: Tensor,
    d_lse: Optional[Tensor],
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Context,
    mean_square: Optional[Tensor] = None,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Made]:
    """The gradients, run twice where set_deterministic_check asks for it."""
    if not _on_own_device(q):
        with torch.cuda.device(q.device):
            return run_backward(d_o, d_lse, o, lse, q, k, v, context, mean_square)
    results, made = backward_once(q, k, v, o, lse, d_o, d_lse, context, mean_square)
    if _check_determinism and not _capturing(q.device):
        again, _ = backward_once(q, k, v, o, lse, d_o, d_lse, context, mean_square)
        for name, first, second in zip(("dq", "dk", "dv", "dsink"), results, again):
            if not _same_bits(first, second):
                raise native.NondeterministicError(
                    "NONDETERMINISTIC",
                    f"{name} differs between two runs of one backward pass (q "
                    f"{list(q.shape)}, {q.dtype}, mask {context.mask or 'full'!r}, "
                    f"deterministic={context.deterministic})",
                )
    return results, made


# ---- Looking at a call ----------------------------------------------------------------------


def plans_of_call(q: Tensor, k: Tensor, v: Tensor, context: Context) -> list[Plan]:
    """The forward and the backward plan of a call, made if need be; nothing is run. Gradients
    are taken to be as well aligned as torch's allocator makes them."""
    q, k, v = _dense_dim(q), _dense_dim(k), _dense_dim(v)
    geometry = _geometry(q, k, context)
    layout = _layout([_view(t) for t in (q, k, v)], q.element_size(), q.shape[-1], v.shape[-1])
    keys = [
        _plan_key(q, k, v, context, direction, layout, geometry)
        for direction in (native.FORWARD, native.BACKWARD)
    ]
    return [find_plan(key, q.device, geometry) for key in keys]
