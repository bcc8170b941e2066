"""The small classifier whose numbers other people's programs computed: ``tests/oracles/07_jain_wallace``.

Embedding, BiLSTM, attention v · tanh(W h + b) over the words between the start and the end mark, one sigmoid output:
the binary model of Jain & Wallace 2019, in float64. Every step is differentiable.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

ORACLES = Path(__file__).parent.parent / "oracles"

START, END = 1, 2


class OracleClassifier(nn.Module):
    """The model of ``bilstm_tanh.json``, in float64 and without dropout.

    Args:
        tensors: its parameters under the names that Jain & Wallace's program gives them.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        words, width = tensors["encoder.embedding.weight"].shape
        inner, states = tensors["decoder.attention.attn1.weight"].shape
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.encoder = nn.LSTM(width, states // 2, batch_first=True, bidirectional=True)
        self.project = nn.Linear(states, inner)
        self.vector = nn.Linear(inner, 1, bias=False)
        self.output = nn.Linear(states, 1)
        ours = {
            "encoder.embedding.": "embedding.",
            "encoder.rnn.": "encoder.",
            "decoder.attention.attn1.": "project.",
            "decoder.attention.attn2.": "vector.",
            "decoder.linear_1.": "output.",
        }
        renamed = {
            own + name.removeprefix(theirs): tensor
            for name, tensor in tensors.items()
            for theirs, own in ours.items()
            if name.startswith(theirs)
        }
        self.load_state_dict(renamed)
        self.double()

    def inside(self, tokens: Tensor) -> Tensor:
        """(B, N) bool: neither start nor end nor padding; only these are attended to."""
        return (tokens != 0) & (tokens != START) & (tokens != END)

    def encode(self, tokens: Tensor, embedded: Tensor | None = None) -> Tensor:
        """States (B, N, 2M); ``embedded`` (B, N, width) stands for the words' own vectors where given."""
        embedded = self.embedding(tokens) if embedded is None else embedded
        packed = nn.utils.rnn.pack_padded_sequence(
            embedded, (tokens != 0).sum(-1), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=tokens.shape[1]
        )
        return states

    def attend(self, hidden: Tensor, inside: Tensor) -> Tensor:
        """Weights (B, N), zero outside."""
        scores: Tensor = self.vector(torch.tanh(self.project(hidden)))[..., 0]
        return scores.masked_fill(~inside, -math.inf).softmax(-1)

    def decode(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """The sigmoid output (B, S, 1) for S distributions (B, S, N) over the states of each text."""
        logits: Tensor = self.output(weights @ hidden)
        return logits.sigmoid()


def oracle_model(name: str = "jw_bilstm_seed0") -> OracleClassifier:
    """The trained model, or its adversary ``jw_bilstm_seed0_adversary``."""
    return OracleClassifier(load_file(ORACLES / "models" / name / "model.safetensors")).eval()


def oracle_arrays() -> dict[str, NDArray[np.generic]]:
    """The arrays of ``bilstm_tanh.npz``; ``bilstm_tanh.json`` says what each is and its tolerance."""
    with np.load(ORACLES / "07_jain_wallace" / "bilstm_tanh.npz") as arrays:
        return dict(arrays)
