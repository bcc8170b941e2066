"""Passes that begin at a layer and become a batch there: what lies below is not computed again for every item.

Items of a batch that differ only in the attention of some layers are the same up to the first of these. The states
that enter it are kept from one pass; later passes get one item, run the layers below on one position of it, whose
result is not used, and the kept states are put in, once for every item. Hooks ask whose pass they are in and are gone
afterwards, so nothing on a shared model changes and no other thread sees it. Not every model allows it: whoever
uses it compares its answer with that of a whole pass first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from analysis.hf.rule_masks import RuleMask

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_branch: ContextVar[object | None] = ContextVar("analysis_hf_branching", default=None)


@dataclass(frozen=True, eq=False)
class Branch:
    """Where passes begin.

    Attributes:
        below: blocks under the first that matters; ``above``: that one and those after it.
        states: (1, N, M) that enter it.
    """

    below: tuple[nn.Module, ...]
    above: tuple[nn.Module, ...]
    states: Tensor


def find_branch(
    module: nn.Module, layers: Sequence[nn.Module], first: int, run: Callable[[], object]
) -> Branch | None:
    """The branch at attention layer ``first``, by one pass.

    Args:
        layers: modules that attend, in their order.
        run: runs the model on the one item.
    Returns:
        None where an attention layer lies in no list of blocks, or no states could be seen.
    """
    blocks = [_block_of(module, layer) for layer in layers]
    if any(block is None for block in blocks) or len({id(block) for block in blocks}) < len(blocks):
        return None
    known: list[nn.Module] = [block for block in blocks if block is not None]
    seen: list[Tensor] = []
    own = object()

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = next((each for each in (*args, *kwargs.values()) if _are_states(each)), None)
        if _branch.get() is own and states is not None:
            seen.append(states.detach())

    token = _branch.set(own)
    hook = known[first].register_forward_pre_hook(look, with_kwargs=True)
    try:
        run()
    finally:
        hook.remove()
        _branch.reset(token)
    return Branch(tuple(known[:first]), tuple(known[first:]), seen[0]) if seen else None


def _block_of(module: nn.Module, layer: nn.Module) -> nn.Module | None:
    """The member of the outermost list of modules that holds a layer."""
    name = next((name for name, part in module.named_modules() if part is layer), None)
    parts = [] if name is None else name.split(".")
    for end in range(1, len(parts)):
        if isinstance(module.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return module.get_submodule(".".join(parts[: end + 1]))
    return None


@contextmanager
def branching(branch: Branch, count: int) -> Iterator[None]:
    """Inside the block, passes of one item in this context begin at the branch and have ``count`` items above it."""
    own = object()

    def shrink(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        return _each(_first, args, kwargs) if _branch.get() is own else None

    def put_in(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if _branch.get() is not own:
            return None
        given: list[Tensor] = [branch.states]

        def replaced(value: Any) -> Any:
            return given.pop() if given and _are_states(value) else value

        args, kwargs = _each(replaced, args, kwargs)
        return _each(lambda value: _many(value, count), args, kwargs)

    def repeat(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        return _each(lambda value: _many(value, count), args, kwargs) if _branch.get() is own else None

    token = _branch.set(own)
    try:
        with ExitStack() as hooks:
            for blocks, change in (
                (branch.below, shrink),
                (branch.above[:1], put_in),
                (branch.above[1:], repeat),
            ):
                for block in blocks:
                    hooks.callback(block.register_forward_pre_hook(change, with_kwargs=True).remove)
            yield
    finally:
        _branch.reset(token)


def _each(change: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return tuple(map(change, args)), {name: change(value) for name, value in kwargs.items()}


def _are_states(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point() and len(value) == 1


def _many(value: Any, count: int) -> Any:
    """States (1, N, M) as (count, N, M), without a copy; anything else as it is."""
    return value.expand(count, -1, -1) if _are_states(value) else value


def _first(value: Any) -> Any:
    """The part of an argument that belongs to one position; no mask, since one position sees itself."""
    if isinstance(value, RuleMask):
        return None
    if isinstance(value, tuple):
        return tuple(map(_first, value))
    if _are_states(value):
        return value[:, :1]
    if isinstance(value, Tensor) and value.ndim == 4:
        return value[..., :1, :1]
    return value
