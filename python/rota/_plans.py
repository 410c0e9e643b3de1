"""Contexts, kernels and plans as Python objects, each made once per key and kept in a bounded
cache. Knows addresses and sizes, but neither torch nor numpy.

Lifetimes: the process has one context, which lives until it ends. A plan on a GPU must outlive its
launches, and for ever if a CUDA graph captured one: see Plan.streams, Plan.events and Plan.pinned.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from . import _library as native

Value = TypeVar("Value")

# A plan holds its tables (KB for a causal mask, MB for many documents), a kernel its module.
PLANS_KEPT = 256
KERNELS_KEPT = 256


class Model(NamedTuple):
    """What is computed. One kernel per Model, direction, device and layout class."""

    dtype: int
    head_dim: int
    head_dim_v: int
    group: int  # query heads per kv head
    mask: str = ""  # "": every key
    score: str = ""  # "": the scaled score itself
    scale: float = 0.0  # 0: 1/sqrt(head_dim)
    sink_logit: bool = False
    deterministic: bool = True
    backward: str = "auto"
    bound: str = "norm"
    schedule: str = "auto"


class Target(NamedTuple):
    """Where and how a kernel runs."""

    direction: int
    device: int
    ordinal: int = 0
    layout: int = native.LAYOUT_ALIGNED


class NamedTensor(NamedTuple):
    """A tensor of a mask or score as a plan sees it: sizes, and for a mask its content's hash."""

    name: str
    dtype: int
    size: tuple[int, ...]
    content: bytes = b""


class Shape(NamedTuple):
    """Lengths and heads of one call; offsets and used lengths as the bytes of int32 arrays."""

    batch: int
    n_q: int
    n_k: int
    heads: int
    kv_heads: int
    cu_seqlens_q: bytes | None = None
    cu_seqlens_k: bytes | None = None
    seqused_q: bytes | None = None
    seqused_k: bytes | None = None
    tensors: tuple[NamedTensor, ...] = ()
    values: tuple[tuple[str, float], ...] = ()


class PlanKey:
    """Model, target and shape; remembers its hash, so that a second look-up is cheap."""

    __slots__ = ("parts", "hash")

    def __init__(self, model: Model, target: Target, shape: Shape):
        self.parts = (model, target, shape)
        self.hash = hash(self.parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PlanKey) and self.parts == other.parts)


_caches: list[Any] = []  # to be emptied in a forked child


class Cache(Generic[Value]):
    """The `bound` most recently used values by key. Threads may share it; two that miss at once
    both make the value and one of the two stays. A value that was used without being looked up
    here says so by an attribute `fresh`, and is passed over once."""

    def __init__(self, bound: int, evicted: Callable[[Value], None] | None = None):
        self.bound, self.evicted = bound, evicted
        _caches.append(self)
        self.entries: OrderedDict[Hashable, Value] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        with self.lock:
            value = self.entries.get(key)
            if value is not None:
                self.entries.move_to_end(key)
            return value

    def put(self, key: Hashable, value: Value) -> Value:
        with self.lock:
            value = self.entries.setdefault(key, value)
            self.entries.move_to_end(key)
            out = []
            while len(self.entries) > self.bound:
                oldest, old = self.entries.popitem(last=False)
                if old is value:
                    self.entries[oldest] = old
                elif getattr(old, "fresh", False):
                    old.fresh = False  # type: ignore[attr-defined]
                    self.entries[oldest] = old
                else:
                    out.append(old)
        for old in out:
            if self.evicted:
                self.evicted(old)
        return value

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()


def _destroy(name: str, handle: int, process: int) -> None:
    """Releases a handle, but not in a forked child, where it is the parent's."""
    if os.getpid() == process:
        getattr(native.library(), name)(handle)


class _Handle:
    """Owns one C handle; the last reference releases it. Not at exit: drivers unload then."""

    def __init__(self, create: str, destroy: str, *arguments: Any):
        handle = c.c_void_p()
        native.check(getattr(native.library(), create)(*arguments, c.byref(handle)))
        self.handle: int = handle.value or 0
        finalizer = weakref.finalize(self, _destroy, destroy, self.handle, os.getpid())
        finalizer.atexit = False


class Kernel(_Handle):
    """A compiled kernel. One serves all lengths."""

    def __init__(self, model: Model, target: Target):
        spec = _make_spec(model)
        super().__init__(
            "rota_kernel_prepare",
            "rota_kernel_destroy",
            context(),
            spec.handle,
            c.byref(native.KernelRequest(*target)),
        )

    def info(self) -> Any:
        info = native.KernelInfo()
        native.library().rota_kernel_get_info(self.handle, c.byref(info))
        return info

    def source(self) -> str:
        """The generated CUDA source, one self-contained file."""
        return native.library().rota_kernel_source(self.handle).decode()


class Plan(_Handle):
    """One shape of one kernel, verified, its tables uploaded."""

    def __init__(self, kernel: Kernel, shape: Shape, addresses: Sequence[int | None]):
        """`addresses`: contiguous host memory of each tensor; None for what each run passes."""
        request, keep = _plan_request(shape, addresses)
        super().__init__("rota_plan_create", "rota_plan_destroy", kernel.handle, c.byref(request))
        del keep
        library = native.library()
        self.workspace_size: int = library.rota_plan_workspace_size(self.handle)
        digest = c.create_string_buffer(native.DIGEST_SIZE)
        library.rota_plan_digest(self.handle, digest)
        self.digest = digest.value.decode()
        self.pinned = False  # a CUDA graph replays it: never to be destroyed
        self.dropped = False  # out of the cache; whoever still launches it must condemn it again
        self.fresh = False  # launched since the cache last looked for something to drop
        self.streams: dict[int, Any] = {}  # launched on, by address; those that live for ever
        self.events: dict[int, Any] = {}  # behind the latest launch on other streams
        self.run_native = library.rota_run

    def retire(self) -> None:
        """Puts an event behind all launches so far. Streams that outlive everything are kept as
        such until now, since an event per launch costs as much as the launch."""
        self.dropped = True
        for at, stream in self.streams.copy().items():
            self.events[at] = stream.record_event()

    def busy(self) -> bool:
        return any(not event.query() for event in self.events.copy().values())

    def info(self) -> Any:
        info = native.PlanInfo()
        native.library().rota_plan_get_info(self.handle, c.byref(info))
        return info

    def run(self, arguments: bytes | int, workspace: int, size: int, stream: int = 0) -> None:
        """`arguments`: from pack_arguments, or the address of such bytes. All addresses must
        outlive the work on the stream."""
        status = self.run_native(self.handle, arguments, workspace, size, stream or None)
        if status:
            native.check(status)


# rota_arguments in its C layout: eleven tensors, sink, d_sink, tensors, tensor_count.
ARGUMENTS = struct.Struct("Pqqq" * 11 + "PPPi4x")
NO_TENSOR = (0, 0, 0, 0)


def pack_arguments(
    tensors: Sequence[tuple[int, int, int, int]],
    sink: int = 0,
    d_sink: int = 0,
    named: Any = None,
    named_count: int = 0,
) -> bytes:
    """`tensors`: (address, batch, row and head stride) of q k v o lse d_o d_q d_k d_v d_lse
    mean_square."""
    address = c.addressof(named) if named_count else 0
    flat = [number for tensor in tensors for number in tensor]
    return ARGUMENTS.pack(*flat, sink, d_sink, address, named_count)


def named_array(
    entries: Sequence[tuple[str, int, Sequence[int], Sequence[int], int | None]],
) -> Any:
    """A C array of (name, dtype, size, stride, address)."""
    array = (native.NamedTensor * max(len(entries), 1))()
    for to, (name, dtype, size, stride, address) in zip(array, entries):
        to.name, to.dtype, to.rank, to.data = name.encode(), dtype, len(size), address
        if len(size) > 4:
            raise native.InvalidArgument(
                "INVALID_ARGUMENT", f"tensor '{name}' has rank {len(size)}, over 4"
            )
        for i, (extent, step) in enumerate(zip(size, stride)):
            to.size[i], to.stride[i] = extent, step
    return array


def _compact(size: Sequence[int]) -> list[int]:
    strides, step = [0] * len(size), 1
    for i in reversed(range(len(size))):
        strides[i], step = step, step * size[i]
    return strides


def _plan_request(shape: Shape, addresses: Sequence[int | None]) -> tuple[Any, list[Any]]:
    """The C request, and what must stay alive while it is used."""
    keep: list[Any] = []

    def pointer(data: bytes | None) -> int | None:
        if data is None:
            return None
        buffer = c.create_string_buffer(data, max(len(data), 1))
        keep.append(buffer)
        return c.addressof(buffer)

    offsets = [pointer(data) for data in shape[5:9]]
    tensors = named_array(
        [
            (t.name, t.dtype, t.size, _compact(t.size), address)
            for t, address in zip(shape.tensors, addresses)
        ]
    )
    values = (native.NamedValue * max(len(shape.values), 1))(
        *[native.NamedValue(name.encode(), value) for name, value in shape.values]
    )
    lengths = native.Lengths(shape.batch, shape.n_q, shape.n_k, *offsets)
    request = native.PlanRequest(
        lengths,
        shape.heads,
        shape.kv_heads,
        tensors,
        len(shape.tensors),
        values,
        len(shape.values),
    )
    keep += [tensors, values]
    return request, keep


def _make_spec(model: Model) -> _Handle:
    fields = native.SpecFields(
        dtype=model.dtype,
        head_dim=model.head_dim,
        head_dim_v=model.head_dim_v,
        heads=model.group,
        kv_heads=1,
        mask=model.mask.encode() or None,
        score=model.score.encode() or None,
        scale=model.scale,
        sink_logit=model.sink_logit,
        allow_nondeterministic=not model.deterministic,
        backward=model.backward.encode(),
        bound=model.bound.encode(),
        schedule=model.schedule.encode(),
    )
    return _Handle("rota_spec_create", "rota_spec_destroy", context(), c.byref(fields))


_context: int | None = None
_context_lock = threading.Lock()


def context() -> int:
    """The process's context, made when first needed."""
    global _context
    if _context is None:
        with _context_lock:
            if _context is None:
                handle = c.c_void_p()
                native.check(native.library().rota_context_create(None, c.byref(handle)))
                _context = handle.value
    assert _context is not None
    return _context


_condemned: list[Plan] = []  # evicted, but launches may still be in flight


def condemn(plan: Plan) -> None:
    """Keeps a plan that left the cache until no launch needs it; one in a CUDA graph for good."""
    plan.retire()
    with _context_lock:
        _condemned.append(plan)
        _condemned[:] = [old for old in _condemned if old.pinned or old.busy()]


_kernels: Cache[Kernel] = Cache(KERNELS_KEPT)
_plans: Cache[Plan] = Cache(PLANS_KEPT, condemn)
_digests: set[str] = set()


def kernel(model: Model, target: Target) -> Kernel:
    key = (model, target)
    return _kernels.get(key) or _kernels.put(key, Kernel(model, target))


def cached_plan(key: PlanKey) -> Plan | None:
    return _plans.get(key)


def make_plan(key: PlanKey, addresses: Sequence[int | None] = ()) -> Plan:
    """Compiles if need be, plans and uploads; remembers the digest."""
    model, target, shape = key.parts
    made = Plan(kernel(model, target), shape, addresses)
    _digests.add(made.digest)
    return _plans.put(key, made)


def combine_digests(digests: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=16).hexdigest()


def digest_of_process() -> str:
    """One digest of every plan made so far, whatever their order."""
    return combine_digests(sorted(_digests))


def _after_fork() -> None:
    """A forked child starts anew: the parent's locks and driver state are not usable in it."""
    global _context, _context_lock
    _context, _context_lock = None, threading.Lock()
    for cache in _caches:
        cache.lock = threading.Lock()
        cache.clear()
    _condemned.clear()
    _digests.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
