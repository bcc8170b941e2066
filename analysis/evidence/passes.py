"""One forward pass that keeps its graph, and the gradients of a target in it: what most methods share.

The graph starts at the input embeddings, so it costs little more than a plain pass, and a backward pass goes no
further down than the lowest tensor that is asked for. Parameters are not touched: ``torch.autograd.grad`` gives what
is asked and writes nothing; hooks ask whose pass they are in and are gone afterwards.
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

from analysis.evidence.explanation import kept_positions, position_count
from analysis.evidence.targets import Outputs, Target
from analysis.hf.attention import Kind, capture
from attn_core.errors import UnsupportedModelError
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
        masked: (B, C) logits of this input with parts replaced, kept by ``perturbation.target_values``.
    """

    model: LoadedModel
    inputs: Inputs
    outputs: Outputs
    layers: Mapping[Kind, tuple[Layer, ...]]
    tokens: tuple[Tensor, ...]
    embedded: Tensor
    masked: OrderedDict[tuple[object, ...], Tensor] = field(default_factory=OrderedDict, repr=False)
    _kept: dict[tuple[object, ...], Gradients] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def value(self, target: Target) -> float:
        """The target's number."""
        with torch.no_grad():
            return float(target.value(self.outputs)[0])

    def gradients(self, target: Target) -> Gradients:
        """Gradients of a target in every layer, by one backward pass; the last few targets are kept."""
        with self._lock:
            found = self._kept.get(target.key)
            if found is None:
                found = self._kept[target.key] = self._backward(target)
                while len(self._kept) > KEPT_TARGETS:
                    del self._kept[next(iter(self._kept))]
            return found

    def token_gradient(self, target: Target, layer: int) -> Tensor:
        """(N, M): gradient at the tokens that enter one layer's attention; nothing below that layer is computed."""
        with self._lock:
            known = self._kept.get(target.key)
            if known is not None:
                return known.tokens[layer]
            return self._grad(target, [self.tokens[layer]])[0][0]

    def _backward(self, target: Target) -> Gradients:
        kinds = list(self.layers)
        sources = [layer.source for kind in kinds for layer in self.layers[kind]]
        found = self._grad(target, [*sources, *self.tokens, self.embedded])
        of_layers = iter(found)
        return Gradients(
            layers={kind: tuple(next(of_layers) for _ in self.layers[kind]) for kind in kinds},
            tokens=tuple(gradient[0] for gradient in found[len(sources) : -1]),
            embedded=found[-1][0],
        )

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
"""Targets whose gradients a pass keeps."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of one target.

    Attributes:
        layers: of each layer's ``source``, by kind.
        tokens: (N, M) of the tokens that enter each layer's self-attention.
        embedded: (N, M) of the input embeddings.
    """

    layers: Mapping[Kind, tuple[Tensor, ...]]
    tokens: tuple[Tensor, ...]
    embedded: Tensor


@dataclass
class _Seen:
    embedded: list[Tensor] = field(default_factory=list)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None


_seen: ContextVar[_Seen | None] = ContextVar("analysis_evidence_seen", default=None)


def forward_pass(model: LoadedModel, inputs: Inputs) -> ForwardPass:
    """Run the model once on one input and keep the graph from its input embeddings to its outputs.

    Works with frozen parameters and inside ``torch.no_grad``; nothing on the model is changed, also after an
    exception.

    Raises:
        UnsupportedModelError: if the model's attention cannot be seen or its input embeddings are not known, or it
            attends inside windows (Swin) or bands (Longformer).
    """
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.enable_grad(), _watching(model) as seen, capture(model.module, graph=True) as captured:
        output = model.module(**tensors)
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
    return ForwardPass(model, inputs, outputs, layers, tokens, seen.embedded[0])


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
def _watching(model: LoadedModel, *, graph: bool = True) -> Iterator[_Seen]:
    """See embeddings, tokens and hidden state of the passes of this context; start a graph at the embeddings."""
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

    base = getattr(model.module, "base_model", model.module)
    try:
        with ExitStack() as hooks:
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
