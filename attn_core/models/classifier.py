"""A recurrent text classifier with attention: embedding, BiLSTM, attention over its states, linear.

The model of Jain & Wallace 2019 ("Attention is not Explanation"), with their two similarity functions:

* additive, φ(h) = v · tanh(W h + b) (after Bahdanau et al. 2014), and
* scaled dot product, φ(h) = h · q / √m with a learned query q (after Vaswani et al. 2017).

The weights are softmax(φ(h_1), …, φ(h_N)), the context is their weighted sum of states, and a linear layer reads
the classes off the context. Encoder, attention and output are separate steps, so that attention may be replaced by
another distribution with the encoder run once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.maps import DenseMap
from attn_core.seam import record_map

Scoring = Literal["additive", "scaled_dot"]


@dataclass(frozen=True)
class ClassifierOutput:
    """One forward pass.

    Attributes:
        logits: (B, C).
        weights: (B, N) attention, zero on padding.
        hidden: (B, N, 2M) states of the encoder.
    """

    logits: Tensor
    weights: Tensor
    hidden: Tensor


class AdditiveScores(nn.Module):
    """φ(h) = v · tanh(W h + b): how much each state matters, for a query that is always the same."""

    def __init__(self, width: int, attention_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, attention_width)
        self.vector = nn.Linear(attention_width, 1, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N)."""
        scores: Tensor = self.vector(torch.tanh(self.project(hidden)))[..., 0]
        return scores


class ScaledDotScores(nn.Module):
    """φ(h) = h · q / √m with a learned query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N)."""
        return hidden @ self.query / math.sqrt(hidden.shape[-1])


class AttentionClassifier(nn.Module):
    """Embedding, BiLSTM, attention, linear.

    Args:
        vocabulary: number of words; index 0 is padding.
        classes: C.
        embedding: width of a word vector.
        hidden: M, width of a state in one direction.
        scoring: similarity function of the attention.
        attention_width: inner width of additive attention.
        dropout: on embeddings and on the context, in training.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int = 2,
        *,
        embedding: int = 128,
        hidden: int = 128,
        scoring: Scoring = "additive",
        attention_width: int = 128,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if scoring not in ("additive", "scaled_dot"):
            raise ValueError(
                f"AttentionClassifier: scoring must be additive or scaled_dot but is {scoring!r}; choose one of them."
            )
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.encoder = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.scores = (
            AdditiveScores(2 * hidden, attention_width)
            if scoring == "additive"
            else ScaledDotScores(2 * hidden)
        )
        self.output = nn.Linear(2 * hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> ClassifierOutput:
        """Classify.

        Args:
            input_ids: (B, N) word indices, padding at the end.
            attention_mask: (B, N), 0 or False for padding; None = where the index is not 0.
        Raises:
            ValueError: if shapes do not fit, or a row holds padding alone.
        """
        check_ndim(input_ids, 2, "AttentionClassifier: input_ids")
        valid = input_ids != 0 if attention_mask is None else attention_mask.bool()
        hidden = self.encode(self.embedding(input_ids), valid)
        weights = self.attend(hidden, valid)
        record_map(self, DenseMap(stored=weights.detach()[:, None, None, :], key_valid=valid))
        return ClassifierOutput(self.classify(hidden, weights), weights, hidden)

    def encode(self, embedded: Tensor, valid: Tensor) -> Tensor:
        """States (B, N, 2M) of embedded words (B, N, embedding); padding changes none and has state 0.

        Raises:
            ValueError: if ``valid`` does not fit, has a gap, or leaves a row empty.
        """
        if valid.shape != embedded.shape[:2]:
            raise ValueError(
                f"AttentionClassifier: attention_mask must be {tuple(embedded.shape[:2])} but is "
                f"{tuple(valid.shape)}; "
                "pass one value a token."
            )
        lengths = valid.sum(-1)
        positions = torch.arange(valid.shape[1], device=valid.device)
        if bool((lengths == 0).any()) or bool((valid != (positions < lengths[:, None])).any()):
            raise ValueError(
                "AttentionClassifier: attention_mask must keep at least one token of a row, and padding must stand "
                "at the end; move the padding there and leave empty texts out."
            )
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(embedded), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=valid.shape[1]
        )
        return states

    def attend(self, hidden: Tensor, valid: Tensor) -> Tensor:
        """Weights (B, N) over the states; zero on padding, rows sum to one."""
        scores: Tensor = self.scores(hidden)
        return scores.masked_fill(~valid, -math.inf).softmax(-1)

    def classify(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """Logits for any attention distribution over given states.

        Args:
            hidden: (B, N, 2M), or (B, 1, N, 2M) for several distributions of one text.
            weights: (B, N), or (B, S, N).
        Returns:
            (B, C), or (B, S, C).
        """
        context = (weights[..., None, :] @ hidden)[..., 0, :]
        logits: Tensor = self.output(self.dropout(context))
        return logits
