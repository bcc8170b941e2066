"""BERT: embeddings, a stack of post-norm blocks, and a head (Devlin et al. 2019, section 3).

The block is the encoder block of Vaswani et al. 2017 (section 3.1): attention, add, norm, feed-forward, add, norm.
What goes in is the sum of word, position and segment embeddings, normalised (Devlin et al. 2019, figure 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.models.common import ACTIVATIONS, EncoderOutput, label_count, places, read_config, real_keys
from attn_core.models.weights import Piece, attention, linear, load_strictly, per_layer, without_prefix
from attn_core.modules import MultiHeadAttention

Head = Literal["none", "sequence-classification", "masked-lm"]


@dataclass(frozen=True)
class BertConfig:
    """Sizes, under the names and with the defaults of a BERT ``config.json``; ``num_labels`` is C."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    num_labels: int = 2

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BertConfig:
        """The config of a checkpoint.

        Raises:
            UnsupportedModelError: for another family, relative positions, a decoder, pruned heads, an untied
                vocabulary or an unknown activation.
        """
        only: dict[str, tuple[Any, ...]] = {
            "hidden_act": tuple(ACTIVATIONS),
            "position_embedding_type": ("absolute", None),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "pruned_heads": ({}, None),
            "tie_word_embeddings": (True,),
        }
        return read_config(cls, {**values, "num_labels": label_count(values)}, families=("bert",), only=only)


class Embeddings(nn.Module):
    """norm(word + position + segment): Devlin et al. 2019, figure 2."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segments = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> Tensor:
        """(B, N) ids → (B, N, M)."""
        where = places(
            position_ids,
            input_ids.shape[1],
            first=0,
            most=self.positions.num_embeddings,
            device=input_ids.device,
        )
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        embedded: Tensor = self.norm(self.words(input_ids) + self.segments(kinds) + self.positions(where))
        return embedded


class Block(nn.Module):
    """Attention, add, norm; feed-forward, add, norm: Vaswani et al. 2017, section 3.1."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = MultiHeadAttention(width, config.num_attention_heads)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.widen = nn.Linear(width, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor, key_valid: Tensor | None = None) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        hidden = self.attention_norm(self.attention(hidden, key_valid=key_valid) + hidden)
        output: Tensor = self.output_norm(self.narrow(self.activation(self.widen(hidden))) + hidden)
        return output


class MaskedWords(nn.Module):
    """Scores over the vocabulary: linear, activation, norm, then the words' own embeddings and a bias.

    Devlin et al. 2019, section 3.1 (task 1) for the task; the extra layer is that of the authors' program.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.project = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """(B, N, M), and the embeddings (V, M) → (B, N, V)."""
        return nn.functional.linear(self.norm(self.activation(self.project(hidden))), words, self.bias)


class Bert(nn.Module):
    """The encoder, with a head or without.

    Args:
        config: sizes.
        head: "sequence-classification" reads the pooled first token, "masked-lm" every token.
        pooler: whether there is a pooler; a classification head needs one.
    Raises:
        ValueError: if the head needs what is not there, or there is no such head.
    """

    def __init__(self, config: BertConfig, *, head: Head = "none", pooler: bool = True) -> None:
        super().__init__()
        if head not in ("none", "sequence-classification", "masked-lm"):
            raise ValueError(
                f"Bert: head must be none, sequence-classification or masked-lm but is {head!r}; choose one of them."
            )
        if head == "sequence-classification" and not pooler:
            raise ValueError(
                "Bert: pooler must be True for sequence-classification, which reads it; make it so."
            )
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.classifier = (
            nn.Linear(config.hidden_size, config.num_labels) if head == "sequence-classification" else None
        )
        self.masked_words = MaskedWords(config) if head == "masked-lm" else None

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns ids into vectors."""
        return self.embeddings.words

    @property
    def attention_inputs(self) -> tuple[str, ...]:
        """Names of the modules whose output enters the attention of each layer."""
        return ("embeddings", *(f"layers.{index}" for index in range(len(self.layers) - 1)))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encode, and apply the head.

        Args:
            input_ids: (B, N).
            attention_mask: (B, N), 0 or False for padding; None = no padding.
            token_type_ids: (B, N), 0 for the first sentence and 1 for the second; None = 0.
            position_ids: (N,) or (B, N); None = counted from 0.
        Raises:
            TypeError, ValueError: if shapes do not belong together, or the text is longer than the position table.
        """
        check_ndim(input_ids, 2, "Bert: input_ids")
        key_valid = real_keys(attention_mask, tuple(input_ids.shape), "Bert")
        hidden: Tensor = self.embeddings(input_ids, token_type_ids, position_ids)
        states = [hidden]
        for block in self.layers:
            hidden = block(hidden, key_valid)
            states += [hidden] if output_hidden_states else []
        pooled = None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0]))
        logits = None
        if self.classifier is not None:
            logits = self.classifier(pooled)
        elif self.masked_words is not None:
            logits = self.masked_words(hidden, self.embeddings.words.weight)
        return EncoderOutput(hidden, logits, pooled, tuple(states) if output_hidden_states else None)


# From a checkpoint -----------------------------------------------------------------------------------------------

_BLOCK = {
    **attention(
        "attention",
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ),
    **linear("attention_norm", "attention.output.LayerNorm"),
    **linear("widen", "intermediate.dense"),
    **linear("narrow", "output.dense"),
    **linear("output_norm", "output.LayerNorm"),
}
_WORDS = "embeddings.word_embeddings.weight"
_POOLER = linear("pooler", "pooler.dense")
_CLASSIFIER = linear("classifier", "classifier")
_MASKED_WORDS = {
    "masked_words.bias": "cls.predictions.bias",
    **linear("masked_words.project", "cls.predictions.transform.dense"),
    **linear("masked_words.norm", "cls.predictions.transform.LayerNorm"),
}


def _backbone(config: BertConfig) -> dict[str, str | Piece]:
    return {
        "embeddings.words.weight": _WORDS,
        "embeddings.positions.weight": "embeddings.position_embeddings.weight",
        "embeddings.segments.weight": "embeddings.token_type_embeddings.weight",
        **linear("embeddings.norm", "embeddings.LayerNorm"),
        **per_layer(config.num_hidden_layers, "layers.{}.", "encoder.layer.{}.", _BLOCK),
    }


def load_bert(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, head: Head | Literal["auto"] = "auto"
) -> Bert:
    """A BERT out of the config and tensors of a checkpoint, frozen and in evaluation mode.

    Args:
        config: ``config.json``, read.
        tensors: by their keys, with or without the prefix "bert."; their dtype is the model's.
        head: "auto" takes the one that the tensors hold; "none" leaves it out.
    Raises:
        UnsupportedModelError: if the config asks for what is not written out here, or a key has no place.
    """
    sizes = BertConfig.from_dict(config)
    found = {_modern(key): tensor for key, tensor in without_prefix(tensors, "bert.").items()}
    if head == "auto":
        masked = "cls.predictions.transform.dense.weight" in found
        head = (
            "sequence-classification" if "classifier.weight" in found else "masked-lm" if masked else "none"
        )
    pooler = "pooler.dense.weight" in found or head == "sequence-classification"
    table = _backbone(sizes) | (_POOLER if pooler else {})
    table |= {"none": {}, "sequence-classification": _CLASSIFIER, "masked-lm": _MASKED_WORDS}[head]
    heads = [*_CLASSIFIER.values(), *_MASKED_WORDS.values()]
    beside: dict[str, Tensor | str | None] = {
        "embeddings.position_ids": None,  # 0, 1, 2 ...
        "cls.seq_relationship.weight": None,  # next-sentence prediction, which is not written out
        "cls.seq_relationship.bias": None,
        "cls.predictions.decoder.weight": _WORDS,
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    beside |= {key: None for key in heads if key not in table.values()}
    with torch.device("meta"):
        model = Bert(sizes, head=head, pooler=pooler)
    load_strictly(model, found, table, beside=beside)
    return model.eval().requires_grad_(False)


def _modern(key: str) -> str:
    """Norms of the first checkpoints have ``gamma`` and ``beta`` for weight and bias."""
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        key = key.removesuffix(old) + new if key.endswith(old) else key
    return key
