"""Masks that carry tensors, and FlexAttention's block masks as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from . import _library as native

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """A mask expression with the tensors that it names. Composes by &, | and ~."""

    text: str
    tensors: Mapping[str, "Tensor"] = field(default_factory=dict)

    def _with(self, other: Union[str, "Mask"], operator: str) -> "Mask":
        other = other if isinstance(other, Mask) else Mask(other)
        both = {**self.tensors, **other.tensors}
        for name in self.tensors:
            if both[name] is not self.tensors[name]:
                raise native.InvalidArgument(
                    "INVALID_ARGUMENT", f"both masks name a tensor '{name}': rename one of them"
                )
        return Mask(f"({self.text}) {operator} ({other.text})", both)

    def __and__(self, other: Union[str, "Mask"]) -> "Mask":
        return self._with(other, "&")

    def __or__(self, other: Union[str, "Mask"]) -> "Mask":
        return self._with(other, "|")

    def __invert__(self) -> "Mask":
        return Mask(f"~({self.text})", self.tensors)


def index_text(size: Any, names: str = "bhqk") -> str:
    """Index list for a tensor that broadcasts over dimensions of size 1: "b, 0, q, k"."""
    return ", ".join(name if extent != 1 else "0" for name, extent in zip(names, size))


def element_mask(name: str, allowed: "Tensor") -> Mask:
    """Of a tensor [batch or 1, heads or 1, tokens or 1, keys or 1]; nonzero allows."""
    return Mask(f'where("{name}[{index_text(allowed.shape)}] ~= 0")', {name: allowed})


def from_block_mask(block_mask: Any, partial: Union[None, str, Mask, "Tensor"] = None) -> Mask:
    """FlexAttention's BlockMask as a Rota mask.

    Full blocks are taken as they are. A partial block needs its element mask, which a BlockMask
    holds only as Python code: `partial` says it again, as a Rota mask ("causal") or as a bool
    tensor [batch or 1, heads or 1, tokens, keys] such as
    torch.nn.attention.flex_attention.create_mask makes. Without one, partial blocks are refused.
    """
    import torch

    count, index = block_mask.kv_num_blocks, block_mask.kv_indices
    tile_q, tile_kv = block_mask.BLOCK_SIZE
    kinds = _block_table(count, index)
    has_partial = bool(kinds.any())
    if block_mask.full_kv_num_blocks is not None:
        full = _block_table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        kinds = torch.where(full > 0, 2, kinds)
    table = {"block_kinds": kinds.to(torch.int32)}
    batch, heads = index_text(kinds.shape[:2]).split(", ")
    entry = f"block_kinds[{batch}, {heads}, q // {tile_q}, k // {tile_kv}]"
    if not has_partial:
        return Mask(f'where("{entry} == 2")', table)
    if partial is None:
        raise native.InvalidArgument(
            "INVALID_ARGUMENT",
            "the BlockMask has partial blocks, whose element mask Rota cannot read from Python "
            "code: pass partial= a Rota mask such as 'causal', or a bool tensor "
            "[batch, heads, tokens, keys] (torch.nn.attention.flex_attention.create_mask)",
        )
    if isinstance(partial, str):
        inner = Mask(partial)
    elif isinstance(partial, Mask):
        inner = partial
    else:
        inner = element_mask("block_elements", _four(partial))
    return Mask(f'where("{entry} == 2")', table) | (Mask(f'where("{entry} == 1")', table) & inner)


def _four(tensor: "Tensor") -> "Tensor":
    if tensor.dim() > 4:
        raise native.InvalidArgument(
            "INVALID_ARGUMENT", f"an element mask has at most 4 dimensions, not {tensor.dim()}"
        )
    return tensor[(None,) * (4 - tensor.dim())]


def _block_table(count: "Tensor", index: "Tensor") -> "Tensor":
    """[B, H, q blocks, kv blocks]: 1 where a block is listed. Only the first `count` indices of a
    row count; the rest may be anything."""
    import torch

    count, index = count.detach().cpu(), index.detach().cpu().long()
    columns = index.shape[-1]
    listed = torch.arange(columns) < count[..., None]
    table = torch.zeros(*index.shape[:-1], columns + 1, dtype=torch.int64)
    table.scatter_(-1, torch.where(listed, index, columns), 1)  # unlisted ones go to a spare
    return table[..., :columns].contiguous()
