"""GPT-2: a pre-norm decoder with learned positions and a tied language-model head (Radford et al. 2019, section 2.3).

The model of Radford et al. 2018 (section 4.1) with the norm moved to the input of each branch and one more after the
last block. ``forward`` takes a whole text or the next tokens of one, whose cache goes into the next call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.models.common import ACTIVATIONS, DecoderOutput, places, read_config, real_keys
from attn_core.models.weights import Piece, linear, load_strictly, per_layer, without_prefix
from attn_core.modules import KeyValueCache, MultiHeadAttention


@dataclass(frozen=True)
class GptConfig:
    """Sizes, under the names and with the defaults of a GPT-2 ``config.json``."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GptConfig:
        """The config of a checkpoint.

        Raises:
            UnsupportedModelError: for another family, cross-attention, other scales of scores, pruned heads or an
                unknown activation.
        """
        only: dict[str, tuple[Any, ...]] = {
            "activation_function": tuple(ACTIVATIONS),
            "add_cross_attention": (False,),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "pruned_heads": ({}, None),
        }
        return read_config(cls, values, families=("gpt2",), only=only)


class Block(nn.Module):
    """Norm, attention, add; norm, feed-forward, add: Radford et al. 2019, section 2.3."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.n_embd
        inner = 4 * width if config.n_inner is None else config.n_inner
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.attention = MultiHeadAttention(width, config.n_head, causal=True)
        self.output_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.activation = ACTIVATIONS[config.activation_function]

    def forward(
        self, hidden: Tensor, cache: KeyValueCache | None, key_valid: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        """(B, n, M), and the cache of the tokens before → (B, n, M), and the cache with these."""
        attended, cache = self.attention.step(self.attention_norm(hidden), cache, key_valid=key_valid)
        hidden = attended + hidden
        return self.narrow(self.activation(self.widen(self.output_norm(hidden)))) + hidden, cache


class Gpt(nn.Module):
    """The decoder, with a language-model head or without.

    Args:
        config: sizes.
        head: whether the words' own embeddings (or, where the config does not tie them, others) give logits.
    """

    def __init__(self, config: GptConfig, *, head: bool = True) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.n_positions, config.n_embd)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        untied = head and not config.tie_word_embeddings
        self.head = head
        self.output = nn.Linear(config.n_embd, config.vocab_size, bias=False) if untied else None

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns ids into vectors."""
        return self.words

    @property
    def attention_inputs(self) -> tuple[str, ...]:
        """Names of the modules whose output enters the attention of each layer."""
        return tuple(f"layers.{index}.attention_norm" for index in range(len(self.layers)))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Sequence[KeyValueCache] | None = None,
    ) -> DecoderOutput:
        """A whole text, or more tokens of one; all passes together give what one pass over the text gives.

        Args:
            input_ids: (B, n).
            attention_mask: (B, n) for these tokens, 0 or False for padding; the cache knows of those before.
            position_ids: (n,) or (B, n); None = counted on from the cache, padding included. A text with padding on
                the left needs its own: ``(mask.cumsum(1) − 1).clamp(min=0)``.
            cache: of the passes before.
        Raises:
            TypeError, ValueError: if shapes do not belong together, or the text is longer than the position table.
        """
        check_ndim(input_ids, 2, "Gpt: input_ids")
        key_valid = real_keys(attention_mask, tuple(input_ids.shape), "Gpt")
        where = places(
            position_ids,
            input_ids.shape[1],
            first=cache[0].seen if cache else 0,
            most=self.config.n_positions,
            device=input_ids.device,
        )
        hidden = self.words(input_ids) + self.positions(where)
        caches: list[KeyValueCache] = []
        for index, block in enumerate(self.layers):
            hidden, kept = block(hidden, cache[index] if cache else None, key_valid)
            caches.append(kept)
        hidden = self.norm(hidden)
        logits = None
        if self.head:
            words = self.words if self.output is None else self.output
            logits = nn.functional.linear(hidden, words.weight)
        return DecoderOutput(hidden, logits, tuple(caches))


# From a checkpoint -----------------------------------------------------------------------------------------------


def _transposed(ours: str, theirs: str, index: int = 0, count: int = 1) -> dict[str, Piece]:
    """Rows of a table for a linear layer that GPT-2 stores as (in, out), or for a part of one."""
    return {
        f"{ours}.weight": Piece(f"{theirs}.weight", index, count, transposed=True),
        f"{ours}.bias": Piece(f"{theirs}.bias", index, count),
    }


_BLOCK: dict[str, str | Piece] = {
    **linear("attention_norm", "ln_1"),
    **_transposed("attention.query_projection", "attn.c_attn", 0, 3),
    **_transposed("attention.key_projection", "attn.c_attn", 1, 3),
    **_transposed("attention.value_projection", "attn.c_attn", 2, 3),
    **_transposed("attention.output_projection", "attn.c_proj"),
    **linear("output_norm", "ln_2"),
    **_transposed("widen", "mlp.c_fc"),
    **_transposed("narrow", "mlp.c_proj"),
}


def load_gpt(config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, head: bool = True) -> Gpt:
    """A GPT-2 out of the config and tensors of a checkpoint, frozen and in evaluation mode.

    Args:
        config: ``config.json``, read.
        tensors: by their keys, with or without the prefix "transformer."; their dtype is the model's.
        head: whether to give logits.
    Raises:
        UnsupportedModelError: if the config asks for what is not written out here, or a key has no place.
    """
    sizes = GptConfig.from_dict(config)
    table = {
        **linear("words", "wte", bias=False),
        **linear("positions", "wpe", bias=False),
        **per_layer(sizes.n_layer, "layers.{}.", "h.{}.", _BLOCK),
        **linear("norm", "ln_f"),
    }
    beside: dict[str, Tensor | str | None] = {
        f"h.{layer}.attn.{buffer}": None  # the causal mask, written out
        for layer in range(sizes.n_layer)
        for buffer in ("bias", "masked_bias")
    }
    if sizes.tie_word_embeddings:
        beside["lm_head.weight"] = "wte.weight"
    elif head:
        table |= linear("output", "lm_head", bias=False)
    else:
        beside["lm_head.weight"] = None
    with torch.device("meta"):
        model = Gpt(sizes, head=head)
    load_strictly(model, without_prefix(tensors, "transformer."), table, beside=beside)
    return model.eval().requires_grad_(False)
