"""Attention of any transformers model: the one function registered with the library, and ``capture``.

Every attention layer of the library calls a function that a program may register. This module registers one, under
``IMPLEMENTATION``, when it is imported; it computes with ``attn_core`` and records what the layer used: query and key
after rotary embedding, mask rule, bias, scale and soft cap. Masks are kept as rules, not as n × n arrays.

Models that do not go through the interface (DeBERTa-v2, Bloom, Longformer ...) are captured through
``output_attentions``.
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from analysis.hf.bands import BandLayout, band_layer, band_notes, banded_map
from analysis.hf.bias import watching_tables
from analysis.hf.rule_masks import RuleMask, rule_mask
from analysis.hf.windows import Grid, WindowCall, stored_windows, watching_windows, windowed_notes
from attn_core.errors import UnsupportedModelError
from attn_core.maps import AttentionMap, DenseMap
from attn_core.masks import MaskRule
from attn_core.seam import Recorded, model_attention, recording
from attn_core.torch_modules import recording_multihead

IMPLEMENTATION = "attnscope"
"""Name of our function in the library's registry."""

Kind = Literal["encoder", "decoder", "cross"]

_CROSS_NAMES = ("encoder_attn", "encdecattention", "crossattention", "cross_attn", "cross_attention")


def seam_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Our entry in the library's attention interface.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E).
        attention_mask: a ``RuleMask``, a boolean or additive tensor, or None.
        position_bias: added to the scores (T5's relative positions).
        s_aux: (H,) attention sinks (gpt-oss).
    Returns:
        context (B, Q, H, E), and no weights: they are recomputed when asked for.
    Raises:
        UnsupportedModelError: during training with dropout, which recorded weights would not show.
    """
    if dropout:
        raise UnsupportedModelError(
            f"capture: {type(module).__name__} applies attention dropout of {dropout}; call model.eval() first."
        )
    rule, bias = _rule_and_bias(attention_mask)
    if attention_mask is None:
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        rule = MaskRule(causal=True) if causal and query.shape[2] > 1 else None
    if position_bias is not None:
        position_bias = position_bias.to(query.dtype)
        bias = position_bias if bias is None else bias + position_bias
    context = model_attention(
        module, query, key, value, rule=rule, bias=bias, scale=scaling, softcap=softcap, sinks=s_aux
    )
    return context.transpose(1, 2).contiguous(), None


def _rule_and_bias(mask: Tensor | None) -> tuple[MaskRule | None, Tensor | None]:
    if mask is None:
        return None, None
    if isinstance(mask, RuleMask):
        return (None if mask.rule.is_trivial else mask.rule), None
    if mask.dtype == torch.bool:
        return MaskRule(predicate=functools.partial(_looked_up, mask), predicate_batch=mask.shape[0]), None
    return None, mask


def _looked_up(mask: Tensor, items: Tensor, heads: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A ready boolean mask (B, 1, Q, K) as a predicate."""
    return mask[items, heads, q if mask.shape[2] > 1 else torch.zeros_like(q), k]


AttentionInterface.register(IMPLEMENTATION, seam_attention)
AttentionMaskInterface.register(IMPLEMENTATION, rule_mask)


@dataclass
class AttentionTrace:
    """What was captured; complete after the block, and valid as long as it is kept.

    Attributes:
        encoder, decoder, cross: one map a layer, for the whole batch. Decoder-only models fill ``decoder``.
        fallback: the weights came from ``output_attentions``, since the model does not use the interface.
        notes: what a reader must know.
        grids: rows and columns of each encoder layer that attends inside windows of a grid, None for a layer that
            does not or whose windows could not be placed; () where no layer has windows.
        calls: what each map was made from, by kind and in the order of the maps, where the graph was kept.
    """

    encoder: tuple[AttentionMap, ...] = ()
    decoder: tuple[AttentionMap, ...] = ()
    cross: tuple[AttentionMap, ...] = ()
    fallback: bool = False
    notes: tuple[str, ...] = ()
    grids: tuple[Grid | None, ...] = ()
    calls: Mapping[Kind, tuple[Recorded, ...]] = field(default_factory=dict)

    def item(self, index: int) -> AttentionTrace:
        """The trace of one batch item, padding cut out: equal to the trace of the item alone.

        Raises:
            IndexError: if there is no such item.
        """
        decoder_rows = _valid_rows(self.decoder, index)
        encoder = tuple(m.item(index) for m in self.encoder)
        return AttentionTrace(
            encoder=encoder,
            decoder=tuple(m.item(index) for m in self.decoder),
            cross=tuple(m.item(index, rows=decoder_rows) for m in self.cross),
            fallback=self.fallback,
            notes=tuple(dict.fromkeys(self.notes + band_notes(encoder))),
            grids=self.grids,
        )


def _valid_rows(maps: tuple[AttentionMap, ...], index: int) -> Tensor | None:
    """Query positions of an item that are no padding, as the decoder's own self-attention tells."""
    valid = _rule_of(maps[0]).key_valid if maps else None
    if valid is None or maps[0].queries != maps[0].keys:
        return None
    return valid[index].nonzero()[:, 0]


@contextmanager
def capture(module: nn.Module, *, graph: bool = False) -> Iterator[AttentionTrace]:
    """Capture the attention of one forward pass of a model inside the block: transformers' or PyTorch's own layers.

    A generation with a cache counts as one pass: the rows of its steps are put together into one map a layer.

    ``with capture(model) as trace: model(**inputs)``; then ``trace.encoder[layer].row(head, query)`` and so on.
    The outputs are the model's own. Nothing stays changed on the model after the block, also after an exception; two
    threads may capture on one model at the same time, each gets its own pass.

    Args:
        graph: also fill ``trace.calls``, from which gradients of the weights can be had; of one pass without windows,
            through the library's interface, ``attn_core.models`` or ``output_attentions``.
    Raises:
        UnsupportedModelError: if no attention was seen in the block.
    """
    trace = AttentionTrace()
    if not isinstance(module, PreTrainedModel):
        with recording_multihead(module) as layers, recording(graph=graph) as record:
            yield trace
        if record.calls:
            _fill_from_calls(trace, module, record.calls, _kind_of_own)
            trace.calls = _by_map(trace, record.calls) if graph else {}
        else:
            _fill_from_layers(trace, layers)
    elif uses_interface(module):
        with (
            watching_windows(module, ask_weights=False) as windows,
            switched(module),
            recording(graph=graph) as record,
            watching_tables(module),
        ):
            yield trace
        _fill_from_calls(trace, module, record.calls, functools.partial(_kind, module))
        _place_windows(trace, record.calls, windows)
        trace.calls = _by_map(trace, record.calls) if graph else {}
    else:
        with watching_windows(module, ask_weights=True) as windows, _attentions_requested(module) as asked:
            yield trace
        if windows:
            _fill_from_windows(trace, module, windows)
        else:
            stored = _fill_from_outputs(trace, module, asked.passes)
            trace.calls = _by_map(trace, stored) if graph else {}
    if not (trace.encoder or trace.decoder or trace.cross):
        raise UnsupportedModelError(
            f"capture: no attention of {type(module).__name__} was seen; call the model inside the block, "
            "or choose a model whose attention goes through transformers' interface or nn.MultiheadAttention."
        )


def _by_map(trace: AttentionTrace, calls: list[Recorded]) -> dict[Kind, tuple[Recorded, ...]]:
    """The calls that the maps came from; a map that was put together from several calls has none."""
    made = {id(call.map): call for call in calls}
    kinds: dict[Kind, tuple[AttentionMap, ...]] = {
        "encoder": trace.encoder, "decoder": trace.decoder, "cross": trace.cross
    }  # fmt: skip
    return {
        kind: tuple(made[id(layer)] for layer in maps)
        for kind, maps in kinds.items()
        if maps and all(id(layer) in made for layer in maps)
    }


def uses_interface(module: nn.Module) -> bool:
    """Whether the attention of this model goes through the library's attention interface; not one of ours."""
    if not isinstance(module, PreTrainedModel):
        return False
    models = [m for m in module.modules() if isinstance(m, PreTrainedModel)]
    return all(type(m)._can_set_attn_implementation() for m in models)


# One model may be captured by several threads: the first switches it to our function, the last switches it back.
_switch_lock = threading.Lock()
_switches: WeakKeyDictionary[nn.Module, _Switch] = WeakKeyDictionary()


@dataclass
class _Switch:
    users: int = 0
    before: list[tuple[Any, str | None]] = field(default_factory=list)


@contextmanager
def switched(module: PreTrainedModel) -> Iterator[None]:
    """The model calls our function inside the block; several threads may be in such blocks at the same time."""
    with _switch_lock:
        switch = _switches.setdefault(module, _Switch())
        switch.users += 1
        if switch.users == 1:
            switch.before = [(c, c._attn_implementation_internal) for c in _configs(module)]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module.set_attn_implementation(IMPLEMENTATION)
            except BaseException:
                _restore(module, switch)
                raise
    try:
        yield
    finally:
        with _switch_lock:
            switch.users -= 1
            if switch.users == 0:
                _restore(module, switch)


def _restore(module: nn.Module, switch: _Switch) -> None:
    for config, implementation in switch.before:
        config._attn_implementation_internal = implementation
    _switches.pop(module, None)


def _configs(module: PreTrainedModel) -> list[Any]:
    """Every configuration object of the model and its parts, each once."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [m.config for m in module.modules() if isinstance(m, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in found:
            continue
        found[id(config)] = config
        waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    return list(found.values())


def _fill_from_calls(
    trace: AttentionTrace,
    module: nn.Module,
    calls: list[Recorded],
    kind_of: Callable[[str, Recorded], Kind],
) -> None:
    names = {id(part): name for name, part in module.named_modules()}
    maps: dict[Kind, list[AttentionMap]] = {"encoder": [], "decoder": [], "cross": []}
    own = [call for call in calls if id(call.module) in names]  # another model may be called inside the block
    steps: dict[int, list[AttentionMap]] = {}
    for call in own:
        steps.setdefault(id(call.module), []).append(call.map)
    generating = any(_grows(layers) for layers in steps.values())
    for call in own:
        kind, layers = kind_of(names[id(call.module)], call), steps[id(call.module)]
        stitched = _grows(layers) or (generating and kind == "cross" and len(layers) > 1)
        if not stitched:
            maps[kind].append(call.map)
        elif call.map is layers[0]:
            maps[kind].append(_stitched(layers))
    trace.encoder, trace.decoder, trace.cross = (tuple(maps[k]) for k in ("encoder", "decoder", "cross"))


def _place_windows(trace: AttentionTrace, calls: list[Recorded], windows: list[WindowCall]) -> None:
    """Read the maps of windowed layers over their grids."""
    if not windows:
        return
    waiting = list(windows)
    placed: dict[int, WindowCall] = {}
    for call in calls:
        if waiting and any(call.module is part for part in waiting[0].attention.modules()):
            placed[id(call.map)] = waiting.pop(0)
    found = [placed.get(id(layer)) for layer in trace.encoder]
    trace.grids = tuple(window.grid if window else None for window in found)
    trace.encoder = tuple(
        window.over_the_grid(layer) if window else layer
        for layer, window in zip(trace.encoder, found, strict=True)
    )
    trace.notes += windowed_notes(windows)


def _fill_from_windows(trace: AttentionTrace, module: PreTrainedModel, windows: list[WindowCall]) -> None:
    trace.fallback = True
    trace.encoder = stored_windows(windows)
    trace.grids = tuple(window.grid for window in windows if window.weights is not None)
    trace.notes = (
        f"{type(module).__name__} does not use transformers' attention interface: its weights were read from its "
        "attention modules, so every layer holds the weights of its windows.",
        *windowed_notes(windows),
    )


def _grows(layers: list[AttentionMap]) -> bool:
    """Whether the calls of one layer are steps of a generation with a cache: each adds its queries to the keys."""
    return len(layers) > 1 and all(
        after.keys == before.keys + after.queries and after.batch == before.batch
        for before, after in itertools.pairwise(layers)
    )


def _stitched(layers: list[AttentionMap]) -> DenseMap:
    """One map of all steps of a generation: the rows of each step below those of the step before, later keys 0."""
    keys = layers[-1].keys
    rows = [nn.functional.pad(step.weights(), (0, keys - step.keys)) for step in layers]
    weights = torch.cat(rows, dim=2)
    valid = _rule_of(layers[-1]).key_valid
    return DenseMap(
        stored=weights,
        row_valid=valid if weights.shape[2] == keys else None,
        key_valid=valid,
        groups=layers[-1].kv_heads,
    )


def _rule_of(layer: AttentionMap) -> MaskRule:
    """The mask rule of a map that has one; a rule that allows all for one that keeps its weights."""
    rule: MaskRule = getattr(layer, "rule", None) or MaskRule()
    return rule


def _kind(module: PreTrainedModel, name: str, call: Recorded) -> Kind:
    lowered = name.lower()
    if any(part in lowered for part in _CROSS_NAMES):
        return "cross"
    if module.config.is_encoder_decoder:
        return "decoder" if "decoder" in lowered.split(".") else "encoder"
    causal = getattr(call.module, "is_causal", False) or _rule_of(call.map).causal
    return "decoder" if causal or getattr(module.config, "is_decoder", False) else "encoder"


def _kind_of_own(name: str, call: Recorded) -> Kind:
    """The kind of a layer of ``attn_core.models``: by its name, else what is not square and not causal is cross."""
    causal = _rule_of(call.map).causal
    if any(part in name.lower() for part in _CROSS_NAMES):
        return "cross"
    if not causal and call.map.queries != call.map.keys:
        return "cross"
    return "decoder" if causal or "decoder" in name.lower().split(".") else "encoder"


def _fill_from_layers(trace: AttentionTrace, layers: list[tuple[str, DenseMap]]) -> None:
    trace.fallback = True
    trace.notes = ("Weights were read from nn.MultiheadAttention, so every layer holds its n × n array.",)
    for name, layer in layers:
        parts = name.lower().split(".")
        if "multihead_attn" in parts:  # the cross-attention of nn.TransformerDecoderLayer
            trace.cross += (layer,)
        elif "decoder" in parts:
            trace.decoder += (layer,)
        else:
            trace.encoder += (layer,)


# Fallback: the model's own output_attentions, asked for and read by hooks that only act for this context.


@dataclass(frozen=True)
class _Pass:
    """Output of one forward pass, what it was given, and the layout of attention within windows, where it is that."""

    output: Any
    given: dict[str, Any]
    layout: BandLayout | None


@dataclass
class _Asked:
    passes: list[_Pass] = field(default_factory=list)
    layout: BandLayout | None = None  # of the pass that is under way


_asked: ContextVar[_Asked | None] = ContextVar("analysis_hf_attentions", default=None)


@contextmanager
def _attentions_requested(module: PreTrainedModel) -> Iterator[_Asked]:
    asked = _Asked()
    token = _asked.set(asked)

    # A hook that is removed while another thread runs the model may still be called there, and without its kwargs
    # (torch looks the flag up after it has listed the hooks), so it asks whose call this is before it reads them.
    def ask(_: nn.Module, args: tuple[Any, ...], *more: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if _asked.get() is not asked:
            return None
        (kwargs,) = more
        return args, {**kwargs, "output_attentions": True, "return_dict": True}

    def read(_: nn.Module, __: tuple[Any, ...], *more: Any) -> None:
        if _asked.get() is asked:
            kwargs, output = more
            asked.passes.append(_Pass(output, kwargs, asked.layout))
            asked.layout = None

    def look(_: nn.Module, __: tuple[Any, ...], *more: Any) -> None:
        if _asked.get() is asked:
            (kwargs,) = more
            asked.layout = BandLayout(kwargs["is_index_masked"], kwargs["is_index_global_attn"])

    hooks = [
        module.register_forward_pre_hook(ask, with_kwargs=True),
        module.register_forward_hook(read, with_kwargs=True),
    ]
    windowed = band_layer(module)
    if windowed is not None:
        hooks.append(windowed.register_forward_pre_hook(look, with_kwargs=True))
    try:
        yield asked
    finally:
        for hook in hooks:
            hook.remove()
        _asked.reset(token)


def _fill_from_outputs(trace: AttentionTrace, module: PreTrainedModel, passes: list[_Pass]) -> list[Recorded]:
    """Fill the trace; the maps with the tensors, as the model handed them out, that they were made from."""
    trace.fallback = True
    held = "window around each token" if band_layer(module) is not None else "n × n array"
    trace.notes = (
        f"{type(module).__name__} does not use transformers' attention interface: its weights were read through "
        f"output_attentions, so every layer holds its {held}.",
    )
    causal = getattr(module.config, "is_decoder", False) or module.config.model_type in _CAUSAL_FALLBACKS
    made: list[Recorded] = []

    def keep(layers: tuple[AttentionMap, ...], handed: Any) -> tuple[AttentionMap, ...]:
        found = [weights for weights in handed or () if weights is not None]
        made.extend(Recorded(module, layer, weights=w) for layer, w in zip(layers, found, strict=True))
        return layers

    for done in passes:
        valid, target = _valid(done, "attention_mask"), _valid(done, "decoder_attention_mask")
        own = keep(_self_attention(module, done, "", valid), done.output.get("attentions"))
        trace.encoder += keep(
            _self_attention(module, done, "encoder_", valid), done.output.get("encoder_attentions")
        )
        trace.encoder += () if causal else own
        trace.decoder += own if causal else ()
        for kind, name, columns in (
            ("decoder", "decoder_attentions", target),
            ("cross", "cross_attentions", valid),
        ):
            handed = done.output.get(name)
            layers = tuple(_stored(weights, target, columns) for weights in handed or ())
            setattr(trace, kind, getattr(trace, kind) + keep(layers, handed))
    return made


def _valid(done: _Pass, name: str) -> Tensor | None:
    mask = done.given.get(name)
    return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _self_attention(
    module: PreTrainedModel, done: _Pass, prefix: str, valid: Tensor | None
) -> tuple[AttentionMap, ...]:
    weights = done.output.get(f"{prefix}attentions") or ()
    if done.layout is None:
        return tuple(_stored(_square(w, module), valid, valid) for w in weights if w is not None)
    of_global = done.output.get(f"{prefix}global_attentions") or (None,) * len(weights)
    return tuple(banded_map(w, g, done.layout) for w, g in zip(weights, of_global, strict=True))


def _square(weights: Tensor, module: nn.Module) -> Tensor:
    """Self-attention over all positions; chunks of neighbours are not one.

    Raises:
        UnsupportedModelError: some models hand out windows at relative positions, which read as a map of queries and
            keys would be wrong.
    """
    if weights.ndim != 4 or weights.shape[-1] != weights.shape[-2]:
        raise UnsupportedModelError(
            f"capture: {type(module).__name__} hands out attention of shape {tuple(weights.shape)}, windows at "
            "relative positions and no map of queries and keys; choose a model that attends over the whole text."
        )
    return weights


_CAUSAL_FALLBACKS = frozenset({"bloom", "codegen", "ctrl", "xlnet", "gptj", "mpt"})


def _stored(weights: Tensor, row_valid: Tensor | None, key_valid: Tensor | None) -> DenseMap:
    """A map without its padding, where the mask is that of its positions and not of a step with a cache."""
    queries, keys = weights.shape[2:]
    return DenseMap(
        stored=weights.detach(),
        row_valid=row_valid if row_valid is not None and row_valid.shape[1] == queries else None,
        key_valid=key_valid if key_valid is not None and key_valid.shape[1] == keys else None,
    )
