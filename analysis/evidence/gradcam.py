"""GradCAM (Selvaraju et al. 2017) on transformers, and its relatives.

``gradcam`` takes what enters a layer's attention as the activations A (N, K), and the target's gradient there as G: a
patch's score is Σ_k w_k A_k with w_k the mean of G_k over the patches (special tokens left out). At the output of the
last block every patch's gradient is 0 where the head reads CLS alone, so the default is what enters the last
attention. Maps are kept signed; the rectifier is a drawing option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from analysis.evidence.attention import Row, default_row, index_of, layers_and_gradients, view_of
from analysis.evidence.cdam import tokens_of
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions
from analysis.evidence.passes import ForwardPass
from analysis.evidence.targets import Target
from attn_core.watching import worked


def _plain(a: Tensor, g: Tensor) -> Tensor:
    return a @ g.mean(0)


def _plus_plus(a: Tensor, g: Tensor) -> Tensor:
    """Chattopadhay et al. 2018, with the activation sum and ε as pytorch-grad-cam has them."""
    alpha = g**2 / (2 * g**2 + a.sum(0) * g**3 + 1e-6)
    alpha = torch.where(g == 0, torch.zeros_like(alpha), alpha)
    return a @ (alpha * g.clamp(min=0)).sum(0)


def _x(a: Tensor, g: Tensor) -> Tensor:
    """Fu et al. 2020."""
    return a @ ((g * a).sum(0) / (a.sum(0) + 1e-7))


def _first_direction(values: Tensor) -> Tensor:
    """Projection of the centred values on their first right singular vector; its largest entry is made positive."""
    centred = values - values.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    found: Tensor = centred @ directions[0]
    return -found if found[found.abs().argmax()] < 0 else found


VARIANTS: Mapping[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = MappingProxyType(
    {
        "gradcam": ("Selvaraju et al. 2017", _plain),
        "gradcam++": ("Chattopadhay et al. 2018", _plus_plus),
        "hirescam": ("Draelos & Carin 2020; the same as CDAM at this place", lambda a, g: (a * g).sum(-1)),
        "elementwise": (
            "pytorch-grad-cam: positive products alone",
            lambda a, g: (a * g).clamp(min=0).sum(-1),
        ),
        "layercam": ("Jiang et al. 2021", lambda a, g: (a * g.clamp(min=0)).sum(-1)),
        "xgradcam": ("Fu et al. 2020", _x),
        "eigencam": ("Muhammad & Yeasin 2020; ignores the target", lambda a, g: _first_direction(a)),
        "eigengradcam": ("EigenCAM of activation × gradient", lambda a, g: _first_direction(a * g)),
    }
)
"""Source and formula of each variant: activations (n, K) and gradients (n, K) of the kept positions → (n,)."""


def gradcam(run: ForwardPass, target: Target, *, layer: int = -1, variant: str = "gradcam") -> Explanation:
    """GradCAM of the tokens that enter a layer's attention; signed.

    Args:
        layer: which one; the last by default.
        variant: a key of ``VARIANTS``.
    Raises:
        UnsupportedModelError: if the model has no tensor that enters the layer's attention.
        ValueError: if there is no such layer or variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"gradcam: variant must be one of {', '.join(VARIANTS)} but is {variant!r}.")
    tokens = tokens_of(run, layer, "gradcam")
    gradient = run.token_gradient(target, layer % len(run.tokens))
    kept = kept_positions(run.inputs).to(tokens.device)
    raw = torch.zeros_like(tokens[:, 0])
    raw[kept] = VARIANTS[variant][1](tokens[kept], gradient[kept])
    return explanation_of(
        "gradcam",
        raw,
        run.inputs,
        target=target.label,
        details={"variant": variant, "layer": layer % len(run.tokens), "value": run.value(target)},
    )


def attention_gradcam(
    run: ForwardPass, target: Target, *, layer: int = -1, row: Row | None = None
) -> Explanation:
    """GradCAM on the attention weights of a layer: each head's row weighted by the mean of its gradient; signed.

    The baseline "GradCAM" of Chefer et al. 2021a (Transformer Interpretability Beyond Attention Visualization),
    without its rectifier.

    Args:
        row: from where the input is looked at, as in ``analysis.evidence.attention.attention``; of several rows each
            has a weight of its own. None takes the one that the target reads.
    Raises:
        UnsupportedModelError: if the model has no self-attention over its input.
        ValueError: if there is no such layer or row.
    """
    layers, gradients = layers_and_gradients(run, target, 0, "attention_gradcam")
    index = index_of(layer, len(layers), "attention_gradcam: layer")
    chosen, gradient = layers[index], gradients[index]
    size = chosen.map.keys
    view = view_of(run, default_row(run, target) if row is None else row, size, "attention_gradcam")
    kept = kept_positions(run.inputs).to(gradient.device)
    raw = gradient.new_zeros(size)
    for strip in chosen.strips():
        share = view.share[strip].to(raw)
        if not bool(share.any()):
            continue
        weights = chosen.map.block(None, strip, slice(0, size)).to(raw)  # (H, r, N)
        slopes = chosen.weight_gradient(gradient, strip)[..., kept].mean(-1)  # (H, r)
        raw += share @ (weights * slopes[..., None]).mean(0)
        worked(weights.numel())
    return explanation_of(
        "attention_gradcam",
        raw,
        run.inputs,
        target=target.label,
        details={"layer": index, "row": view.name},
    )


def drawn(maps: Sequence[Tensor], height: int, width: int) -> Tensor:
    """(height, width) in [0, 1], as pytorch-grad-cam draws one map or the mean of several layers' maps.

    Each (rows, columns) map: negative values to 0, scaled to [0, 1], enlarged with half-pixel centres; then the mean,
    scaled again.
    """

    def scaled(values: Tensor) -> Tensor:
        values = values - values.min()
        return values / (1e-7 + values.max())

    enlarged = [
        torch.nn.functional.interpolate(
            scaled(each.float().clamp(min=0))[None, None],
            size=(height, width),
            mode="bilinear",
            align_corners=False,
        )[0, 0]
        for each in maps
    ]
    return scaled(torch.stack(enlarged).clamp(min=0).mean(0))
