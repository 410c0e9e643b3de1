"""Host copies of small integer tensors (offsets, document ids): planning needs their contents.

A tensor on the CPU is read on each call. One on a GPU is copied, which waits for the stream, once:
the copy is kept while the tensor lives and torch counts no in-place change to it.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import weakref

import torch
from torch import Tensor

from . import _library as native

# Longer contents are known by their hash, so that keys of plans stay small.
_WHOLE = 4096


class HostCopy:
    """Contiguous int32 contents of a tensor, and what stands for them in a plan's key."""

    __slots__ = ("tensor", "size", "key", "address")

    def __init__(self, tensor: Tensor):
        data = tensor.detach()
        if data.dtype != torch.int32:
            data = _narrow(data)
        self.tensor = data.to("cpu").contiguous()
        self.size = tuple(self.tensor.shape)
        self.address = self.tensor.data_ptr()
        content = self.bytes()
        self.key = content if len(content) <= _WHOLE else hashlib.blake2b(content).digest()

    def bytes(self) -> bytes:
        count = self.tensor.numel()
        return c.string_at(self.address, 4 * count) if count else b""


def _narrow(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.int64 and tensor.numel():
        low, high = torch.aminmax(tensor)
        if low < -(2**31) or high >= 2**31:
            raise native.InvalidArgument(
                "INVALID_ARGUMENT", "an int64 tensor holds numbers outside int32: Rota takes int32"
            )
    return tensor.to(torch.int32)


_copies: dict[int, tuple[weakref.ref[Tensor], int, HostCopy]] = {}


def host_copy(tensor: Tensor, what: str) -> HostCopy:
    if not tensor.is_cuda:
        return HostCopy(tensor)
    if tensor.is_inference():  # carries no version: a change could not be seen
        _refuse_capture(tensor, what)
        return HostCopy(tensor)
    key = id(tensor)
    known = _copies.get(key)
    if known is not None and known[0]() is tensor and known[1] == tensor._version:
        return known[2]
    _refuse_capture(tensor, what)
    made = HostCopy(tensor)

    def forget(_: object) -> None:
        _copies.pop(key, None)

    _copies[key] = (weakref.ref(tensor, forget), tensor._version, made)
    return made


def _refuse_capture(tensor: Tensor, what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise native.NotPrepared(
            "NOT_PREPARED",
            f"{what} is a GPU tensor that no earlier call has seen, and a stream is being "
            "captured: call once before capturing with the same tensor, or keep it on the CPU",
        )
