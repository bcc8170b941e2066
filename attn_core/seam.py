"""The one function that every attention layer calls, and the context in which it is recorded.

What is recorded is decided by a context variable, never by a global or a module attribute: a model may be shared by
threads, and each thread sees its own recording alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor, nn

from attn_core.flash import flash_attention
from attn_core.functional import resolve_scale
from attn_core.maps import FactoredMap
from attn_core.masks import MaskRule


@dataclass(frozen=True)
class Recorded:
    """One call of an attention layer.

    Attributes:
        module: the layer that called.
        map: its attention, for the whole batch.
    """

    module: nn.Module
    map: FactoredMap


@dataclass
class Recording:
    """Calls in the order in which they came."""

    calls: list[Recorded] = field(default_factory=list)


_recording: ContextVar[Recording | None] = ContextVar("attn_core_recording", default=None)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record every attention that passes through ``model_attention`` in this thread (or task) inside the block.

    Blocks nest: an inner one records alone, and the outer one goes on after it.
    """
    token = _recording.set(Recording())
    record = _recording.get()
    assert record is not None
    try:
        yield record
    finally:
        _recording.reset(token)


def model_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of a model's layer, recorded when a recording is open.

    Args:
        module: the layer that calls; it is only noted, never changed.
        query, key, value, rule, bias, scale, softcap, sinks: as in ``attn_core.flash.flash_attention``.
    Returns:
        context (B, H, Q, E).
    """
    output = flash_attention(
        query, key, value, rule=rule, bias=bias, scale=scale, softcap=softcap, sinks=sinks
    )
    record = _recording.get()
    if record is not None:
        factored = FactoredMap(
            query=query.detach(),
            key=key.detach(),
            lse=output.lse.detach(),
            scale=resolve_scale(scale, query.shape[3]),
            rule=rule or MaskRule(),
            bias=None if bias is None else bias.detach(),
            softcap=softcap,
        )
        record.calls.append(Recorded(module, factored))
    return output.context
