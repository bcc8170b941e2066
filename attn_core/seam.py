"""The one function that every attention layer calls, and the contexts in which it is recorded and edited.

What is recorded and what is edited is decided by context variables, never by a global or a module attribute: a model
may be shared by threads, and each thread sees its own recording and its own edits alone. They are read in the forward
pass only, since backward passes may run on threads of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from attn_core.bias import Bias, RelativeBias, TableBias
from attn_core.edits import AttentionCall, HeadEdit, WeightedCall, edited_map, gated, replaced_context
from attn_core.factored import FactoredMap
from attn_core.flash import flash_attention
from attn_core.functional import repeat_groups, resolve_scale
from attn_core.maps import AttentionMap, DenseMap
from attn_core.masks import MaskRule


@dataclass(frozen=True)
class Recorded:
    """One call of an attention layer.

    Attributes:
        module: the layer that called.
        map: its attention, for the whole batch.
        value: (B, G, K, E) that the weights were applied to, and ``context``: (B, H, Q, E) that came out, still part
            of the graph and before the gates of an edit; where the recording keeps the graph.
        weights: (B, H, Q, K) still part of the graph, of a layer that hands out nothing else.
    """

    module: nn.Module
    map: AttentionMap
    value: Tensor | None = None
    context: Tensor | None = None
    weights: Tensor | None = None


@dataclass
class Recording:
    """Calls in the order in which they came.

    Attributes:
        graph: keep what gradients of the weights are made from.
        tables: bias tensors that were looked at, by identity, with the table that each was made from, if it was. A
            model may share one tensor between its layers; none is kept alive here.
    """

    graph: bool = False
    calls: list[Recorded] = field(default_factory=list)
    tables: dict[int, tuple[weakref.ref[Tensor], TableBias | None]] = field(default_factory=dict)

    def smallest(self, bias: Bias | None) -> Bias | None:
        """What to keep of a bias: its table where it has one, else the bias itself."""
        if not isinstance(bias, Tensor):
            return None if bias is None else bias.detach()
        known = self.tables.get(id(bias))
        if known is None or known[0]() is not bias:
            known = self.note(bias, RelativeBias.recognised(bias.detach()))
        return bias.detach() if known[1] is None else known[1]

    def note(self, bias: Tensor, table: TableBias | None) -> tuple[weakref.ref[Tensor], TableBias | None]:
        """Keep in mind which table a bias tensor was made from."""
        entry = weakref.ref(bias), table
        self.tables[id(bias)] = entry
        return entry


_recording: ContextVar[Recording | None] = ContextVar("attn_core_recording", default=None)


Edit = Callable[[nn.Module], HeadEdit | None]
"""Asked at every call of a layer what becomes of its heads; None leaves them."""

_editing: ContextVar[Edit | None] = ContextVar("attn_core_editing", default=None)


@contextmanager
def editing(edit: Edit) -> Iterator[None]:
    """Edit heads of every layer that calls ``model_attention`` in this thread (or task) inside the block.

    Goes with ``recording`` in either order: what is recorded of an edited layer shows the edited weights. Blocks
    nest: an inner one edits alone, and the outer one goes on after it.

    Args:
        edit: asked at every call with the layer that calls; see ``attn_core.edits`` for what it may answer.
    """
    token = _editing.set(edit)
    try:
        yield
    finally:
        _editing.reset(token)


@contextmanager
def recording(*, graph: bool = False) -> Iterator[Recording]:
    """Record every attention that passes through ``model_attention`` in this thread (or task) inside the block.

    Blocks nest: an inner one records alone, and the outer one goes on after it.

    Args:
        graph: also keep value and context of each call, from which the gradient of any weight follows:
            dL/dP[i, j] = dL/dcontext[i] · value[j].
    """
    token = _recording.set(Recording(graph=graph))
    record = _recording.get()
    assert record is not None
    try:
        yield record
    finally:
        _recording.reset(token)


def bias_made_from(bias: Tensor, table: TableBias) -> None:
    """Say that a bias tensor, which a layer is about to be given, holds exactly the numbers of a table.

    In an open recording the table is kept in the tensor's place. Without one nothing happens.
    """
    record = _recording.get()
    if record is not None:
        record.note(bias, table.detach())


def known_table(bias: Tensor) -> TableBias | None:
    """The table that ``bias_made_from`` named in the open recording; None without either."""
    record = _recording.get()
    known = None if record is None else record.tables.get(id(bias))
    return known[1] if known is not None and known[0]() is bias else None


def record_map(module: nn.Module, attention: AttentionMap) -> None:
    """Record attention that is no softmax of query · key, such as additive attention, when a recording is open."""
    record = _recording.get()
    if record is not None:
        record.calls.append(Recorded(module, attention))


def model_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of a model's layer, recorded when a recording is open and edited when an edit is.

    Args:
        module: the layer that calls; it is only noted, never changed.
        query, key, value, rule, bias, scale, softcap, sinks: as in ``attn_core.flash.flash_attention``. Of a
            bias that depends on key − query alone the table is recorded, also where it comes as a tensor.
    Returns:
        context (B, H, Q, E).
    Raises:
        ValueError: if the open edit is not for this layer's heads and batch.
        MemoryBudgetError: if a recording is open and the edited weights do not fit.
    """
    output = flash_attention(
        query, key, value, rule=rule, bias=bias, scale=scale, softcap=softcap, sinks=sinks
    )
    call = AttentionCall(
        query, key, value, resolve_scale(scale, query.shape[3]), rule or MaskRule(), bias, softcap, sinks
    )
    asked = _editing.get()
    edit = (None if asked is None else asked(module)) or HeadEdit()
    context = replaced_context(call, output.context, edit)
    record = _recording.get()
    if record is not None:
        found = edited_map(call, edit) if edit.replaced else _factored(call, output.lse, record)
        kept = (value.detach(), context) if record.graph else (None, None)
        record.calls.append(Recorded(module, found, *kept))
    return gated(call, context, edit)


def weighted_values(
    module: nn.Module, weights: Tensor, value: Tensor, *, rule: MaskRule | None = None
) -> Tensor:
    """The rest of a layer whose weights are no softmax of query · key: additive attention, a Gaussian window.

    Recorded and edited as in ``model_attention``; the weights are kept as they are.

    Args:
        module: the layer that calls.
        weights: (B, H, Q, K), at least float32, 0 where the rule forbids.
        value: (B, G, K, E), G divides H.
        rule: that the weights follow; None = all pairs may attend.
    Returns:
        context (B, H, Q, E) in value's dtype.
    Raises:
        ValueError: if the open edit is not for this layer's heads and batch.
        MemoryBudgetError: if a recording is open and the edited weights do not fit.
    """
    call = WeightedCall.of(weights, value, rule or MaskRule())
    asked = _editing.get()
    edit = (None if asked is None else asked(module)) or HeadEdit()
    context = weights.to(value.dtype) @ repeat_groups(value, weights.shape[1])
    context = replaced_context(call, context, edit)
    record = _recording.get()
    if record is not None:
        valid = call.rule.key_valid
        if edit.replaced:  # rows are a decoder's, whose padding the rule does not tell
            found: AttentionMap = replace(edited_map(call, edit), row_valid=None)
        else:
            found = DenseMap(stored=weights.detach(), key_valid=valid, groups=value.shape[1])
        kept = (value.detach(), context, weights) if record.graph else ()
        record.calls.append(Recorded(module, found, *kept))
    return gated(call, context, edit)


def _factored(call: AttentionCall, lse: Tensor, record: Recording) -> FactoredMap:
    return FactoredMap(
        query=call.query.detach(),
        key=call.key.detach(),
        lse=lse.detach(),
        scale=call.scale,
        rule=call.rule,
        bias=record.smallest(call.bias),
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.detach(),
    )
