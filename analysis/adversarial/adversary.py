"""A whole model trained to predict as another one does with other attention: Wiegreffe & Pinter 2019, section 4.

Jain & Wallace 2019 look for other attention sentence by sentence, with the rest of the model held still. Here a
second model of the same kind is trained from the start on every sentence at once, so its attention is one that such a
model can learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from analysis.adversarial.distances import kullback_leibler, total_variation
from attn_core.checks import check_ndim


@dataclass(frozen=True)
class AdversaryLoss:
    """What an adversary is trained on, a value a text.

    Attributes:
        loss: (B,) tvd − trade_off · kl; the paper and its program sum it over the texts.
        tvd: (B,) total variation distance of the predictions.
        kl: (B,) KL(adversary ‖ base) of the attention, in nats; no upper bound.
    """

    loss: Tensor
    tvd: Tensor
    kl: Tensor


def adversary_loss(
    prediction: Tensor,
    base_prediction: Tensor,
    weights: Tensor,
    base_weights: Tensor,
    inside: Tensor,
    *,
    trade_off: float,
) -> AdversaryLoss:
    """TVD(ŷ_a, ŷ_b) − λ · KL(α_a ‖ α_b) of each text (Wiegreffe & Pinter 2019, section 4).

    Their program hands its one sigmoid output to ½ Σ |ŷ_a − ŷ_b|, which is half the distance of the two classes:
    with predictions (B, 1) the numbers here are the program's; with both classes (B, 2) they follow the formula, and
    a λ of the program corresponds to 2 λ. Positions outside never count, whatever the weights hold there; the
    program's KLDivLoss is 0 · −∞ on them.

    Args:
        prediction, base_prediction: (B, C) probabilities.
        weights, base_weights: (B, N) attention.
        inside: (B, N) bool, the positions that may be attended to.
        trade_off: λ, 0 for an adversary that may attend as the base does.
    Returns:
        A value a text; −∞ where the adversary attends to a position inside to which the base gives exactly 0.
    Raises:
        ValueError: if shapes do not fit, or ``trade_off`` is negative.
    """
    check_ndim(prediction, 2, "adversary_loss: prediction")
    check_ndim(weights, 2, "adversary_loss: weights")
    if prediction.shape != base_prediction.shape:
        raise ValueError(
            f"adversary_loss: base_prediction must be {tuple(prediction.shape)} as prediction is, but is "
            f"{tuple(base_prediction.shape)}; pass both models' predictions of the same texts."
        )
    if not weights.shape == base_weights.shape == inside.shape or len(weights) != len(prediction):
        raise ValueError(
            f"adversary_loss: weights, base_weights and inside must be ({len(prediction)}, N) but are "
            f"{tuple(weights.shape)}, {tuple(base_weights.shape)} and {tuple(inside.shape)}; pass one row a text."
        )
    if trade_off < 0:
        raise ValueError(
            f"adversary_loss: trade_off must be at least 0 but is {trade_off}; λ rewards distance."
        )
    outside = ~inside
    tvd = total_variation(prediction, base_prediction)
    kl = kullback_leibler(weights.masked_fill(outside, 0.0), base_weights.masked_fill(outside, 0.0))
    return AdversaryLoss(tvd - trade_off * kl if trade_off else tvd, tvd, kl)
