"""Vision transformers: ViT, DeiT, DINOv2 and DINOv2 with registers.

A picture is cut into patches, each patch is a token, and a class token stands before them (Dosovitskiy et al. 2021,
section 3.1). The blocks are pre-norm. DeiT adds a distillation token (Touvron et al. 2021, section 4); DINOv2 scales
what each branch adds (LayerScale, Touvron et al. 2021b, section 2) and its largest model has a SwiGLU feed-forward
(Shazeer 2020, section 2); registers are tokens without a position (Darcet et al. 2024, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.models.common import ACTIVATIONS, EncoderOutput, label_count, read_config, size_pair
from attn_core.models.weights import Piece, attention, linear, load_strictly, per_layer, without_prefix
from attn_core.modules import MultiHeadAttention

Head = Literal["none", "image-classification", "with-teacher"]

_FAMILIES = ("vit", "deit", "dinov2", "dinov2_with_registers")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "dinov2": {"layer_norm_eps": 1e-6, "patch_size": (14, 14)},
    "dinov2_with_registers": {"layer_norm_eps": 1e-6, "num_register_tokens": 4},
}


@dataclass(frozen=True)
class ViTConfig:
    """Family and sizes, under the names and with the defaults of a ``config.json``.

    Attributes:
        intermediate_size: of the feed-forward of ViT and DeiT; DINOv2's follows from ``mlp_ratio``.
        image_size, patch_size: (height, width) in pixels.
    """

    model_type: str = "vit"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    mlp_ratio: float = 4
    hidden_act: str = "gelu"
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    num_channels: int = 3
    layer_norm_eps: float = 1e-12
    use_swiglu_ffn: bool = False
    num_register_tokens: int = 0
    num_labels: int = 2

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViTConfig:
        """The config of a checkpoint.

        Raises:
            UnsupportedModelError: for another family, projections without bias, another pooler or activation.
        """
        only: dict[str, tuple[Any, ...]] = {"hidden_act": tuple(ACTIVATIONS), "qkv_bias": (True,)}
        only["pooler_act"] = ("tanh",)
        only["pooler_output_size"] = (None, values.get("hidden_size", cls.hidden_size))
        pairs = {name: size_pair(values[name]) for name in ("image_size", "patch_size") if name in values}
        given = {**values, **pairs, "num_labels": label_count(values)}
        defaults = _DEFAULTS.get(values.get("model_type", "vit"), {})
        return read_config(cls, given, families=_FAMILIES, only=only, defaults=defaults)

    @property
    def is_dino(self) -> bool:
        """Whether branches are scaled, the norm's first token is pooled, and the head reads the patches too."""
        return self.model_type.startswith("dinov2")

    @property
    def tokens_with_position(self) -> int:
        """Tokens before the patches that have a place in the table of positions: class, and distillation."""
        return 2 if self.model_type == "deit" else 1

    @property
    def table(self) -> tuple[int, int]:
        """Rows and columns of the table of positions."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]


class Patches(nn.Module):
    """Each patch through one linear layer, written as a convolution that steps by its own size."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            config.num_channels, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, P, M), row by row."""
        patches: Tensor = self.projection(pixel_values).flatten(2).mT
        return patches


class Embeddings(nn.Module):
    """Class token, distillation token or registers, and patches, with their positions."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width, (rows, columns) = config.hidden_size, config.table
        self.patches = Patches(config)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        deit, registers = config.model_type == "deit", config.num_register_tokens
        self.distillation_token = nn.Parameter(torch.zeros(1, 1, width)) if deit else None
        self.registers = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        self.positions = nn.Parameter(torch.zeros(1, config.tokens_with_position + rows * columns, width))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, N, M)."""
        patches = self.patches(pixel_values)
        rows, columns = (pixel_values.shape[2 + axis] // self.config.patch_size[axis] for axis in (0, 1))
        first = [token for token in (self.class_token, self.distillation_token) if token is not None]
        tokens = torch.cat([*(token.expand(len(patches), -1, -1) for token in first), patches], dim=1)
        tokens = tokens + self.positions_for(rows, columns)
        if self.registers is None:
            return tokens
        registers = self.registers.expand(len(tokens), -1, -1)  # they have no position
        return torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)

    def positions_for(self, rows: int, columns: int) -> Tensor:
        """(1, N, M): the table, its part for the patches resampled where the picture has another grid.

        Bicubic, as each family does it: DINOv2 in float32, and with registers with antialiasing.

        Raises:
            ValueError: if the table is not square and would have to be resampled.
        """
        if (rows, columns) == self.config.table:
            return self.positions
        height, width = self.config.table
        if height != width:
            raise ValueError(
                f"ViT: pixel_values must give {height} × {width} patches since the table of positions is not square, "
                f"but give {rows} × {columns}; pass pictures of {self.config.image_size} pixels."
            )
        count = self.config.tokens_with_position
        table = self.positions[:, count:].mT.view(1, -1, height, width)  # (1, M, h, w)
        resampled = nn.functional.interpolate(
            table.float() if self.config.is_dino else table,
            size=(rows, columns),
            mode="bicubic",
            align_corners=False,
            antialias=self.config.model_type == "dinov2_with_registers",
        ).to(table.dtype)
        return torch.cat([self.positions[:, :count], resampled.flatten(2).mT], dim=1)


class FeedForward(nn.Module):
    """Linear, activation, linear; or SwiGLU, (SiLU(x W) ∘ x V) W2: Shazeer 2020, section 2."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inner = int(config.hidden_size * config.mlp_ratio) if config.is_dino else config.intermediate_size
        self.gated = config.is_dino and config.use_swiglu_ffn
        if self.gated:
            inner = (int(inner * 2 / 3) + 7) // 8 * 8  # as many weights as ungated, in whole eights
        self.widen = nn.Linear(config.hidden_size, 2 * inner if self.gated else inner)
        self.narrow = nn.Linear(inner, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        gate, value = self.widen(hidden).chunk(2, dim=-1) if self.gated else (self.widen(hidden), None)
        wide = self.activation(gate) if value is None else nn.functional.silu(gate) * value
        output: Tensor = self.narrow(wide)
        return output


class LayerScale(nn.Module):
    """A factor of its own for each channel: Touvron et al. 2021b, section 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        return hidden * self.factors


class Block(nn.Module):
    """Norm, attention, add; norm, feed-forward, add: Dosovitskiy et al. 2021, equations 2 and 3."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attention = MultiHeadAttention(width, config.num_attention_heads)
        self.attention_scale = LayerScale(width) if config.is_dino else nn.Identity()
        self.output_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.output_scale = LayerScale(width) if config.is_dino else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, M) → (B, N, M)."""
        hidden = self.attention_scale(self.attention(self.attention_norm(hidden))) + hidden
        output: Tensor = self.output_scale(self.feed_forward(self.output_norm(hidden))) + hidden
        return output


class ViT(nn.Module):
    """The encoder, with a head or without.

    Args:
        head: "image-classification" reads the class token (DINOv2: and the mean of the patches); "with-teacher" is
            the mean of two heads on DeiT's class and distillation token (Touvron et al. 2021, section 4).
        pooler: whether the class token goes through a linear layer and tanh.
    Raises:
        ValueError: if the family has no such head.
    """

    def __init__(self, config: ViTConfig, *, head: Head = "none", pooler: bool = False) -> None:
        super().__init__()
        heads = ("none", "image-classification", *(("with-teacher",) if config.model_type == "deit" else ()))
        if head not in heads:
            which = f"{', '.join(heads)} for {config.model_type}"
            raise ValueError(f"ViT: head must be {which} but is {head!r}; choose one of them.")
        width = config.hidden_size
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.pooler = nn.Linear(width, width) if pooler else None
        features = 2 * width if config.is_dino else width
        self.classifier = None if head == "none" else nn.Linear(features, config.num_labels)
        self.distillation_classifier = nn.Linear(width, config.num_labels) if head == "with-teacher" else None

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns pixels into vectors."""
        return self.embeddings.patches

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return self.config.tokens_with_position + self.config.num_register_tokens

    @property
    def attention_inputs(self) -> tuple[str, ...]:
        """Names of the modules whose output enters the attention of each layer."""
        return tuple(f"layers.{index}.attention_norm" for index in range(len(self.layers)))

    def forward(self, pixel_values: Tensor, output_hidden_states: bool = False) -> EncoderOutput:
        """Encode, and apply the head.

        Args:
            pixel_values: (B, 3, height, width), of any size; pixels beyond the last whole patch are not looked at.
        Raises:
            TypeError, ValueError: if the shape does not fit.
        """
        check_ndim(pixel_values, 4, "ViT: pixel_values")
        hidden: Tensor = self.embeddings(pixel_values)
        states = [hidden]
        for block in self.layers:
            hidden = block(hidden)
            states += [hidden] if output_hidden_states else []
        hidden = self.norm(hidden)
        pooled = hidden[:, 0] if self.config.is_dino else None
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(hidden[:, 0]))
        features = [hidden[:, 0]] + ([hidden[:, self.prefix_tokens :].mean(1)] if self.config.is_dino else [])
        logits = None if self.classifier is None else self.classifier(torch.cat(features, dim=1))
        if self.distillation_classifier is not None:
            logits = (logits + self.distillation_classifier(hidden[:, 1])) / 2
        return EncoderOutput(hidden, logits, pooled, tuple(states) if output_hidden_states else None)


# From a checkpoint -----------------------------------------------------------------------------------------------

_PARTS = (f"attention.attention.{part}" for part in ("query", "key", "value"))
_ATTENTION = attention("attention", *_PARTS, "attention.output.dense")
_VIT_BLOCK = {
    **_ATTENTION,
    **linear("attention_norm", "layernorm_before"),
    **linear("output_norm", "layernorm_after"),
    **linear("feed_forward.widen", "intermediate.dense"),
    **linear("feed_forward.narrow", "output.dense"),
}
_DINO_BLOCK = {
    **_ATTENTION,
    **linear("attention_norm", "norm1"),
    **linear("output_norm", "norm2"),
    "attention_scale.factors": "layer_scale1.lambda1",
    "output_scale.factors": "layer_scale2.lambda1",
}


def _table(config: ViTConfig, head: Head, *, pooler: bool) -> dict[str, str | Piece]:
    block = dict(_DINO_BLOCK if config.is_dino else _VIT_BLOCK)
    if config.is_dino:
        inner, outer = ("weights_in", "weights_out") if config.use_swiglu_ffn else ("fc1", "fc2")
        block |= linear("feed_forward.widen", f"mlp.{inner}") | linear("feed_forward.narrow", f"mlp.{outer}")
    table: dict[str, str | Piece] = {
        "embeddings.class_token": "embeddings.cls_token",
        "embeddings.positions": "embeddings.position_embeddings",
        **linear("embeddings.patches.projection", "embeddings.patch_embeddings.projection"),
        **per_layer(config.num_hidden_layers, "layers.{}.", "encoder.layer.{}.", block),
        **linear("norm", "layernorm"),
        **(linear("pooler", "pooler.dense") if pooler else {}),
    }
    if config.model_type == "deit":
        table["embeddings.distillation_token"] = "embeddings.distillation_token"
    if config.num_register_tokens:
        table["embeddings.registers"] = "embeddings.register_tokens"
    if head == "image-classification":
        table |= linear("classifier", "classifier")
    if head == "with-teacher":
        table |= linear("classifier", "cls_classifier") | linear(*["distillation_classifier"] * 2)
    return table


def load_vit(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, head: Head | Literal["auto"] = "auto"
) -> ViT:
    """A vision transformer out of the config and tensors of a checkpoint, frozen and in evaluation mode.

    Args:
        config: ``config.json``, read.
        tensors: by their keys, with or without the family's prefix ("dinov2."); their dtype is the model's.
        head: "auto" takes the one that the tensors hold; "none" leaves it out.
    Raises:
        UnsupportedModelError: if the config asks for what is not written out here, or a key has no place.
    """
    sizes = ViTConfig.from_dict(config)
    found = without_prefix(tensors, f"{sizes.model_type}.")
    if head == "auto":
        single: Head = "image-classification" if "classifier.weight" in found else "none"
        head = "with-teacher" if "cls_classifier.weight" in found else single
    pooler = "pooler.dense.weight" in found
    table = _table(sizes, head, pooler=pooler)
    heads = [
        key
        for name in ("classifier", "cls_classifier", "distillation_classifier")
        for key in linear(name, name)
    ]
    mask = "embeddings.mask_token"  # stands for patches that are hidden in pre-training
    beside: dict[str, Tensor | str | None] = {
        key: None for key in (mask, *heads) if key not in table.values()
    }
    with torch.device("meta"):
        model = ViT(sizes, head=head, pooler=pooler)
    load_strictly(model, found, table, beside=beside)
    return model.eval().requires_grad_(False)
