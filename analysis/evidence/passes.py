"""One forward pass that keeps its graph, and the gradients of a target in it: what most methods share.

The graph starts at the input embeddings, so it costs little more than a plain pass, and a backward pass goes no
further down than the lowest tensor that is asked for. Parameters are not touched: ``torch.autograd.grad`` gives what
is asked and writes nothing; hooks ask whose pass they are in and are gone afterwards.

Of an input whose graph would take too much memory only what entered each block is kept
(``analysis.evidence.blocks``).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from analysis.evidence.blocks import Chain, alike, block_names, chain_bytes, graph_bytes, small_inputs
from analysis.evidence.explanation import kept_positions, position_count
from analysis.evidence.targets import Outputs, Target
from analysis.hf.attention import Kind, capture
from analysis.inputs import check_one_pass
from analysis.tokenising import takes
from attn_core.budget import budget_bytes, fits
from attn_core.errors import UnsupportedModelError
from attn_core.factored import FactoredMap
from attn_core.maps import AttentionMap
from attn_core.seam import Recorded
from attn_core.strips import strip_rows

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer of a pass, for its one item.

    Attributes:
        map: its attention.
        call: what the map was made from, part of the graph.
    """

    map: AttentionMap
    call: Recorded

    @property
    def source(self) -> Tensor:
        """The tensor of the graph from whose gradient the gradient of the weights follows."""
        found = self.call.weights if self.call.context is None else self.call.context
        assert found is not None
        return found

    def weight_gradient(self, gradient: Tensor, rows: slice) -> Tensor:
        """(H, r, K): gradient of the weights (after softmax) of some queries.

        Args:
            gradient: of ``source``, (1, H, Q, E) or (1, H, Q, K).
        """
        if self.call.value is None:
            return gradient[0, :, rows]
        value = self.call.value[0]  # (G, K, E)
        heads, groups = gradient.shape[1], value.shape[0]
        asked = gradient[0, :, rows].reshape(groups, heads // groups, -1, gradient.shape[3])
        return (asked @ value[:, None].transpose(-1, -2)).flatten(0, 1)

    def relevance_step(self, gradient: Tensor, carried: Tensor) -> Tensor | None:
        """(K,): one row of relevance carried through the layer by tiles; None where the map has to be read in rows.

        Args:
            gradient: of ``source``.
            carried: (Q,).
        """
        if not isinstance(self.map, FactoredMap) or self.call.value is None or gradient.shape[0] != 1:
            return None
        return self.map.relevance_step(carried, gradient[0], self.call.value[0])

    def strips(self) -> Iterator[slice]:
        """Runs of queries that are small enough to hold all their weights at once."""
        step = strip_rows(self.map.heads, self.map.keys)
        for start in range(0, self.map.queries, step):
            yield slice(start, min(start + step, self.map.queries))


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass of one input, with its graph.

    Attributes:
        model, inputs: whose.
        outputs: what targets read.
        layers: attention layers by kind.
        tokens: (1, N, M) what enters the self-attention of each layer of the encoder (or only stack); () where the
            model has no such tensor.
        embedded: (1, N, M) the input embeddings at which the graph starts; the encoder's in an encoder-decoder.
        chain: what entered each block, of a pass without the graph of all layers; ``tokens`` and the sources of the
            layers below the last have no graph then.
        masked: (B, C) logits of this input with parts replaced, kept by ``perturbation.target_values``.
    """

    model: LoadedModel
    inputs: Inputs
    outputs: Outputs
    layers: Mapping[Kind, tuple[Layer, ...]]
    tokens: tuple[Tensor, ...]
    embedded: Tensor
    chain: Chain | None = None
    masked: OrderedDict[tuple[object, ...], Tensor] = field(default_factory=OrderedDict, repr=False)
    _kept: dict[tuple[object, ...], Gradients] = field(default_factory=dict, repr=False)
    _top: dict[tuple[object, ...], _Step] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def value(self, target: Target) -> float:
        """The target's number."""
        with torch.no_grad():
            return float(target.value(self.outputs)[0])

    def has_gradients(self, target: Target) -> bool:
        """Whether ``gradients`` of a target are there already."""
        return target.key in self._kept

    def gradients(self, target: Target) -> Gradients:
        """Gradients of a target in every layer, by one backward pass; the last few targets are kept."""
        with self._lock:
            found = self._kept.get(target.key)
            if found is None:
                found = self._kept[target.key] = self._backward(target)
                while len(self._kept) > max(KEPT_TARGETS if fits(found.size * len(self._kept)) else 1, 1):
                    del self._kept[next(iter(self._kept))]
            return found

    def token_gradient(self, target: Target, layer: int) -> Tensor:
        """(N, M): gradient at the tokens that enter one layer's attention; nothing below that layer is computed."""
        with self._lock:
            known = self._kept.get(target.key)
            if known is not None and known.tokens:
                return known.tokens[layer]
            if self.chain is None:
                return self._grad(target, [self.tokens[layer]])[0][0]
            *_, lowest = self._down(target, self.chain, layer)
            return lowest.tokens[0]

    def _down(self, target: Target, chain: Chain, lowest: int = 0) -> Iterator[_Step]:
        """Gradients of one layer after another, from the last to the ``lowest``."""
        last = len(chain.blocks) - 1
        step = self._top.get(target.key) or self._last_step(target, chain)
        yield step
        for index in range(last - 1, lowest - 1, -1):
            step = self._through(chain, index, step.hidden)
            yield step

    def _last_step(self, target: Target, chain: Chain) -> _Step:
        """Gradients of the last layer, which serve CDAM, GradCAM and every walk further down: a few are kept."""
        (layers,) = self.layers.values()
        wanted = [layers[-1].source, self.tokens[-1], chain.blocks[-1].hidden]
        step = self._top[target.key] = _Step(*self._grad(target, wanted))
        while len(self._top) > 1 and not (
            len(self._top) <= KEPT_TARGETS and fits(step.size * len(self._top))
        ):
            del self._top[next(iter(self._top))]
        return step

    def _through(self, chain: Chain, index: int, above: Tensor) -> _Step:
        """Gradients of a layer, from that of what its block has left: the block runs again, with a graph."""
        block = chain.blocks[index]
        leaf = block.hidden.detach().requires_grad_()
        with (
            torch.enable_grad(),
            _watching(self.model) as seen,
            capture(self.model.module, graph=True) as found,
        ):
            left = block.again(leaf)
        ((call,),) = found.calls.values()
        wanted = [
            Layer(call.map, call).source,
            seen.tokens[self.model.attention_inputs[index]],
            leaf,
        ]
        return _Step(*torch.autograd.grad(left, wanted, grad_outputs=above))

    def _backward(self, target: Target) -> Gradients:
        if self.chain is not None:
            return self._backward_by_blocks(target, self.chain)
        kinds = list(self.layers)
        sources = [layer.source for kind in kinds for layer in self.layers[kind]]
        found = self._grad(target, [*sources, *self.tokens, self.embedded])
        of_layers = iter(found)
        return Gradients(
            layers={kind: tuple(next(of_layers) for _ in self.layers[kind]) for kind in kinds},
            tokens=tuple(gradient[0] for gradient in found[len(sources) : -1]),
            embedded=found[-1][0],
        )

    def _backward_by_blocks(self, target: Target, chain: Chain) -> Gradients:
        """As ``_backward``, without the gradients of the tokens: they are as large as those of the layers."""
        ((kind, _),) = self.layers.items()
        sources: list[Tensor] = []
        hidden = torch.empty(0)
        for step in self._down(target, chain):
            sources.append(step.source)
            hidden = step.hidden
        assert chain.entry is not None  # the pass has run
        (embedded,) = torch.autograd.grad(
            chain.entry, [self.embedded], grad_outputs=hidden, retain_graph=True
        )
        return Gradients(layers={kind: tuple(reversed(sources))}, tokens=(), embedded=embedded[0])

    def _grad(self, target: Target, wanted: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the target; 0 where it does not depend on a tensor.

        Raises:
            UnsupportedModelError: if the target does not depend on the input at all.
        """
        with torch.enable_grad():
            number = target.value(self.outputs)[0]
        if not math.isfinite(float(number.detach())):
            raise ValueError(
                f"gradients: the target {target.label!r} is {float(number.detach())}; choose another."
            )
        if not number.requires_grad:
            raise UnsupportedModelError(
                f"gradients: {target.label!r} does not depend on the input embeddings of this model through any "
                "differentiable operation; choose a perturbation method."
            )
        found = torch.autograd.grad(number, list(wanted), retain_graph=True, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g.detach() for g, t in zip(found, wanted, strict=True)]


KEPT_TARGETS = 8
"""Targets whose gradients a pass keeps; one where so many exceed the memory budget."""

GRAPH_BUDGETS = 4
"""How many memory budgets the graph of a pass may take: it serves every method and target of an input."""


@dataclass(frozen=True, eq=False)
class _Step:
    """Gradients of one layer: of its ``source``, of (1, N, M) the tokens that enter its attention, and of its block's
    (1, N, M) hidden states."""

    source: Tensor
    tokens: Tensor
    hidden: Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return self.source.nbytes + self.tokens.nbytes + self.hidden.nbytes


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of one target.

    Attributes:
        layers: of each layer's ``source``, by kind.
        tokens: (N, M) of the tokens that enter each layer's self-attention; () of a pass block by block.
        embedded: (N, M) of the input embeddings.
    """

    layers: Mapping[Kind, tuple[Tensor, ...]]
    tokens: tuple[Tensor, ...]
    embedded: Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        layers = [gradient for found in self.layers.values() for gradient in found]
        return sum(tensor.nbytes for tensor in (*layers, *self.tokens, self.embedded))


@dataclass
class _Seen:
    embedded: list[Tensor] = field(default_factory=list)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None


_seen: ContextVar[_Seen | None] = ContextVar("analysis_evidence_seen", default=None)


def pass_bytes(model: LoadedModel, tokens: int) -> int:
    """About how much memory ``forward_pass`` keeps of so many positions, under the budget that holds here."""
    graph = graph_bytes(model, tokens)
    whole = graph <= GRAPH_BUDGETS * budget_bytes() or not block_names(model)
    return graph if whole else chain_bytes(model, tokens)


def forward_pass(model: LoadedModel, inputs: Inputs, *, whole: bool | None = None) -> ForwardPass:
    """Run the model once on one input and keep the graph from its input embeddings to its outputs.

    Works with frozen parameters and inside ``torch.no_grad``; nothing on the model is changed, also after an
    exception.

    Args:
        whole: keep the graph of all layers; else what entered each block, from which gradients are the same. None
            keeps the graph where it takes at most ``GRAPH_BUDGETS`` memory budgets, and of a model that is no chain
            of blocks, as tried on a small part of the input.
    Raises:
        UnsupportedModelError: if the model's attention cannot be seen or its input embeddings are not known, or it
            attends inside windows (Swin) or bands (Longformer); if the graph is to be kept by blocks, of a model that
            is no chain of them.
    """
    check_one_pass(inputs, "forward_pass")
    if whole is None:
        fitting = graph_bytes(model, position_count(inputs)) <= GRAPH_BUDGETS * budget_bytes()
        whole = fitting or not _is_chain(model, inputs)
    chain = None if whole else Chain(block_names(model))
    if chain is not None and not chain.names:
        raise UnsupportedModelError(
            f"forward_pass: the blocks of {model.title} are not known, so its graph must be kept whole; choose a "
            "shorter input, or allow more memory."
        )
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.enable_grad(), _watching(model, chain) as seen, capture(model.module, graph=True) as captured:
        output = model.module(**tensors, **_without_cache(model, chain))
    maps: dict[Kind, tuple[AttentionMap, ...]] = {
        "encoder": captured.encoder, "decoder": captured.decoder, "cross": captured.cross
    }  # fmt: skip
    for kind, found in maps.items():
        if found and (kind not in captured.calls or any(layer.batch != 1 for layer in found)):
            raise UnsupportedModelError(
                f"forward_pass: {model.title} attends inside windows, so the gradient of its weights has no place "
                "over the whole input; choose another model."
            )
    if not seen.embedded:
        raise UnsupportedModelError(
            f"forward_pass: the input embeddings of {model.title} were not seen; choose another model."
        )
    outputs = Outputs(
        logits=getattr(output, "logits", None),
        hidden=seen.hidden,
        kept=kept_positions(inputs).to(model.device),
    )
    layers = {
        kind: tuple(Layer(layer, call) for layer, call in zip(found, captured.calls[kind], strict=True))
        for kind, found in maps.items()
        if found
    }
    names = model.attention_inputs
    tokens = tuple(seen.tokens[name] for name in names) if all(name in seen.tokens for name in names) else ()
    count = position_count(inputs)
    if any(tensor.shape[:2] != (1, count) for tensor in tokens):
        tokens = ()
    if chain is not None and not (tokens and [len(found) for found in layers.values()] == [len(tokens)]):
        raise UnsupportedModelError(
            f"forward_pass: {model.title} does not attend once in each block, so its graph must be kept whole; "
            "choose a shorter input, or allow more memory."
        )
    return ForwardPass(model, inputs, outputs, layers, tokens, seen.embedded[0], chain)


def _without_cache(model: LoadedModel, chain: Chain | None) -> dict[str, bool]:
    """What keeps a decoder's blocks from leaving their keys for later tokens: run again, they would find them."""
    return {"use_cache": False} if chain is not None and takes(model.module, "use_cache") else {}


def _is_chain(model: LoadedModel, inputs: Inputs) -> bool:
    """Whether gradients carried down block by block are those of the whole graph, on a small part of the input."""
    if not block_names(model):
        return False
    small = small_inputs(model, inputs)
    try:
        found, expected = (
            forward_pass(model, small, whole=whole).gradients(_EVERYTHING) for whole in (False, True)
        )
    except UnsupportedModelError:
        return False
    ((one, other),) = zip(found.layers.values(), expected.layers.values(), strict=True)
    return alike(found.embedded, expected.embedded) and all(map(alike, one, other))


def _everything(outputs: Outputs) -> Tensor:
    """(B,): all numbers of the output, each with a weight of its own."""
    total = torch.zeros(1)
    for part in (outputs.logits, outputs.hidden):
        if part is not None:
            flat = part.flatten(1).double()
            total = total.to(flat) + flat @ torch.linspace(-1.0, 2.0, flat.shape[1]).to(flat)
    return total


_EVERYTHING = Target("everything", "everything", _everything, ("everything",))


def plain_outputs(model: LoadedModel, tensors: Mapping[str, Tensor], kept: Tensor) -> Outputs:
    """Outputs of a pass without a graph, for a batch of any size: what perturbation methods read."""
    with torch.no_grad():
        return graph_outputs(model, tensors, kept)


def graph_outputs(model: LoadedModel, tensors: Mapping[str, Tensor], kept: Tensor) -> Outputs:
    """Outputs of a pass with whatever graph its tensors bring; attention is not captured."""
    given = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    with _watching(model, graph=False) as seen:
        output = model.module(**given)
    return Outputs(getattr(output, "logits", None), seen.hidden, kept.to(model.device))


def input_embeddings(module: nn.Module) -> nn.Module | None:
    """The module that turns ids or pixels into vectors; the encoder's of an encoder-decoder."""
    return next(iter(_embeddings(module)), None)


def _embeddings(module: nn.Module) -> list[nn.Module]:
    """Every module that does so, the encoder's first; stacks may share one, or have their own of the same weights."""
    found: list[nn.Module] = []
    for part in ("get_encoder", "get_decoder", None):
        owner = module if part is None else getattr(module, part, lambda: None)()
        getter = getattr(owner, "get_input_embeddings", None)
        try:
            embeddings = getter() if getter is not None else getattr(owner, "embedding", None)
        except (NotImplementedError, AttributeError):
            continue
        if isinstance(embeddings, nn.Module) and all(embeddings is not other for other in found):
            found.append(embeddings)
    return found


@contextmanager
def _watching(model: LoadedModel, chain: Chain | None = None, *, graph: bool = True) -> Iterator[_Seen]:
    """See embeddings, tokens and hidden state of the passes of this context; start a graph at the embeddings.

    Args:
        chain: filled with what enters each block.
    """
    seen = _Seen()
    token = _seen.set(seen)

    def start(_: nn.Module, __: Any, output: Any) -> Any:
        if _seen.get() is not seen:
            return None
        first = _first(output)
        if first is None or not first.is_floating_point():
            return None
        leaf = first.detach().requires_grad_()
        seen.embedded.append(leaf)
        return leaf if isinstance(output, Tensor) else (leaf, *output[1:])

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            first = _first(output)
            if _seen.get() is seen and first is not None:
                seen.tokens[name] = first

        return hook

    def finish(_: nn.Module, __: Any, output: Any) -> None:
        if _seen.get() is seen:
            found = getattr(output, "encoder_last_hidden_state", None)
            seen.hidden = getattr(output, "last_hidden_state", None) if found is None else found

    def enter(block: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return chain.enter(block, arguments, keywords) if chain is not None and _seen.get() is seen else None

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        if chain is not None and _seen.get() is seen:
            chain.leave(output)

    base = getattr(model.module, "base_model", model.module)
    try:
        with ExitStack() as hooks:
            for name in () if chain is None else chain.names:
                block = model.module.get_submodule(name)
                hooks.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
                hooks.callback(block.register_forward_hook(leave).remove)
            for embeddings in _embeddings(model.module) if graph else ():
                hooks.callback(embeddings.register_forward_hook(start).remove)
            for name in model.attention_inputs if graph else ():
                hooks.callback(model.module.get_submodule(name).register_forward_hook(keep(name)).remove)
            hooks.callback(base.register_forward_hook(finish).remove)
            yield seen
    finally:
        _seen.reset(token)


def _first(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    return None
