"""CDAM: class-discriminative attention maps (Brocki & Chung 2023, "Class-Discriminative Attention Maps for Vision
Transformers", arXiv 2312.02364, section 3), for classes and concepts, for patches and for tokens.

A token's score is the inner product of what enters the last attention layer there with the target's gradient at the
same place: S_i = Σ_j T_ij · ∂f/∂T_ij. T is the output of the normalisation before the last block's attention (for
BERT, the output of the block below).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from analysis.evidence.blocks import Block, alike, block_names, small_inputs
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.passes import ForwardPass, forward_pass, graph_outputs
from analysis.evidence.targets import Outputs, Target
from analysis.hf.attention import switched, uses_interface
from attn_core.errors import UnsupportedModelError

Place = Literal["attention", "block"]
Progress = Callable[[float], None]


def cdam(run: ForwardPass, target: Target, *, layer: int = -1) -> Explanation:
    """CDAM of a layer, the last by default; signed.

    Raises:
        UnsupportedModelError: if the model has no tensor that enters the layer's attention.
        ValueError: if there is no such layer.
    """
    tokens = tokens_of(run, layer, "cdam")
    gradient = run.token_gradient(target, layer % len(run.tokens))
    return explanation_of(
        "cdam",
        (tokens * gradient).sum(-1),
        run.inputs,
        target=target.label,
        details={"value": run.value(target)},
    )


def tokens_of(run: ForwardPass, layer: int, caller: str) -> Tensor:
    """(N, M) that enters a layer's attention, without its graph.

    Raises:
        UnsupportedModelError, ValueError: as ``cdam``.
    """
    if not run.tokens:
        raise UnsupportedModelError(
            f"{caller}: {run.model.title} has no place where the tokens of a layer enter its attention (layers share "
            "one block, or the family is not known); choose relevance or a perturbation method."
        )
    if not -len(run.tokens) <= layer < len(run.tokens):
        raise ValueError(
            f"{caller}: layer must be between 0 and {len(run.tokens) - 1} but is {layer}; pass one of them."
        )
    return run.tokens[layer][0].detach()


def smooth_cdam(
    run: ForwardPass,
    target: Target,
    *,
    samples: int = 50,
    level: float = 0.05,
    seed: int = 0,
    layer: int = -1,
    place: Place = "attention",
    noise: Tensor | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """CDAM averaged over tokens with Gaussian noise.

    Args:
        samples: noisy copies.
        level: standard deviation of the noise as a share of (largest − smallest) token entry.
        seed: of the noise.
        layer: whose tokens.
        place: "attention": noise on what enters the attention, which is also what the gradient is multiplied with (as
            obzai 0.2.3 does, without its clamp); "block": noise on the block's input, tokens and gradient read after
            its normalisation (as the authors' research code does; on DINOv2 outlier dimensions drown the map then).
        noise: (S, N, M) standard normal numbers to use instead of random ones; copy i takes row i modulo S.
        progress: told 0 to 1; what it raises stops the method.
    Raises:
        UnsupportedModelError, ValueError: as ``cdam``; for a place that the model does not have.
    """
    if samples < 1:
        raise ValueError(f"smooth_cdam: samples must be at least 1 but is {samples}; pass 50 or so.")
    base = _start(run, layer, place, "smooth_cdam")
    noises = _noises(base, range(samples), level, seed, noise)
    return explanation_of(
        "smooth_cdam",
        _mean_cdam(run, target, (base + each for each in noises), samples, layer, place, progress),
        run.inputs,
        target=target.label,
        details={"samples": samples, "level": level, "seed": seed, "place": place},
    )


def integrated_cdam(
    run: ForwardPass,
    target: Target,
    *,
    steps: int = 50,
    level: float = 0.0,
    seed: int = 0,
    layer: int = -1,
    place: Place = "attention",
    noise: Tensor | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """CDAM averaged along the straight path from zero to the tokens.

    Args:
        steps: of the path; "attention" takes 0, 1/steps ... 1, "block" 1/steps ... 1 − 1/steps, as the two programs
            of the authors do.
        level: of the noise on every step; 0 for none.
        seed, layer, place, noise, progress: as in ``smooth_cdam``.
    Raises:
        UnsupportedModelError, ValueError: as ``smooth_cdam``.
    """
    if steps < 2:
        raise ValueError(f"integrated_cdam: steps must be at least 2 but is {steps}; pass 50 or so.")
    base = _start(run, layer, place, "integrated_cdam")
    taken = range(steps + 1) if place == "attention" else range(1, steps)
    path = (step / steps * base for step in taken)
    if level:
        path = (
            point + each for point, each in zip(path, _noises(base, taken, level, seed, noise), strict=True)
        )
    return explanation_of(
        "integrated_cdam",
        _mean_cdam(run, target, path, len(taken), layer, place, progress),
        run.inputs,
        target=target.label,
        details={"steps": steps, "level": level, "seed": seed, "place": place},
    )


def _noises(
    base: Tensor, rows: Sequence[int], level: float, seed: int, given: Tensor | None
) -> Iterator[Tensor]:
    """(N, M) at a time: rows (ascending) of seeded standard normal numbers, or of given ones, at a share of the
    tokens' range."""
    deviation = level * float(base.max() - base.min())
    generator = torch.Generator().manual_seed(seed)
    drawn = -1
    for row in rows:
        if given is not None:
            found = given[row % len(given)]
        while given is None and drawn < row:
            found = torch.randn(base.shape, generator=generator, dtype=torch.float64)
            drawn += 1
        yield deviation * found.to(base)


def _start(run: ForwardPass, layer: int, place: Place, caller: str) -> Tensor:
    """(N, M) where noise or path begins: what enters the attention, or the block."""
    tokens = tokens_of(run, layer, caller)
    if place == "attention":
        return tokens
    block = _block_of(run, layer, caller)
    if run.chain is not None:
        return run.chain.blocks[layer].hidden[0].detach()
    seen: list[Tensor] = []
    with _replacing(block, before=seen.append), torch.no_grad():
        run.model.module(**_tensors(run))
    return seen[0][0]


def _block_of(run: ForwardPass, layer: int, caller: str) -> nn.Module:
    """The block that holds the normalisation of a layer.

    Raises:
        ValueError: for a model that normalises after the attention: there both places are one.
    """
    name = run.model.attention_inputs[layer]
    block, _, leaf = name.rpartition(".")
    if leaf.isdigit() or "norm" not in leaf.lower().replace("ln", "norm"):
        raise ValueError(
            f"{caller}: place must be 'attention' for {run.model.title}, which has no normalisation between block "
            "input and attention."
        )
    return run.model.module.get_submodule(block)


def _tensors(run: ForwardPass) -> dict[str, Tensor]:
    return {name: tensor.to(run.model.device) for name, tensor in run.inputs.tensors.items()}


TOKENS_AT_ONCE = 4096
"""Tokens (samples × positions) that are put through the upper layers at once."""


def _mean_cdam(
    run: ForwardPass,
    target: Target,
    others: Iterator[Tensor],
    count: int,
    layer: int,
    place: Place,
    progress: Progress | None,
) -> Tensor:
    """(N,): CDAM with other tokens (N, M), ``count`` of them, put into a layer, its mean over them.

    The layers below do not see the copies: they are left out where the model can be taken up from a block on
    (``_upper``), else run once a chunk for the input itself.

    Raises:
        UnsupportedModelError: of an encoder-decoder, whose decoder reads one item.
    """
    if run.model.is_encoder_decoder:
        raise UnsupportedModelError(
            f"cdam: copies of the encoder's tokens have no place in the decoder of {run.model.title}; choose CDAM "
            "itself, or a gradient method."
        )
    entering = run.model.module.get_submodule(run.model.attention_inputs[layer])
    chunk = max(1, TOKENS_AT_ONCE // run.tokens[layer].shape[1])
    upper = _upper(run, layer % len(run.tokens)) if count > 2 * chunk else None
    total: Tensor | float = 0.0
    for start in range(0, count, chunk):
        if progress is not None:
            progress(start / count)
        part = torch.stack(list(islice(others, chunk))).requires_grad_()
        held: list[Tensor] = [part]
        with torch.enable_grad():
            with ExitStack() as hooks:
                if place == "block":
                    hooks.enter_context(_replacing(_block_of(run, layer, "cdam"), before=_always(part)))
                    held.clear()
                    hooks.enter_context(_replacing(entering, after=held.append))
                else:
                    hooks.enter_context(_replacing(entering, after=_always(part)))
                if upper is None:
                    outputs = graph_outputs(run.model, _tensors(run), kept_positions(run.inputs))
                else:
                    left = upper.left(len(part))
            if upper is not None:
                outputs = upper.outputs(left)
            number = target.value(outputs).sum()
            (gradient,) = torch.autograd.grad(number, held)
        total = total + (held[0].detach() * gradient).sum((0, 2))
    if progress is not None:
        progress(1.0)
    assert isinstance(total, Tensor)  # there is a copy
    return total / count


@dataclass(frozen=True, eq=False)
class _Upper:
    """A model from one block on: those below are left out.

    Attributes:
        module: the model's.
        blocks: as they ran on the input, from the one whose tokens are varied to the last.
        small: tensors of a small part of the input. What comes after the last block is inside the model's own
            forward, so the model runs on these, and what its last block leaves is replaced.
    """

    run: ForwardPass
    module: Any  # one of the library's, whose attention goes through its interface
    blocks: tuple[Block, ...]
    small: dict[str, Tensor]

    def left(self, copies: int) -> Tensor:
        """(B, N, M) what the last block leaves, under whatever hooks are in force."""
        hidden = self.blocks[0].hidden.detach().expand(copies, -1, -1)
        with switched(self.module):
            for block in self.blocks:
                hidden = block.again(hidden)
        return hidden

    def outputs(self, left: Tensor) -> Outputs:
        """What the model makes of it."""
        with _replacing(self.blocks[-1].module, after=_always(left)):
            return graph_outputs(self.run.model, self.small, kept_positions(self.run.inputs))


def _upper(run: ForwardPass, layer: int) -> _Upper | None:
    """The model from a layer's block on; None where that would save nothing or does not give the model's outputs."""
    module = run.model.module
    if layer == 0 or not block_names(run.model):
        return None
    if not uses_interface(module):
        return None
    small = small_inputs(run.model, run.inputs)
    if 2 * position_count(small) > position_count(run.inputs):
        return None
    try:
        chain = run.chain or forward_pass(run.model, run.inputs, whole=False).chain
    except UnsupportedModelError:
        return None
    assert chain is not None
    tensors = {name: tensor.to(run.model.device) for name, tensor in small.tensors.items()}
    found = _Upper(run, module, tuple(chain.blocks[layer:]), tensors)
    try:
        with torch.no_grad():
            outputs = found.outputs(found.left(1))
    except (RuntimeError, IndexError):  # a head that looks at the input again, whose shapes do not fit
        return None
    return found if _same_outputs(outputs, run.outputs) else None


def _same_outputs(found: Outputs, expected: Outputs) -> bool:
    pairs = ((found.logits, expected.logits), (found.hidden, expected.hidden))
    return all(
        one is other
        or (one is not None and other is not None and one.shape == other.shape and alike(one, other.detach()))
        for one, other in pairs
    )


def _always(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: tensor


_acting: ContextVar[tuple[object, ...]] = ContextVar("analysis_evidence_cdam", default=())


@contextmanager
def _replacing(
    module: nn.Module,
    *,
    before: Callable[[Tensor], Tensor | None] | None = None,
    after: Callable[[Tensor], Tensor | None] | None = None,
) -> Iterator[None]:
    """Change the first input, or the output, of a module in the passes of this context; None changes nothing."""
    mark = object()
    token = _acting.set((*_acting.get(), mark))

    def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if mark not in _acting.get() or before is None:
            return None
        given = before(args[0])
        return None if given is None else (given, *args[1:])

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        if mark not in _acting.get() or after is None:
            return None
        first = output if isinstance(output, Tensor) else output[0]
        given = after(first)
        if given is None:
            return None
        return given if isinstance(output, Tensor) else (given, *output[1:])

    hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _acting.reset(token)
