"""The transformer of Vaswani et al. 2017: an encoder and a decoder, post-norm, with sinusoidal positions.

Section 3.1 has the stacks, 3.2 the attention (the encoder's to itself, the decoder's to its past and to the encoder),
3.3 the feed-forward, 3.4 the shared embeddings and their factor √M, 3.5 the positions. Marian's checkpoints
(Junczys-Dowmunt et al. 2018) are of this architecture; they add a bias to the logits.

Channels of the positions lie as Marian has them, all sines and then all cosines. The paper interleaves them, which is
the same model with its channels in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.models.common import ACTIVATIONS, read_config, real_keys
from attn_core.models.weights import Piece, attention, linear, load_strictly, per_layer, without_prefix
from attn_core.modules import KeyValueCache, MultiHeadAttention
from attn_core.positions import sinusoidal_positions


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes, under the names and with the defaults of a Marian ``config.json``."""

    vocab_size: int = 58101
    d_model: int = 1024
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    activation_function: str = "gelu"
    scale_embedding: bool = False
    max_position_embeddings: int = 1024
    pad_token_id: int | None = 58100
    eos_token_id: int | None = 0
    decoder_start_token_id: int = 58100

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The config of a checkpoint.

        Raises:
            UnsupportedModelError: for another family, pre-norm, two vocabularies, untied embeddings, learned
                positions or an unknown activation.
        """
        only: dict[str, tuple[Any, ...]] = {
            "activation_function": tuple(ACTIVATIONS),
            "share_encoder_decoder_embeddings": (True,),
            "tie_word_embeddings": (True,),
            "decoder_vocab_size": (None, values.get("vocab_size", cls.vocab_size)),
            "normalize_before": (False,),
            "normalize_embedding": (False,),
            "add_final_layer_norm": (False,),
            "static_position_embeddings": (True,),
        }
        return read_config(cls, values, families=("marian",), only=only)


@dataclass(frozen=True)
class TransformerOutput:
    """One pass.

    Attributes:
        last_hidden_state: (B, n, M) of the decoder's tokens.
        logits: (B, n, V) for the token after each.
        encoder_last_hidden_state: (B, N, M); None in a step that goes on from a cache.
        cache: for the tokens that follow.
    """

    last_hidden_state: Tensor
    logits: Tensor
    encoder_last_hidden_state: Tensor | None
    cache: TransformerCache


@dataclass(frozen=True)
class TransformerCache:
    """What decoding goes on from.

    Attributes:
        source: keys and values of the encoder's states in each layer of the decoder.
        target: of the target's tokens so far; () at first.
    """

    source: tuple[KeyValueCache, ...]
    target: tuple[KeyValueCache, ...] = ()

    def items(self, order: Tensor) -> TransformerCache:
        """The cache of these batch items, (n,) indices."""
        return TransformerCache(
            tuple(layer.items(order) for layer in self.source),
            tuple(layer.items(order) for layer in self.target),
        )


class CrossAttention(MultiHeadAttention):
    """Attention to a source whose keys and values are made once: Vaswani et al. 2017, section 3.2.3."""

    def keys_of(self, source: Tensor, key_valid: Tensor | None) -> KeyValueCache:
        """Keys and values of the encoder's states (B, N, M)."""
        key = self._split(self.key_projection(source), self.num_kv_heads)
        value = self._split(self.value_projection(source), self.num_kv_heads)
        return KeyValueCache(key, value, key_valid, source.shape[1])

    def attend_to(self, hidden: Tensor, source: KeyValueCache) -> Tensor:
        """(B, n, M) → (B, n, M)."""
        query = self._split(self.query_projection(hidden), self.heads)
        return self._attended(query, source.key, source.value, source.key_valid, None)


class FeedForward(nn.Module):
    """Linear, activation, linear, add, norm: Vaswani et al. 2017, section 3.3."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        output: Tensor = self.norm(self.narrow(self.activation(self.widen(hidden))) + hidden)
        return output


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each followed by add and norm: Vaswani et al. 2017, section 3.1."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config.d_model, config.encoder_attention_heads)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.encoder_ffn_dim, config.activation_function)

    def forward(self, hidden: Tensor, key_valid: Tensor | None) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        hidden = self.attention_norm(self.attention(hidden, key_valid=key_valid) + hidden)
        output: Tensor = self.feed_forward(hidden)
        return output


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the source, feed-forward, each followed by add and norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, heads = config.d_model, config.decoder_attention_heads
        self.attention = MultiHeadAttention(width, heads, causal=True)
        self.attention_norm = nn.LayerNorm(width)
        self.cross_attention = CrossAttention(width, heads)
        self.cross_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, config.decoder_ffn_dim, config.activation_function)

    def forward(
        self, hidden: Tensor, source: KeyValueCache, cache: KeyValueCache | None, key_valid: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        """(B, n, M), and the caches of source and target so far → (B, n, M), and the target's with these tokens."""
        attended, cache = self.attention.step(hidden, cache, key_valid=key_valid)
        hidden = self.attention_norm(attended + hidden)
        hidden = self.cross_norm(self.cross_attention.attend_to(hidden, source) + hidden)
        return self.feed_forward(hidden), cache


class Stack(nn.Module):
    """The blocks of one side."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)


class Transformer(nn.Module):
    """Encoder, decoder, and logits by the shared embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.encoder = Stack([EncoderBlock(config) for _ in range(config.encoder_layers)])
        self.decoder = Stack([DecoderBlock(config) for _ in range(config.decoder_layers)])
        self.logits_bias = nn.Parameter(torch.zeros(1, config.vocab_size))

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns ids of both sides into vectors."""
        return self.words

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TransformerOutput:
        """Encode a source and read a target.

        Args:
            input_ids: (B, N) of the source.
            attention_mask: (B, N), 0 or False for padding; None = no padding.
            decoder_input_ids: (B, n) of the target, the start token first; None = the start token alone.
            decoder_attention_mask: (B, n), as ``attention_mask``.
        Raises:
            TypeError, ValueError: if shapes do not belong together.
        """
        states, cache = self.encode(input_ids, attention_mask)
        if decoder_input_ids is None:
            start = self.config.decoder_start_token_id
            decoder_input_ids = torch.full((len(input_ids), 1), start, device=input_ids.device)
        output = self.decode(decoder_input_ids, cache, decoder_attention_mask)
        return replace(output, encoder_last_hidden_state=states)

    def encode(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, TransformerCache]:
        """States of the source (B, N, M), and the cache with which decoding begins.

        Raises:
            TypeError, ValueError: if shapes do not belong together.
        """
        check_ndim(input_ids, 2, "Transformer: input_ids")
        key_valid = real_keys(attention_mask, tuple(input_ids.shape), "Transformer")
        hidden = self._embedded(input_ids, first=0)
        for block in self.encoder.layers:
            hidden = block(hidden, key_valid)
        source = []
        for block in self.decoder.layers:
            assert isinstance(block, DecoderBlock)
            source.append(block.cross_attention.keys_of(hidden, key_valid))
        return hidden, TransformerCache(tuple(source))

    def decode(
        self, decoder_input_ids: Tensor, cache: TransformerCache, decoder_attention_mask: Tensor | None = None
    ) -> TransformerOutput:
        """More tokens of the target; all passes together give what one pass over the target gives.

        Args:
            decoder_input_ids: (B, n).
            cache: of ``encode``, or of the pass before.
            decoder_attention_mask: (B, n) for these tokens, 0 or False for padding.
        Raises:
            TypeError, ValueError: if shapes do not belong together.
        """
        check_ndim(decoder_input_ids, 2, "Transformer: decoder_input_ids")
        key_valid = real_keys(decoder_attention_mask, tuple(decoder_input_ids.shape), "Transformer")
        before: tuple[KeyValueCache | None, ...] = cache.target or (None,) * len(cache.source)
        hidden = self._embedded(decoder_input_ids, first=cache.target[0].seen if cache.target else 0)
        target = []
        for block, source, seen in zip(self.decoder.layers, cache.source, before, strict=True):
            hidden, kept = block(hidden, source, seen, key_valid)
            target.append(kept)
        logits = nn.functional.linear(hidden, self.words.weight) + self.logits_bias
        return TransformerOutput(hidden, logits, None, replace(cache, target=tuple(target)))

    def _embedded(self, ids: Tensor, *, first: int) -> Tensor:
        """Words and positions (B, n, M): Vaswani et al. 2017, sections 3.4 and 3.5."""
        words: Tensor = self.words(ids)
        if self.config.scale_embedding:
            words = words * math.sqrt(self.config.d_model)
        where = torch.arange(first, first + ids.shape[1], device=ids.device)
        return words + position_table(where, self.config.d_model).to(words.dtype)


def position_table(positions: Tensor, width: int) -> Tensor:
    """(N,) → (N, width) float32: sines in the first half of the channels, cosines in the second."""
    interleaved = sinusoidal_positions(positions, width, dtype=torch.float64)
    halves = interleaved.view(len(positions), width // 2, 2).mT.flatten(-2)
    return halves.float()  # as checkpoints store it


# From a checkpoint -----------------------------------------------------------------------------------------------


def _attention(ours: str, theirs: str) -> dict[str, str]:
    return attention(ours, *(f"{theirs}.{part}_proj" for part in ("q", "k", "v", "out")))


_BLOCK: dict[str, str | Piece] = {
    **_attention("attention", "self_attn"),
    **linear("attention_norm", "self_attn_layer_norm"),
    **linear("feed_forward.widen", "fc1"),
    **linear("feed_forward.narrow", "fc2"),
    **linear("feed_forward.norm", "final_layer_norm"),
}
_CROSS: dict[str, str | Piece] = {
    **_attention("cross_attention", "encoder_attn"),
    **linear("cross_norm", "encoder_attn_layer_norm"),
}


def load_transformer(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Transformer:
    """A transformer out of the config and tensors of a Marian checkpoint, frozen and in evaluation mode.

    Args:
        config: ``config.json``, read.
        tensors: by their keys, with the prefix "model." or without; their dtype is the model's. A checkpoint without
            the bias of the logits, which is no part of the paper's model, has zeros there.
    Raises:
        UnsupportedModelError: if the config asks for what is not written out here, or a key has no place.
    """
    sizes = TransformerConfig.from_dict(config)
    found = without_prefix(tensors, "model.")
    words = "shared.weight"
    if "final_logits_bias" not in found and words in found:
        found["final_logits_bias"] = torch.zeros(1, sizes.vocab_size, dtype=found[words].dtype)
    table: dict[str, str | Piece] = {
        "words.weight": words,
        "logits_bias": "final_logits_bias",
        **per_layer(sizes.encoder_layers, "encoder.layers.{}.", "encoder.layers.{}.", _BLOCK),
        **per_layer(sizes.decoder_layers, "decoder.layers.{}.", "decoder.layers.{}.", _BLOCK | _CROSS),
    }
    sinusoids = position_table(torch.arange(sizes.max_position_embeddings), sizes.d_model)
    beside: dict[str, Tensor | str | None] = {
        "lm_head.weight": words,
        "encoder.embed_tokens.weight": words,
        "decoder.embed_tokens.weight": words,
        "encoder.embed_positions.weight": sinusoids,
        "decoder.embed_positions.weight": sinusoids,
    }
    with torch.device("meta"):
        model = Transformer(sizes)
    load_strictly(model, found, table, beside=beside)
    return model.eval().requires_grad_(False)
