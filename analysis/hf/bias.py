"""Tables of relative-position bias (BEiT, Swin), found in the modules that fill an n × n array from them.

Such a module looks each pair of positions up in its table by an index and hands the array on; the attention function
sees the array alone. What is recorded should be the table: the module is watched, and the table is taken only if it
gives the array back exactly. (T5's kind needs no watching: its diagonals tell, see ``attn_core.seam``.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from attn_core.bias import IndexedBias
from attn_core.seam import bias_made_from

_watching: ContextVar[object | None] = ContextVar("analysis_hf_bias", default=None)


@contextmanager
def watching_tables(module: nn.Module) -> Iterator[None]:
    """Tell the open recording of every table that a bias of this model is read from, in this context and block."""
    watch = object()
    token = _watching.set(watch)

    # A hook that is removed while another thread runs the model may still be called there, and without its kwargs
    # (torch looks the flag up after it has listed the hooks), so it asks whose call this is before it reads them.
    def read(part: nn.Module, args: tuple[Any, ...], *more: Any) -> None:
        if _watching.get() is not watch:
            return
        kwargs, bias = more
        table = _table_of(part, bias, args, kwargs) if isinstance(bias, Tensor) and bias.ndim == 4 else None
        if table is not None:
            bias_made_from(bias, table)

    hooks = [
        part.register_forward_hook(read, with_kwargs=True)
        for part in module.modules()
        if isinstance(getattr(part, "relative_position_bias_table", None), Tensor)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _watching.reset(token)


@torch.no_grad()
def _table_of(
    part: nn.Module, bias: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> IndexedBias | None:
    """The table and index that a (1, H, N, N) bias was filled from; None when they are not what fills it."""
    index = _index_of(part, args, kwargs)
    tokens = bias.shape[-1]
    if index is None or index.numel() != tokens**2 or bias.shape[0] != 1 or bias.shape[-2] != tokens:
        return None
    index = index.view(tokens, tokens)
    own = part.relative_position_bias_table
    assert isinstance(own, Tensor)
    kinds = int(index.max()) + 1
    if own.ndim == 2 and len(own) >= kinds:
        shared = IndexedBias.of(own.detach(), index)
        if torch.equal(shared.dense(), bias):
            return shared
    # The module stretched its table to another grid (BEiT): read the numbers of each kind of pair back.
    numbers = bias.new_zeros(kinds, bias.shape[1])
    numbers[index.view(-1)] = bias[0].flatten(1).T
    stretched = IndexedBias.of(numbers, index)
    return stretched if torch.equal(stretched.dense(), bias) else None


def _index_of(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Kind of each pair: a buffer (Swin), or made for the size of the grid and cached by the library (BEiT)."""
    index = getattr(part, "relative_position_index", None)
    if isinstance(index, Tensor):
        return index
    made = getattr(part, "generate_relative_position_index", None)
    size = kwargs.get("window_size", args[0] if args else None)
    if made is None or not isinstance(size, tuple):
        return None
    found = made(size)
    assert isinstance(found, Tensor)
    return found
