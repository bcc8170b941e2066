"""Whether attention ranks inputs as other measures of importance do: Kendall's τ with gradients and leave-one-out.

Jain & Wallace 2019, section 4.1 and algorithm 1. Kendall's τ-b corrects for ties; its p-value is SciPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor

from analysis.adversarial.measures import Measure
from analysis.adversarial.rows import TextBatch, text_batch
from analysis.evidence.explanation import kept_positions
from analysis.evidence.perturbation import masked_outputs
from attn_core.models.classifier import AttentionClassifier

if TYPE_CHECKING:
    from analysis.evidence.passes import ForwardPass

SIGNIFICANT = 0.05


@dataclass(frozen=True, eq=False)
class Agreement:
    """Kendall's τ-b of two importances, for B inputs.

    Attributes:
        tau: (B,) −1 to 1; NaN where an input has fewer than two positions or one importance is constant.
        p: (B,) of no association; NaN where τ is.
    """

    tau: Tensor
    p: Tensor

    def mean(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """Mean and standard deviation of τ over the inputs that have one (chosen: (B,) bool): the paper's table 2."""
        found = self._known(self.tau, chosen)
        return (float(found.mean()), float(found.std(correction=0))) if len(found) else (np.nan, np.nan)

    def significant(self, chosen: Tensor | None = None) -> float:
        """Share of the inputs with a τ whose p-value is below 0.05."""
        found = self._known(self.p, chosen)
        return float((found < SIGNIFICANT).double().mean()) if len(found) else np.nan

    def _known(self, values: Tensor, chosen: Tensor | None) -> Tensor:
        kept = ~self.tau.isnan() if chosen is None else ~self.tau.isnan() & chosen
        return values[kept]


def kendall(a: Tensor, b: Tensor, inside: Tensor) -> Agreement:
    """τ-b of two importances (B, n) over the positions inside (B, n)."""
    pairs = [_tau(x[kept], y[kept]) for x, y, kept in zip(a.cpu(), b.cpu(), inside.cpu(), strict=True)]
    found = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
    return Agreement(found[:, 0], found[:, 1])


def _tau(x: Tensor, y: Tensor) -> tuple[float, float]:
    if len(x) < 2:
        return np.nan, np.nan
    found = kendalltau(x.double().numpy(), y.double().numpy())
    return float(found.statistic), float(found.pvalue)


# The papers' model -----------------------------------------------------------------------------------------------


def gradient_importance(
    module: AttentionClassifier,
    batch: TextBatch,
    *,
    through_attention: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """(B, n): Σ over classes of |Σ_d x_d · ∂p/∂x_d| of each word's vector x, as shares of each text's sum.

    Args:
        through_attention: let the gradient flow through the weights too. The paper cuts the graph there: the weights
            are held while the words change.
    """
    batch = batch.beside(module)
    with torch.enable_grad():
        words = module.embedding(batch.tokens).detach().requires_grad_()
        hidden = module.encode(words, batch.valid)
        weights = module.attend(hidden, batch.inside)
        if not through_attention:
            weights = weights.detach()
        shares = (module.classify(hidden, weights) / temperature).softmax(-1)
        total = torch.zeros_like(words[..., 0])
        for column in shares.unbind(-1):
            (gradient,) = torch.autograd.grad(column.sum(), words, retain_graph=True)
            total = total + (gradient * words).sum(-1).detach().abs()
    return total / total.sum(-1, keepdim=True).clamp(min=torch.finfo(total.dtype).tiny)


def leave_one_out(
    module: AttentionClassifier, batch: TextBatch, *, temperature: float = 1.0, items: int = 512
) -> Tensor:
    """(B, n): total variation distance of the answer without each word, which is deleted, the rest read anew.

    0 where a place is outside, or the text would be empty.

    Args:
        items: texts of a batch.
    """
    found = torch.zeros(batch.tokens.shape, dtype=module.output.weight.dtype)
    batch = TextBatch(batch.tokens.cpu(), batch.inside.cpu())
    places, texts, insides = [], [], []
    for row, place in batch.inside.nonzero().tolist():
        length = int(batch.valid[row].sum())
        if length > 1:
            stays = torch.arange(batch.tokens.shape[1])[:length] != place
            places.append((row, place))
            texts.append(batch.tokens[row, :length][stays].tolist())
            insides.append(batch.inside[row, :length][stays])
    said = _shares(module, batch, temperature)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # alike lengths share a batch
    for first in range(0, len(order), items):
        chosen = order[first : first + items]
        part = text_batch([texts[index] for index in chosen])
        inside = torch.nn.utils.rnn.pad_sequence([insides[index] for index in chosen], batch_first=True)
        shares = _shares(module, TextBatch(part.tokens, inside), temperature)
        rows, columns = torch.tensor([places[index] for index in chosen]).T
        found[rows, columns] = (shares - said[rows]).abs().sum(-1) / 2
    return found


@torch.no_grad()
def _shares(module: AttentionClassifier, batch: TextBatch, temperature: float) -> Tensor:
    """(B, C) answers, on the CPU."""
    batch = batch.beside(module)
    hidden = module.encode(module.embedding(batch.tokens), batch.valid)
    return (module.classify(hidden, module.attend(hidden, batch.inside)) / temperature).softmax(-1).cpu()


# Any model -------------------------------------------------------------------------------------------------------


def input_importance(run: ForwardPass, measure: Measure) -> Tensor:
    """(n,) over the kept positions: Σ over the answer's numbers of |Σ_d x_d · ∂/∂x_d| of each input embedding.

    The gradient goes through all attention: in a transformer there is no one place to cut it. Of answers with more
    than ``MOST_NUMBERS`` numbers the highest are taken.
    """
    with torch.enable_grad():
        answer = measure.read(run.outputs)[0]
        highest = answer.detach().abs().topk(min(MOST_NUMBERS, len(answer))).indices
        sums = []
        for index in highest.tolist():
            (gradient,) = torch.autograd.grad(answer[index], run.embedded, retain_graph=True)
            product = (gradient[0] * run.embedded[0]).detach()
            patches = product.ndim == 3  # (M, rows, columns) of a convolution
            sums.append(product.sum(0).flatten() if patches else product.sum(-1))
        total = torch.stack(sums).abs().sum(0)
    kept = run.outputs.kept
    return (total if len(total) == len(kept) else total[kept]).cpu()  # patches are embedded without CLS


MOST_NUMBERS = 8


def answers_without(
    run: ForwardPass, measure: Measure, *, progress: Callable[[float], None] | None = None
) -> Tensor:
    """(n, C) the answer without each kept position: a token is deleted, a patch gets the picture's mean colour.

    Tokens are replaced by the mask or the mean embedding where the answer is read at one position.

    Args:
        progress: told how much is done, 0 to 1; what it raises comes out.
    """
    count = len(kept_positions(run.inputs))
    text = run.inputs.grid is None
    how = "remove" if text and measure.kind != "token" and count > 1 else "default"
    found: Tensor | None = None
    done = 0
    for rows, outputs in masked_outputs(run, torch.eye(count, dtype=torch.bool), how):
        part = measure.read(outputs).detach()
        if found is None:
            found = part.new_zeros(count, part.shape[1])
        found[rows] = part
        done += len(rows)
        if progress is not None:
            progress(done / count)
    assert found is not None
    return found
