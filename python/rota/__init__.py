"""Rota: attention with gradients that repeat bit for bit, for any mask and head dim.

    import rota
    o = rota.attention(q, k, v, mask="causal & window(4096, 0)")

Importing this needs neither torch nor a GPU; what needs torch imports it when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._library import (
    Error,
    InvalidArgument,
    NondeterministicError,
    NotPrepared,
    ScriptError,
    Unsupported,
    version,
)

if TYPE_CHECKING:
    from ._attention import attention as attention
    from ._attention import digest as digest
    from ._call import set_deterministic_check as set_deterministic_check
    from ._drop_in import flash_attn_func as flash_attn_func
    from ._drop_in import flash_attn_qkvpacked_func as flash_attn_qkvpacked_func
    from ._drop_in import flash_attn_varlen_func as flash_attn_varlen_func
    from ._drop_in import scaled_dot_product_attention as scaled_dot_product_attention
    from ._masks import Mask as Mask
    from ._masks import from_block_mask as from_block_mask

_TORCH = {
    "attention": "_attention",
    "digest": "_attention",
    "flash_attn_func": "_drop_in",
    "flash_attn_qkvpacked_func": "_drop_in",
    "flash_attn_varlen_func": "_drop_in",
    "scaled_dot_product_attention": "_drop_in",
    "Mask": "_masks",
    "from_block_mask": "_masks",
    "set_deterministic_check": "_call",
}

__all__ = [
    "Error",
    "InvalidArgument",
    "NondeterministicError",
    "NotPrepared",
    "ScriptError",
    "Unsupported",
    "version",
    "attention",
    "digest",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "scaled_dot_product_attention",
    "Mask",
    "from_block_mask",
    "set_deterministic_check",
]


def __getattr__(name: str) -> Any:
    module = _TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'rota' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
