"""A Llama-style decoder: RMSNorm, rotary positions, grouped heads, SwiGLU (Touvron et al. 2023, section 2.2).

RMSNorm is of Zhang & Sennrich 2019 (section 4), rotary embedding of Su et al. 2021 (section 3.2), grouped heads of
Ainslie et al. 2023 (section 2.2) and SwiGLU of Shazeer 2020 (section 2). ``forward`` takes a whole text or the next
tokens of one, whose cache goes into the next call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.errors import UnsupportedModelError
from attn_core.functional import at_least_float32
from attn_core.models.common import DecoderOutput, read_config, real_keys
from attn_core.models.weights import Piece, attention, linear, load_strictly, per_layer, without_prefix
from attn_core.modules import KeyValueCache, MultiHeadAttention
from attn_core.positions import rotary


@dataclass(frozen=True)
class RotaryScaling:
    """Llama 3.1's: slow channels turn ``factor`` times slower, fast ones as before, those between are blended.

    No paper has the formula: it is that of the published code, as the transformers library has it.

    Attributes:
        factor: of the slow channels.
        low_freq_factor, high_freq_factor: turns within the original context below which a channel is slow, and above
            which it is fast.
        original_max_position_embeddings: the original context in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scaled(self, frequencies: Tensor) -> Tensor:
        """(D/2,) angles for one step → (D/2,)."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = share.clamp(0, 1)  # of the fast frequency
        return (1 - share) * frequencies / self.factor + share * frequencies


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes, under the names and with the defaults of a Llama ``config.json``.

    Attributes:
        num_key_value_heads: G; None = as many as query heads.
        rope_theta: base of the rotary frequencies; ``rope_scaling``: None as they are.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LlamaConfig:
        """The config of a checkpoint.

        Raises:
            UnsupportedModelError: for another family, rotary scaling other than "default" and "llama3", a head
                width that is not ``hidden_size`` / heads, or another activation.
        """
        width, heads = (
            values.get("hidden_size", cls.hidden_size),
            values.get("num_attention_heads", cls.num_attention_heads),
        )
        only: dict[str, tuple[Any, ...]] = {
            "hidden_act": ("silu",),
            "head_dim": (None, width / heads),
        }
        theta, scaling = _rotary_of(values)
        return read_config(
            cls,
            {**values, "rope_theta": theta, "rope_scaling": scaling},
            families=("llama",),
            only=only,
        )


def _rotary_of(values: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """Base and scaling, from ``rope_parameters`` or, in older files, ``rope_theta`` and ``rope_scaling``."""
    given = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    theta = float(given.pop("rope_theta", values.get("rope_theta", LlamaConfig.rope_theta)))
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    if kind == "default" and not given:
        return theta, None
    if kind == "llama3" and set(given) == set(RotaryScaling.__dataclass_fields__):
        return theta, RotaryScaling(**given)
    raise UnsupportedModelError(
        f"LlamaConfig.from_dict: rope_parameters must be of type 'default' or 'llama3' but are {kind!r} with "
        f"{', '.join(sorted(given)) or 'no settings'}; load this model with the transformers library."
    )


class RmsNorm(nn.Module):
    """weight ∘ x / √(mean x² + ε), computed in float32 at least: Zhang & Sennrich 2019, section 4."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        wide = at_least_float32(hidden)
        normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normalised.to(hidden.dtype)


class RotaryAttention(MultiHeadAttention):
    """Causal attention whose queries and keys are turned to their positions, by frequencies of its own."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(
            config.hidden_size,
            config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            causal=True,
            bias=config.attention_bias,
        )
        self.base, self.scaling = config.rope_theta, config.rope_scaling

    def _projected(self, hidden: Tensor, source: Tensor, *, first: int) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._projected(hidden, source, first=first)
        positions = torch.arange(first, first + hidden.shape[1], device=hidden.device)
        frequencies = self.frequencies(hidden)
        return (
            rotary(query, positions, frequencies=frequencies),
            rotary(key, positions, frequencies=frequencies),
            value,
        )

    def frequencies(self, like: Tensor) -> Tensor:
        """(D/2,) angle of each pair of channels for one step."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        channels = torch.arange(0, self.head_width, 2, dtype=dtype, device=like.device)
        plain = 1.0 / self.base ** (channels / self.head_width)
        return plain if self.scaling is None else self.scaling.scaled(plain)


class Block(nn.Module):
    """Norm, attention, add; norm, SwiGLU, add: Touvron et al. 2023, section 2.2."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.attention_norm = RmsNorm(width, config.rms_norm_eps)
        self.attention = RotaryAttention(config)
        self.output_norm = RmsNorm(width, config.rms_norm_eps)
        self.gate = nn.Linear(width, inner, bias=config.mlp_bias)
        self.widen = nn.Linear(width, inner, bias=config.mlp_bias)
        self.narrow = nn.Linear(inner, width, bias=config.mlp_bias)

    def forward(
        self, hidden: Tensor, cache: KeyValueCache | None, key_valid: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        """(B, n, M), and the cache of the tokens before → (B, n, M), and the cache with these."""
        attended, cache = self.attention.step(self.attention_norm(hidden), cache, key_valid=key_valid)
        hidden = attended + hidden
        normalised = self.output_norm(hidden)
        gated = nn.functional.silu(self.gate(normalised)) * self.widen(normalised)
        return self.narrow(gated) + hidden, cache


class Llama(nn.Module):
    """The decoder, with a language-model head or without.

    Args:
        config: sizes.
        head: whether there are logits, from the words' own embeddings where the config ties them.
    """

    def __init__(self, config: LlamaConfig, *, head: bool = True) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        untied = head and not config.tie_word_embeddings
        self.head = head
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if untied else None

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
        cache: Sequence[KeyValueCache] | None = None,
    ) -> DecoderOutput:
        """A whole text, or more tokens of one; all passes together give what one pass over the text gives.

        Positions are counted from the first token, padding included: rotary attention depends on distances alone, so
        padding on the left changes nothing.

        Args:
            input_ids: (B, n).
            attention_mask: (B, n) for these tokens, 0 or False for padding; the cache knows of those before.
            cache: of the passes before.
        Raises:
            TypeError, ValueError: if shapes do not belong together.
        """
        check_ndim(input_ids, 2, "Llama: input_ids")
        key_valid = real_keys(attention_mask, tuple(input_ids.shape), "Llama")
        hidden = self.words(input_ids)
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


def _block(config: LlamaConfig) -> dict[str, str | Piece]:
    projections = (f"self_attn.{part}_proj" for part in "qkvo")
    return {
        **linear("attention_norm", "input_layernorm", bias=False),
        **attention("attention", *projections, bias=config.attention_bias),
        **linear("output_norm", "post_attention_layernorm", bias=False),
        **linear("gate", "mlp.gate_proj", bias=config.mlp_bias),
        **linear("widen", "mlp.up_proj", bias=config.mlp_bias),
        **linear("narrow", "mlp.down_proj", bias=config.mlp_bias),
    }


def load_llama(config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, head: bool = True) -> Llama:
    """A Llama out of the config and tensors of a checkpoint, frozen and in evaluation mode.

    Args:
        config: ``config.json``, read.
        tensors: by their keys, with or without the prefix "model."; their dtype is the model's.
        head: whether to give logits; an untied checkpoint must hold the head then.
    Raises:
        UnsupportedModelError: if the config asks for what is not written out here, or a key has no place.
    """
    sizes = LlamaConfig.from_dict(config)
    table = {
        **linear("words", "embed_tokens", bias=False),
        **per_layer(sizes.num_hidden_layers, "layers.{}.", "layers.{}.", _block(sizes)),
        **linear("norm", "norm", bias=False),
    }
    beside: dict[str, Tensor | str | None] = {
        f"layers.{layer}.self_attn.rotary_emb.inv_freq": None  # follows from the config
        for layer in range(sizes.num_hidden_layers)
    }
    if sizes.tie_word_embeddings:
        beside["lm_head.weight"] = "embed_tokens.weight"
    elif head:
        table |= linear("output", "lm_head", bias=False)
    else:
        beside["lm_head.weight"] = None
    with torch.device("meta"):
        model = Llama(sizes, head=head)
    load_strictly(model, without_prefix(tensors, "model."), table, beside=beside)
    return model.eval().requires_grad_(False)
