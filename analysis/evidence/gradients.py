"""Gradient methods and occlusion through captum: Integrated Gradients, input × gradient, saliency, SmoothGrad.

They are taken at the word embeddings of a text (before positions and normalisation are added) and at the pixels of a
picture. A token's score is the sum over the hidden dimension, a patch's the sum over its pixels and channels. In an
encoder-decoder the encoder's embeddings alone are varied: what the decoder reads stays.

There is no layer-wise relevance propagation (LRP): captum's does not serve transformers. It works module by module
and stops at ``Embedding`` and ``LayerNorm``, for which it has no rule ("has no rule defined"); with rules set by hand
it refuses modules that are used twice, and the two products of attention are no modules, so no rule could reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from captum import metrics as metrics  # handed on: captum is imported in this file alone
from captum.attr import InputXGradient, IntegratedGradients, Occlusion, Saliency
from torch import Tensor, nn

from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.passes import ForwardPass, graph_outputs, input_embeddings
from analysis.evidence.perturbation import (
    FILL_WORDS,
    FILLS,
    batch_size,
    patch_pixels,
    picture_fill,
    repeated,
    stand_in_token,
    word_parts,
)
from analysis.evidence.targets import Target
from attn_core.errors import UnsupportedModelError

BATCH_TOKENS = 1500
"""Positions of all items of a batch together (batches of 1000 to 2000 are fastest on a CPU)."""

ROUNDING = 1e-4
"""Share of Σ|gradient| below which sums of signed gradients are rounding and no answer."""

LARGE_ERROR = 0.05
"""Share of f(x) − f(baseline) by which Integrated Gradients may miss it before the answer says so."""


def integrated_gradients(
    run: ForwardPass,
    target: Target,
    *,
    steps: int = 50,
    baseline: str = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """(x − x′) ∘ ∫ ∂f(x′ + α (x − x′))/∂x dα, along the straight line from a baseline x′, by Gauss–Legendre; signed
    (Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", section 3).

    All scores, those of special tokens included, sum to f(x) − f(x′); ``details["delta"]`` is what they miss it by.

    Args:
        steps: points on the line.
        baseline: of a text "default" (special tokens kept, the padding token between them, or where there is none
            the mask token, the unknown token or zero vectors) or "zero" (zero vectors everywhere); of a picture
            "default" and "zero" (0 in the model's units), "mean", "black", "white" or "blurred". The attention mask
            stays as it is.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``steps`` is below 1, there is no such baseline, or the target is not finite.
        UnsupportedModelError: if the target does not depend on the input through differentiable operations.
    """
    _check_number(steps, 1, "integrated_gradients: steps")
    start, note = _baseline(run, baseline, "integrated_gradients")
    value = _finite_value(run, target, "integrated_gradients")
    scores, delta = IntegratedGradients(_counted(run, target, steps + 2, progress)).attribute(
        _entry(run).detach(),
        baselines=start,
        n_steps=steps,
        method="gausslegendre",
        internal_batch_size=batch_size(run, BATCH_TOKENS),
        return_convergence_delta=True,
    )
    error, rise = float(delta[0]), float(scores.sum() - delta[0])
    notes = [note, *_decoder_note(run)]
    if abs(error) > LARGE_ERROR * abs(rise):
        notes.append(
            f"The scores sum to {rise + error:.3g} where f(x) − f(baseline) is {rise:.3g}; take more steps."
        )
    details = {"delta": error, "steps": float(steps), "value": value, "baseline_value": value - rise}
    return explanation_of(
        "integrated_gradients",
        _by_position(run, scores),
        run.inputs,
        target=target.label,
        details=details,
        notes=notes,
    )


def input_x_gradient(run: ForwardPass, target: Target) -> Explanation:
    """x ∘ ∂f/∂x: exact for a linear f (Shrikumar et al. 2016, "Not Just a Black Box", arXiv 1605.01713); signed.

    Raises:
        ValueError, UnsupportedModelError: as ``integrated_gradients``.
    """
    value = _finite_value(run, target, "input_x_gradient")
    scores = InputXGradient(_counted(run, target, 1, None)).attribute(_entry(run))
    return explanation_of(
        "input_x_gradient",
        _by_position(run, scores),
        run.inputs,
        target=target.label,
        details={"value": value},
        notes=_decoder_note(run),
    )


def saliency(run: ForwardPass, target: Target, *, absolute: bool = True) -> Explanation:
    """|∂f/∂x|: how strongly a small change there moves the target (Simonyan, Vedaldi & Zisserman 2014, "Deep Inside
    Convolutional Networks", section 3); summed over what belongs to a token or patch.

    Args:
        absolute: take |·| of each component before summing; else the components keep their sign. Behind the word
            embeddings of most encoders comes a LayerNorm, which takes their mean off: signed components of a token
            then sum to 0, and a note says so.
    Raises:
        ValueError, UnsupportedModelError: as ``integrated_gradients``.
    """
    value = _finite_value(run, target, "saliency")
    scores = Saliency(_counted(run, target, 1, None)).attribute(_entry(run), abs=absolute)
    raw = _by_position(run, scores)
    cancels = float(raw.abs().sum()) < ROUNDING * float(scores.abs().sum())
    note = "Signed gradients cancel within each token of this model: what is left is rounding."
    return explanation_of(
        "saliency",
        raw,
        run.inputs,
        target=target.label,
        signed=not absolute,
        details={"value": value},
        notes=(*((note,) if cancels else ()), *_decoder_note(run)),
    )


def smooth_grad(
    run: ForwardPass,
    target: Target,
    *,
    samples: int = 20,
    level: float = 0.1,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """|mean of ∂f/∂x over noisy copies of x|, summed as in ``saliency`` (Smilkov et al. 2017, "SmoothGrad", sec. 3).

    What captum's ``NoiseTunnel`` does around its ``Saliency``, but with a generator of its own: ``NoiseTunnel`` draws
    from the global random state, which all threads share.

    Args:
        samples: noisy copies.
        level: standard deviation of the noise as a share of max x − min x.
        seed: of the noise; equal seeds give equal scores.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``samples`` is below 1 or ``level`` below 0; else as ``integrated_gradients``.
        UnsupportedModelError: as ``integrated_gradients``.
    """
    _check_number(samples, 1, "smooth_grad: samples")
    _check_number(level, 0, "smooth_grad: level")
    value = _finite_value(run, target, "smooth_grad")
    entry = _entry(run)
    still = entry.detach()
    deviation = level * float(still.max() - still.min())
    generator = torch.Generator().manual_seed(seed)
    gradient = Saliency(_counted(run, target, samples, progress))
    total, size = torch.zeros_like(still[0]), batch_size(run, BATCH_TOKENS)
    for first in range(0, samples, size):
        shape = (min(size, samples - first), *still.shape[1:])
        noise = torch.randn(shape, generator=generator).to(still)
        total = total + gradient.attribute((still + deviation * noise).requires_grad_(), abs=False).sum(0)
    return explanation_of(
        "smooth_grad",
        _by_position(run, (total / samples).abs()[None]),
        run.inputs,
        target=target.label,
        signed=False,
        details={"value": value, "samples": float(samples), "level": float(level), "seed": float(seed)},
        notes=_decoder_note(run),
    )


def occlusion(
    run: ForwardPass,
    target: Target,
    *,
    window: int = 1,
    baseline: str = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """f(x) − f(x with a window replaced by the baseline), the window sliding over words or patches; signed (Zeiler &
    Fergus 2014, "Visualizing and Understanding Convolutional Networks", section 4.2).

    A word or patch gets the mean over the windows that cover it; a word's score is shared equally between its tokens.

    Args:
        window: words in a row, or the side of a square of patches.
        baseline: as in ``integrated_gradients``.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``window`` is below 1 or larger than the input; else as ``integrated_gradients``.
        UnsupportedModelError: as ``integrated_gradients``.
    """
    start, note = _baseline(run, baseline, "occlusion")
    value = _finite_value(run, target, "occlusion")
    grid = run.inputs.grid
    words = word_parts(run) if grid is None else []
    shape = (len(words),) if grid is None else (grid.rows, grid.columns)
    if not 1 <= window <= max(1, min(shape)):
        raise ValueError(
            f"occlusion: window must be between 1 and {max(1, min(shape))} for this input but is {window}."
        )
    entry, kept = _entry(run).detach(), kept_positions(run.inputs)
    owner = torch.zeros(len(kept), dtype=torch.long)  # the word, or patch, of each kept position
    for index, part in enumerate(words or [(place,) for place in range(len(kept))]):
        owner[list(part)] = index

    def present(seen: Tensor) -> Tensor:
        """(B, *shape), 0 where the window lies → the target's values."""
        hidden = (seen.flatten(1) < 0.5).cpu()[:, owner]  # (B, n)
        if grid is not None:
            where = patch_pixels(grid, hidden, entry.shape[2], entry.shape[3])
        else:
            where = torch.zeros(len(hidden), position_count(run.inputs), 1, dtype=torch.bool)
            where[:, kept, 0] = hidden
        return forward(torch.where(where.to(entry.device), start, entry)).to(raw)  # captum's masks are there

    windows = 1
    for side in shape:
        windows *= side - window + 1
    forward = _counted(run, target, windows + 1, progress)
    raw = torch.zeros(position_count(run.inputs), dtype=torch.promote_types(entry.dtype, torch.float32))
    if len(kept):
        found = Occlusion(present).attribute(
            torch.ones(1, *shape, dtype=raw.dtype),
            sliding_window_shapes=(window,) * len(shape),
            baselines=0.0,
            perturbations_per_eval=batch_size(run, BATCH_TOKENS),
        )
        raw[kept] = (found.flatten()[owner] / owner.bincount()[owner]).to(raw)  # captum's are single
    return explanation_of(
        "occlusion",
        raw,
        run.inputs,
        target=target.label,
        details={"value": value, "window": float(window)},
        notes=(note, *_decoder_note(run)),
    )


# Where gradients are taken ---------------------------------------------------------------------------------------


def _entry(run: ForwardPass) -> Tensor:
    """(1, N, M) word embeddings or (1, C, H, W) pixels, as a new leaf that takes a gradient."""
    found = run.embedded if run.inputs.grid is None else run.inputs.tensors["pixel_values"]
    return found.detach().to(run.model.device, copy=True).requires_grad_()


def _baseline(run: ForwardPass, kind: str, caller: str) -> tuple[Tensor, str]:
    """A baseline of the shape of ``_entry``, and what it is in words."""
    entry = _entry(run).detach()
    known = ("default", "zero") if run.inputs.grid is None else ("default", *FILLS)
    if kind not in known:
        raise ValueError(
            f"{caller}: baseline must be one of {', '.join(known)} for this input but is {kind!r}."
        )
    if run.inputs.grid is not None:
        fill = "zero" if kind == "default" else kind
        return picture_fill(run, fill).to(entry).expand_as(
            entry
        ).contiguous(), f"Baseline: {FILL_WORDS[fill]}."
    if kind == "zero":
        return torch.zeros_like(
            entry
        ), "Baseline: zero vectors in place of all tokens, special ones included."
    stand_in = stand_in_token(run.model, "pad", "mask", "unk")
    if stand_in is None:
        vector, name = torch.zeros_like(entry[0, 0]), "zero vectors"
    else:
        token, name = stand_in
        embeddings = input_embeddings(run.model.module)
        assert embeddings is not None  # the pass saw them
        with torch.no_grad():
            vector = embeddings(torch.tensor([[token]], device=entry.device))[0, 0]
    start = entry.clone()
    start[:, kept_positions(run.inputs).to(entry.device)] = vector.to(entry)
    return start, f"Baseline: {name} in place of every token but the special ones."


def _by_position(run: ForwardPass, attribution: Tensor) -> Tensor:
    """(N,): one number a position, from (1, N, M) or (1, C, H, W)."""
    grid, found = run.inputs.grid, attribution[0].detach()
    if grid is None:
        return found.sum(-1)
    pixels = found.sum(0)[: grid.height, : grid.width]
    missing = (0, grid.width - pixels.shape[1], 0, grid.height - pixels.shape[0])
    squares = nn.functional.pad(pixels, missing).reshape(grid.rows, grid.patch, grid.columns, grid.patch)
    return torch.cat([pixels.new_zeros(grid.prefix_tokens), squares.sum((1, 3)).flatten()])


# The target as a function of embeddings or pixels ----------------------------------------------------------------


def _counted(
    run: ForwardPass, target: Target, total: int, progress: Callable[[float], None] | None
) -> Callable[[Tensor], Tensor]:
    """``_values_at`` that tells how many of ``total`` items it has run."""
    done = 0

    def forward(entries: Tensor) -> Tensor:
        nonlocal done
        values = _values_at(run, target, entries)
        done += len(entries)
        if progress is not None:
            progress(min(done / total, 1.0))
        return values

    return forward


def _values_at(run: ForwardPass, target: Target, entries: Tensor) -> Tensor:
    """(B,): the target for embeddings (B, N, M) or pixels (B, C, H, W); part of the graph where one is asked for."""
    tensors = repeated(run.inputs.tensors, len(entries))
    if run.inputs.grid is not None:
        outputs = graph_outputs(run.model, tensors | {"pixel_values": entries}, run.outputs.kept)
    else:
        with _replaced_embeddings(run.model.module, entries):
            outputs = graph_outputs(run.model, tensors, run.outputs.kept)
    values = target.value(outputs)
    if torch.is_grad_enabled() and entries.requires_grad and not values.requires_grad:
        raise UnsupportedModelError(
            f"gradients: {target.label!r} does not depend on the input of this model through any differentiable "
            "operation; choose a perturbation method."
        )
    return values


_given: ContextVar[list[Tensor] | None] = ContextVar("analysis_evidence_given_embeddings", default=None)


@contextmanager
def _replaced_embeddings(module: nn.Module, entries: Tensor) -> Iterator[None]:
    """Inside the block the input embeddings give out ``entries`` (B, N, M), once, in this context alone.

    Their first call is the encoder's in an encoder-decoder whose stacks share them.
    """
    waiting = [entries]
    token = _given.set(waiting)

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        return waiting.pop().to(output.dtype) if waiting and _given.get() is waiting else None

    embeddings = input_embeddings(module)
    assert embeddings is not None  # the pass saw them
    handle = embeddings.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
        _given.reset(token)


# Checks and notes ------------------------------------------------------------------------------------------------


def _finite_value(run: ForwardPass, target: Target, caller: str) -> float:
    value = run.value(target)
    if not torch.isfinite(torch.tensor(value)):
        raise ValueError(f"{caller}: the target {target.label!r} is {value}; choose another.")
    return value


def _check_number(value: float, least: float, name: str) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least} but is {value}.")


def _decoder_note(run: ForwardPass) -> tuple[str, ...]:
    if not run.model.is_encoder_decoder:
        return ()
    return ("Only what the encoder reads is varied; the decoder's input stays.",)
