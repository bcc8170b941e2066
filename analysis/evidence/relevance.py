"""Relevance by attention weighted with its gradient, carried through all layers: the generic rule of Chefer, Gur &
Wolf 2021 ("Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers", arXiv
2103.15679, section 3.2).

Self-attention (equations 5 and 6): Ā = mean_h relu(∂target/∂A · A); R starts as I, and R ← R + Ā R layer by layer.
An encoder-decoder (equations 7 to 10) also carries the relevance of the source to the decoder's positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from analysis.evidence.attention import (
    POSITIVE_ONLY,
    Row,
    check_budget,
    default_row,
    dense_weighted,
    layers_and_gradients,
    view_of,
    weighted_rows,
)
from analysis.evidence.explanation import Explanation, explanation_of
from analysis.evidence.passes import ForwardPass, Layer
from analysis.evidence.targets import Target
from attn_core.errors import UnsupportedModelError

FEW = 16
"""Where fewer than one row in so many carries relevance, only these are read."""


def relevance(
    run: ForwardPass, target: Target, *, start_layer: int = 0, row: Row | None = None
) -> Explanation:
    """Relevance of the input's tokens for the position that the target reads; at least 0.

    The row of R − I: what attention carried there, without the 1 that every position starts with for itself. Of
    encoders and decoder-only models it is one vector carried from the last layer to the first, O(N) memory; an
    encoder-decoder holds N × N arrays.

    Args:
        start_layer: layers below it (of an encoder-decoder: of its encoder) are left out.
        row: the position, "first" or "mean" (see ``analysis.evidence.attention``); of an encoder-decoder one of the
            decoder's. None takes the one that the target reads: that of a predicted token or of the embedding; for a
            class the last of a decoder-only model or decoder, CLS or else the mean of an encoder.
    Raises:
        UnsupportedModelError: if the model has no self-attention over the input's positions.
        ValueError: if there is no such layer or row, or the target is not finite.
        MemoryBudgetError: if an encoder-decoder's N × N arrays do not fit.
    """
    if run.model.is_encoder_decoder and not _reads_encoder(target):
        _check_stacks(run)
        decoder = run.layers["decoder"][0].map.queries
        predicts = target.kind == "token_log_probability"
        chosen = row if row is not None else default_row(run, target, of_decoder=True) if predicts else -1
        view = view_of(run, chosen, decoder, "relevance", of_input=False)
        matrix = source_relevance_matrix(run, target, start_layer=start_layer)
        found = view.share.to(matrix) @ matrix
        name = f"{view.name} of the decoder"
    else:
        layers, gradients = layers_and_gradients(run, target, start_layer, "relevance")
        view = view_of(
            run, default_row(run, target) if row is None else row, layers[0].map.queries, "relevance"
        )
        found = carry_relevance(view.share[None], layers, gradients)[0]
        found = found - view.share.to(found)
        name = view.name
    return explanation_of(
        "relevance",
        found,
        run.inputs,
        target=target.label,
        signed=False,
        details={"row": name, "value": run.value(target)},
        notes=(POSITIVE_ONLY,),
    )


def carry_relevance(start: Tensor, layers: Sequence[Layer], gradients: Sequence[Tensor]) -> Tensor:
    """(M, N): ``start`` (M, N) · R, as v ← v + v Ā from the last layer to the first.

    Args:
        layers, gradients: first layer first; gradients are of each layer's ``source``.
    """
    carried = start
    for layer, gradient in zip(reversed(layers), reversed(gradients), strict=True):
        few = (
            int(carried.any(0).count_nonzero()) * FEW < carried.shape[1]
        )  # rows alone: one of the last layer
        step = layer.relevance_step(gradient, carried[0]) if len(carried) == 1 and not few else None
        if step is not None:
            carried = carried.to(step) + step
            continue
        found = carried
        for rows, weighted in weighted_rows(layer, gradient, head_relu=True, wanted=carried):
            found = found.to(weighted) + carried[:, rows].to(weighted) @ weighted
        carried = found
    return carried


def relevance_matrix(
    run: ForwardPass, target: Target, *, start_layer: int = 0, end_layer: int | None = None
) -> Tensor:
    """The whole R of the encoder, or of the only stack: (N, N), rows are positions after the last layer.

    Args:
        start_layer, end_layer: layers from the one on and below the other; None takes all.
    Raises:
        UnsupportedModelError, ValueError: as ``relevance``.
        MemoryBudgetError: if it does not fit; ``relevance`` needs no N × N array.
    """
    layers, gradients = layers_and_gradients(run, target, start_layer, "relevance_matrix")
    count = len(layers) if end_layer is None else end_layer - start_layer
    return _self_relevance(layers[:count], gradients[:count], "relevance_matrix")


def source_relevance_matrix(run: ForwardPass, target: Target, *, start_layer: int = 0) -> Tensor:
    """R_sq of an encoder-decoder: (T, N), relevance of the source's N positions for the decoder's T.

    Each decoder layer carries what is there on by its self-attention (equation 7), and adds (R̄_ss)ᵀ Ā R̄_qq by its
    cross-attention (equation 10), R_ss and R_qq being those of the decoder's and of the encoder's own positions and R̄
    their normalised form (equations 8 and 9).

    Raises:
        UnsupportedModelError: if the model is no encoder-decoder with one cross-attention a decoder layer.
        ValueError: as ``relevance``.
        MemoryBudgetError: if the arrays do not fit.
    """
    _check_stacks(run)
    layers, gradients = layers_and_gradients(run, target, start_layer, "relevance")
    source = _normalised(_self_relevance(layers, gradients, "relevance"))  # (N, N)
    own: Tensor | None = None  # (T, T)
    found: Tensor | None = None  # (T, N)
    of_target = run.gradients(target).layers
    for decoder, cross, own_gradient, cross_gradient in zip(
        run.layers["decoder"], run.layers["cross"], of_target["decoder"], of_target["cross"], strict=True
    ):
        weighted = dense_weighted(decoder, own_gradient, head_relu=True, caller="relevance")
        own = torch.eye(len(weighted)).to(weighted) if own is None else own
        own = own + weighted @ own
        found = None if found is None else found + weighted @ found
        weighted = dense_weighted(cross, cross_gradient, head_relu=True, caller="relevance")  # (T, N)
        added = _normalised(own).T @ weighted @ source
        found = added if found is None else found + added
    assert found is not None
    return found


def _self_relevance(layers: Sequence[Layer], gradients: Sequence[Tensor], caller: str) -> Tensor:
    """R after these layers (equations 5 and 6)."""
    size = layers[0].map.queries if layers else 0
    check_budget(size, size, caller)
    found: Tensor | None = None
    for layer, gradient in zip(layers, gradients, strict=True):
        weighted = dense_weighted(layer, gradient, head_relu=True, caller=caller)
        found = torch.eye(size).to(weighted) if found is None else found
        found = found + weighted @ found
    assert found is not None
    return found


def _normalised(matrix: Tensor) -> Tensor:
    """R − I with rows divided by their own sum, plus I (equations 8 and 9); a row that is 0 stays 0."""
    identity = torch.eye(len(matrix)).to(matrix)
    carried = matrix - identity
    total = carried.sum(-1, keepdim=True)
    return carried / torch.where(total > 0, total, torch.ones_like(total)) + identity


def _reads_encoder(target: Target) -> bool:
    """Whether the target reads the encoder's last state, which the decoder does not touch."""
    return target.kind in ("concept_similarity", "embedding_similarity")


def _check_stacks(run: ForwardPass) -> None:
    counts = {kind: len(run.layers.get(kind, ())) for kind in ("decoder", "cross")}
    if not run.model.is_encoder_decoder or not counts["cross"] or counts["cross"] != counts["decoder"]:
        raise UnsupportedModelError(
            f"relevance: {run.model.title} must have one cross-attention in each decoder layer but has "
            f"{counts['cross']} in {counts['decoder']}; choose a gradient or perturbation method."
        )
