"""Where the windows of a Swin-like layer lie in the picture: seen during the model's own call, and proved on it.

A windowed layer hands its attention a batch of pictures × windows and tells nobody which patch stands where. Hooks on
the layer see the grid that it is called with, hooks on its attention the windows that it made; the window's size and
shift are the layer's own at that moment, and the cut is taken as known only if gathering the layer's own tokens by it
gives those windows, value by value.

The library's layers change themselves for good when a small picture passes (``set_shift_and_window_size``), so their
sizes are put back after the block: what one user looked at must not change what the next one sees.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attn_core.errors import UnsupportedModelError
from attn_core.maps import AttentionMap, DenseMap
from attn_core.windows import WindowedMap, window_positions

Grid = tuple[int, int]
"""Rows and columns."""


@dataclass
class WindowCall:
    """One call of the attention of a windowed layer.

    Attributes:
        attention: the layer's attention module.
        grid: of the layer's tokens; None when the cut could not be proved.
        window, shift: places along a side of a window, and how far the grid was rolled.
        weights: (pictures × W, H, n, n), where the model hands them out when asked.
    """

    attention: nn.Module
    grid: Grid | None
    window: int
    shift: int
    weights: Tensor | None = None

    def over_the_grid(self, windows: AttentionMap) -> AttentionMap:
        """The map of the windows as one over the grid; unchanged when the cut is not known."""
        if self.grid is None:
            return windows
        return WindowedMap.of(windows, window_positions(self.grid, self.window, shift=self.shift))


@dataclass
class _Watch:
    calls: list[WindowCall] = field(default_factory=list)
    entered: dict[int, tuple[Grid, Tensor]] = field(default_factory=dict)
    """Grid and tokens of each layer that is under way."""


_watching: ContextVar[_Watch | None] = ContextVar("analysis_hf_windows", default=None)


def windowed_layers(module: nn.Module) -> list[Any]:
    """Layers that cut their grid into windows, as Swin's do: with a window size, a shift and an attention."""
    return [
        layer
        for layer in module.modules()
        if isinstance(getattr(layer, "window_size", None), int)
        and isinstance(getattr(layer, "shift_size", None), int)
        and isinstance(getattr(layer, "attention", None), nn.Module)
    ]


@contextmanager
def watching_windows(module: nn.Module, *, ask_weights: bool) -> Iterator[list[WindowCall]]:
    """Every call of a windowed layer in this context inside the block, in order; nothing is left on the model.

    Args:
        ask_weights: make each attention hand out its weights too (for models outside of the attention interface,
            which would give those of the last layer of each stage alone).
    Raises:
        UnsupportedModelError: in the block, when a grid is smaller than a window that the library cannot shrink.
    """
    layers = windowed_layers(module)
    watch = _Watch()
    token = _watching.set(watch)
    hooks: list[Any] = []
    try:
        with window_sizes_kept(module):
            for layer in layers:
                attention = layer.attention
                hooks.append(layer.register_forward_pre_hook(_enter(watch), with_kwargs=True))
                hooks.append(
                    attention.register_forward_pre_hook(_cut(watch, layer, ask_weights), with_kwargs=True)
                )
                if ask_weights:
                    hooks.append(attention.register_forward_hook(_read(watch), with_kwargs=True))
            yield watch.calls
    finally:
        for hook in hooks:
            hook.remove()
        _watching.reset(token)


# A hook that is removed while another thread runs the model may still be called there, and without its kwargs
# (torch looks the flag up after it has listed the hooks), so each asks whose call this is before it reads them.
def _enter(watch: _Watch) -> Any:
    def enter(layer: Any, args: tuple[Any, ...], *more: Any) -> None:
        if _watching.get() is not watch:
            return
        (kwargs,) = more
        given = dict(zip(("hidden_states", "input_dimensions"), args, strict=False)) | kwargs
        if "input_dimensions" not in given or "hidden_states" not in given:
            return
        grid = tuple(int(length) for length in given["input_dimensions"])
        if min(grid) < layer.window_size and _shrinks(layer) and not given.get("always_partition"):
            size = layer.window_size
            raise UnsupportedModelError(
                f"capture: the picture leaves {grid[0]} × {grid[1]} patches in a layer whose windows are {size} × "
                f"{size}, and the library cannot make these smaller; choose a larger picture size."
            )
        watch.entered[id(layer)] = ((grid[0], grid[1]), given["hidden_states"])

    return enter


def _shrinks(layer: Any) -> bool:
    """Whether the layer would take the grid for its window, for which its position table has no entries."""
    return hasattr(layer, "set_shift_and_window_size")


def _cut(watch: _Watch, layer: Any, ask_weights: bool) -> Any:
    def cut(attention: nn.Module, args: tuple[Any, ...], *more: Any) -> tuple[Any, dict[str, Any]] | None:
        if _watching.get() is not watch:
            return None
        (kwargs,) = more
        windows = args[0] if args else kwargs["hidden_states"]
        window, shift = int(layer.window_size), int(layer.shift_size)
        entered = watch.entered.pop(id(layer), None)
        proved = entered is not None and _proved(layer, *entered, windows, window=window, shift=shift)
        watch.calls.append(WindowCall(attention, entered[0] if entered and proved else None, window, shift))
        return (args, {**kwargs, "output_attentions": True}) if ask_weights else None

    return cut


def _read(watch: _Watch) -> Any:
    def read(_: nn.Module, __: tuple[Any, ...], *more: Any) -> None:
        if _watching.get() is not watch:
            return
        _, output = more
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        watch.calls[-1].weights = weights.detach() if isinstance(weights, Tensor) else None

    return read


def _proved(layer: Any, grid: Grid, tokens: Tensor, windows: Tensor, *, window: int, shift: int) -> bool:
    """Whether the windows hold the layer's tokens (before or after its first norm) where the cut says, and 0 else."""
    if min(*grid, window) < 1 or not 0 <= shift < window or tokens.ndim != 3:
        return False
    positions = window_positions(grid, window, shift=shift).to(tokens.device)
    batch, length, width = tokens.shape
    cut = (batch * len(positions), positions.shape[1], width)
    if length != grid[0] * grid[1] or tuple(windows.shape) != cut:
        return False
    padding = (positions < 0)[..., None]
    norm = getattr(layer, "layernorm_before", None)
    sources = (
        [tokens] if norm is None else [norm.forward(tokens), tokens]
    )  # forward: no other hook may see it
    for source in sources:
        gathered = source[:, positions.clamp(min=0)].masked_fill(padding, 0.0)  # (B, W, n, M)
        if torch.allclose(gathered.reshape(cut), windows, rtol=1e-4, atol=1e-5):
            return True
    return False


def windowed_notes(calls: Sequence[WindowCall]) -> tuple[str, ...]:
    """What a reader must know of the windows, in a sentence for each size."""
    if not calls:
        return ()
    if any(call.grid is None for call in calls):
        return (
            "Attention stays inside windows, and where these lie in the picture could not be seen: "
            "each layer holds one map a window.",
        )
    notes = []
    for window in dict.fromkeys(call.window for call in calls):
        of_size = [layer for layer, call in enumerate(calls) if call.window == window]
        shifted = [layer for layer in of_size if calls[layer].shift]
        sentence = f"Attention stays inside windows of {window} × {window} patches"
        if len(of_size) < len(calls):
            sentence += f" in layer{'s' if len(of_size) > 1 else ''} {', '.join(map(str, of_size))}"
        if shifted:
            sentence += (
                f" (shifted by {calls[shifted[0]].shift} in layer{'s' if len(shifted) > 1 else ''} "
                f"{', '.join(map(str, shifted))})"
            )
        notes.append(f"{sentence}: weights outside of a patch's window are zero.")
    return tuple(notes)


def stored_windows(calls: Sequence[WindowCall]) -> tuple[AttentionMap, ...]:
    """The maps of calls whose weights were handed out."""
    return tuple(
        call.over_the_grid(DenseMap(stored=call.weights)) for call in calls if call.weights is not None
    )


# One model may be used by several threads: the first notes the sizes, the last puts them back.
_sizes_lock = threading.Lock()
_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()


@dataclass
class _Kept:
    users: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)


@contextmanager
def window_sizes_kept(module: nn.Module) -> Iterator[None]:
    """After the block the windowed layers have the sizes and shifts that they had before it."""
    layers = windowed_layers(module)
    if not layers:
        yield
        return
    with _sizes_lock:
        kept = _kept.setdefault(module, _Kept())
        kept.users += 1
        if kept.users == 1:
            kept.sizes = [(layer.window_size, layer.shift_size) for layer in layers]
    try:
        yield
    finally:
        with _sizes_lock:
            kept.users -= 1
            if kept.users == 0:
                for layer, (window, shift) in zip(layers, kept.sizes, strict=True):
                    layer.window_size, layer.shift_size = window, shift
                _kept.pop(module, None)
