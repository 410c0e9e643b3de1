"""librota over ctypes: include/rota/rota.h, declaration by declaration. Knows neither torch nor a
GPU; the library is looked for when first used.

Searched in this order: ROTA_LIBRARY (a path), this package's folder (where pip puts it), build
folders beside a source checkout, the system's library path.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
from pathlib import Path
from typing import Any

BF16, FP16, FP32, INT32 = range(4)
FORWARD, BACKWARD = range(2)
DEVICE_AUTO, DEVICE_CUDA, DEVICE_CPU = range(3)
LAYOUT_ALIGNED, LAYOUT_ANY = range(2)
DIGEST_SIZE = 33
INTERFACE = "0.1"  # major.minor of the rota.h that is declared here


class Error(RuntimeError):
    """A call of Rota failed. `status` is the C status's name, such as "NO_DEVICE"."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


class InvalidArgument(Error, ValueError):
    """An argument is missing or out of range."""


class ScriptError(Error, ValueError):
    """A mask or score expression is wrong; the message points at the place."""


class Unsupported(Error, NotImplementedError):
    """The request is valid, but no kernel serves it."""


class NondeterministicError(Error):
    """Determinism was asked for and does not hold or cannot be honoured."""


class NotPrepared(Error):
    """The call would have to compile, plan or copy where it must not: in a stream capture."""


_CLASSES: dict[str, type[Error]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "SCRIPT": ScriptError,
    "UNSUPPORTED": Unsupported,
    "NONDETERMINISTIC": NondeterministicError,
    "NOT_PREPARED": NotPrepared,
}


def _struct(name: str, /, **fields: Any) -> type[c.Structure]:
    return type(name, (c.Structure,), {"_fields_": list(fields.items())})


ContextOptions = _struct(
    "ContextOptions",
    cache_dir=c.c_char_p,
    cache_max_bytes=c.c_int64,
    nvrtc_path=c.c_char_p,
    debug=c.c_int,
)
SpecFields = _struct(
    "SpecFields",
    dtype=c.c_int,
    head_dim=c.c_int32,
    head_dim_v=c.c_int32,
    heads=c.c_int32,
    kv_heads=c.c_int32,
    mask=c.c_char_p,
    score=c.c_char_p,
    scale=c.c_float,
    sink_logit=c.c_bool,
    allow_nondeterministic=c.c_bool,
    backward=c.c_char_p,
    bound=c.c_char_p,
    schedule=c.c_char_p,
    forward_tiling=c.c_char_p,
    backward_tiling=c.c_char_p,
)
KernelRequest = _struct(
    "KernelRequest",
    direction=c.c_int,
    device=c.c_int,
    device_ordinal=c.c_int32,
    layout=c.c_int,
    architecture=c.c_char_p,
)
KernelInfo = _struct(
    "KernelInfo",
    device=c.c_int,
    cache_hit=c.c_bool,
    compile_seconds=c.c_double,
    load_seconds=c.c_double,
    cubin_bytes=c.c_size_t,
    registers=c.c_int32,
    spill_bytes=c.c_int32,
    shared_bytes=c.c_int32,
    architecture=c.c_char_p,
    algorithm=c.c_char_p,
    compile_log=c.c_char_p,
)
Lengths = _struct(
    "Lengths",
    batch=c.c_int32,
    n_q=c.c_int32,
    n_k=c.c_int32,
    cu_seqlens_q=c.c_void_p,
    cu_seqlens_k=c.c_void_p,
    seqused_q=c.c_void_p,
    seqused_k=c.c_void_p,
)
NamedTensor = _struct(
    "NamedTensor",
    name=c.c_char_p,
    dtype=c.c_int,
    rank=c.c_int32,
    size=c.c_int64 * 4,
    stride=c.c_int64 * 4,
    data=c.c_void_p,
)
NamedValue = _struct("NamedValue", name=c.c_char_p, value=c.c_double)
PlanRequest = _struct(
    "PlanRequest",
    lengths=Lengths,
    heads=c.c_int32,
    kv_heads=c.c_int32,
    tensors=c.POINTER(NamedTensor),
    tensor_count=c.c_int32,
    values=c.POINTER(NamedValue),
    value_count=c.c_int32,
    workspace_limit=c.c_size_t,
)
PlanInfo = _struct(
    "PlanInfo",
    full_tiles=c.c_int64,
    partial_tiles=c.c_int64,
    empty_tiles=c.c_int64,
    tile_q=c.c_int32,
    tile_kv=c.c_int32,
    table_bytes=c.c_int64,
    plan_seconds=c.c_double,
)
Tensor = _struct(
    "Tensor", data=c.c_void_p, stride_batch=c.c_int64, stride_row=c.c_int64, stride_head=c.c_int64
)
Arguments = _struct(
    "Arguments",
    **{name: Tensor for name in ("q", "k", "v", "o", "lse", "d_o", "d_q", "d_k", "d_v", "d_lse")},
    mean_square=Tensor,
    sink=c.c_void_p,
    d_sink=c.c_void_p,
    tensors=c.POINTER(NamedTensor),
    tensor_count=c.c_int32,
)

# Function -> (result, arguments). Handles are void pointers; `out` parameters are byref'd ones.
# rota_run takes its arguments as bytes or an address: filling a Structure costs ten times as much.
_OUT = c.POINTER(c.c_void_p)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rota_error_message": (c.c_char_p, ()),
    "rota_status_name": (c.c_char_p, (c.c_int,)),
    "rota_version": (c.c_char_p, ()),
    "rota_context_create": (c.c_int, (c.POINTER(ContextOptions), _OUT)),
    "rota_context_destroy": (None, (c.c_void_p,)),
    "rota_spec_create": (c.c_int, (c.c_void_p, c.POINTER(SpecFields), _OUT)),
    "rota_spec_create_from_script": (c.c_int, (c.c_void_p, c.c_char_p, c.c_char_p, _OUT)),
    "rota_spec_create_from_file": (c.c_int, (c.c_void_p, c.c_char_p, _OUT)),
    "rota_spec_get": (None, (c.c_void_p, c.POINTER(SpecFields))),
    "rota_spec_destroy": (None, (c.c_void_p,)),
    "rota_supports": (c.c_int, (c.c_void_p, c.c_void_p, c.POINTER(KernelRequest))),
    "rota_kernel_prepare": (c.c_int, (c.c_void_p, c.c_void_p, c.POINTER(KernelRequest), _OUT)),
    "rota_kernel_destroy": (None, (c.c_void_p,)),
    "rota_kernel_source": (c.c_char_p, (c.c_void_p,)),
    "rota_kernel_get_info": (None, (c.c_void_p, c.POINTER(KernelInfo))),
    "rota_kernel_export": (c.c_int, (c.c_void_p, c.c_char_p)),
    "rota_kernel_import": (c.c_int, (c.c_void_p, c.c_char_p, c.c_int32, _OUT)),
    "rota_plan_create": (c.c_int, (c.c_void_p, c.POINTER(PlanRequest), _OUT)),
    "rota_plan_destroy": (None, (c.c_void_p,)),
    "rota_plan_workspace_size": (c.c_size_t, (c.c_void_p,)),
    "rota_plan_get_info": (None, (c.c_void_p, c.POINTER(PlanInfo))),
    "rota_plan_digest": (None, (c.c_void_p, c.c_char_p)),
    "rota_plan_save": (c.c_int, (c.c_void_p, c.c_char_p)),
    "rota_plan_load": (c.c_int, (c.c_void_p, c.c_char_p, _OUT)),
    "rota_run": (c.c_int, (c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p)),
}

_lock = threading.Lock()
_library: c.CDLL | None = None


def candidates() -> list[str]:
    """Where librota is looked for, in order."""
    pinned = os.environ.get("ROTA_LIBRARY")
    if pinned:
        return [pinned]
    package = Path(__file__).resolve().parent
    found = [package / "librota.so"]
    root = package.parent.parent
    if (root / "include" / "rota" / "rota.h").is_file():  # a source checkout
        found += sorted(root.glob("build*/librota.so"))
    return [str(path) for path in found if path.is_file()] + ["librota.so.0", "librota.so"]


def _open() -> c.CDLL:
    tried = []
    for path in candidates():
        try:
            return c.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise ImportError(
        "librota was not found. Install the package with pip (which builds it), or point "
        "ROTA_LIBRARY at librota.so. Tried:\n  " + "\n  ".join(tried)
    )


def library() -> c.CDLL:
    """The loaded library, with the signatures above. Raises ImportError if there is none."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                opened = _open()
                for name, (result, arguments) in _SIGNATURES.items():
                    function = getattr(opened, name)
                    function.restype, function.argtypes = result, arguments
                found = opened.rota_version().decode()
                if found.rpartition(".")[0] != INTERFACE:
                    raise ImportError(
                        f"librota is {found}, but this package is made for {INTERFACE}.x: "
                        "install matching versions, or point ROTA_LIBRARY at the right one"
                    )
                _library = opened
    return _library


def check(status: int) -> None:
    """Raises what a status that is not OK means; call it in the thread of the failed call."""
    if status == 0:
        return
    name = library().rota_status_name(status).decode()
    message = library().rota_error_message().decode(errors="replace")
    raise _CLASSES.get(name, Error)(name, message)


def version() -> str:
    """Version of librota, such as "0.1.0"."""
    return library().rota_version().decode()
