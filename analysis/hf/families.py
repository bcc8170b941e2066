"""What differs between architectures: sizes, limits, prefix tokens, and where each attention's input comes from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

# Children of a block, one of which normalises what enters the self-attention.
_PRE_NORMS = (
    "norm1",  # DINOv2 and its kin
    "layernorm_before",  # ViT, DeiT, BEiT, Swin
    "layer_norm1",  # CLIP, SigLIP
    "input_layernorm",  # Llama, Mistral, Gemma, Qwen, GPT-NeoX, Bloom
    "ln_1",  # GPT-2, GPT-Neo
    "attn_norm",  # ModernBERT
    "layer.0.layer_norm",  # T5
)
# ``self_attn_layer_norm`` stands before the attention in these families, and after it in BART and Marian.
_PRE_NORM_SEQ2SEQ = frozenset({"whisper", "mbart", "pegasus", "m2m_100", "blenderbot", "speech_to_text"})

# ``layernorm_before`` stands behind the attention here.
_NORM_AFTER = frozenset({"swinv2", "swin2sr"})

# Post-norm encoders: the attention reads what the block before it, or the embeddings, gave out. Name of the blocks,
# and of what comes before the first (ELECTRA widens narrow embeddings in a module of its own).
_POST_NORM_BLOCKS = {
    "bart": ("encoder.layers.", ("encoder.layernorm_embedding",)),
    "bert": ("encoder.layer.", ("embeddings",)),
    "camembert": ("encoder.layer.", ("embeddings",)),
    "deberta": ("encoder.layer.", ("embeddings",)),
    "deberta-v2": ("encoder.layer.", ("embeddings",)),
    "distilbert": ("transformer.layer.", ("embeddings",)),
    "electra": ("encoder.layer.", ("embeddings_project", "embeddings")),
    "led": ("encoder.layers.", ("encoder.layernorm_embedding",)),
    "longformer": ("encoder.layer.", ("embeddings",)),
    "mpnet": ("encoder.layer.", ("embeddings",)),
    "roberta": ("encoder.layer.", ("embeddings",)),
    "xlm-roberta": ("encoder.layer.", ("embeddings",)),
}

RECURRENT = "recurrent"
"""Our own family: a BiLSTM and one attention with a learned query over its states (Jain & Wallace 2019)."""

_FLEXIBLE = frozenset({"dinov2", "dinov2_with_registers", "dinov3_vit"})


def stack_sizes(config: PreTrainedConfig) -> tuple[int, int, int, int]:
    """Layers, decoder layers (0 for one stack), heads and key/value heads; 0 where the config does not tell."""
    encoder = getattr(config, "encoder", config)
    if config.is_encoder_decoder:
        decoder = getattr(config, "decoder", config)
        layers = _first(encoder, "encoder_layers", "num_encoder_layers", "num_hidden_layers")
        decoder_layers = _first(decoder, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
        heads = _first(encoder, "encoder_attention_heads", "num_attention_heads")
    else:
        depths = getattr(config, "depths", None)
        layers = sum(depths) if isinstance(depths, (list, tuple)) else _first(config, "num_hidden_layers")
        decoder_layers = 0
        heads = _first(config, "num_attention_heads")
    grouped = (
        1
        if getattr(encoder, "multi_query", False)
        else _first(encoder, "num_key_value_heads", "num_kv_heads")
    )
    return layers, decoder_layers, heads, min(grouped or heads, heads)


def _first(config: Any, *names: str) -> int:
    """The first of these fields that is set; the largest, where it is a list over stages."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)):
            value = max(value, default=None)
        if isinstance(value, int):
            return value
    return 0


def heads_differ(config: PreTrainedConfig) -> str | None:
    """A note for models whose layers have different numbers of heads."""
    heads = getattr(config, "num_attention_heads", None)
    if isinstance(heads, (list, tuple)) and len(set(heads)) > 1:
        return f"The number of heads differs between stages: {', '.join(map(str, heads))}."
    return None


def is_causal(config: PreTrainedConfig) -> bool:
    """Whether the (only) stack of a text model attends to the past alone."""
    if config.is_encoder_decoder or getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return False
    family = config.model_type
    if family in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(getattr(config, "is_decoder", False))
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def max_tokens(config: PreTrainedConfig, module: nn.Module, tokenizer: Any) -> int | None:
    """Longest input in tokens. RoBERTa's kin count positions from after the padding index, so 514 means 512."""
    table = next(
        (
            part
            for name, part in module.named_modules()
            if name.rpartition(".")[2] == "position_embeddings" and isinstance(part, nn.Embedding)
        ),
        None,
    )
    if table is not None and table.padding_idx is not None and table.num_embeddings > table.padding_idx + 1:
        return table.num_embeddings - table.padding_idx - 1
    if not _positions_are_relative(module):
        encoder = getattr(config, "encoder", config)
        positions = _first(encoder, "max_position_embeddings", "n_positions", "max_target_positions")
        if positions > 0:
            return positions
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit is not None and 0 < limit < 10**6 else None


def _positions_are_relative(module: nn.Module) -> bool:
    """T5 and its kin: a table of relative distances and no absolute positions."""
    return any(name.endswith("relative_attention_bias") for name, _ in module.named_modules())


def prefix_tokens(module: nn.Module) -> int:
    """Tokens before the patches of a vision model, read from its parameters: CLS, distillation, registers."""
    count = 0
    for name, parameter in module.named_parameters():
        last = name.rpartition(".")[2]
        if name.startswith("decoder."):  # the decoder that ViT-MAE needs for pre-training only
            continue
        if last in ("cls_token", "class_token", "class_embedding", "distillation_token"):
            count += 1
        elif last == "register_tokens":
            count += parameter.shape[-2]
    return count


def size_pair(value: Any) -> tuple[int, int] | None:
    """A size that configs give as one number, a pair, or a dictionary, as (height, width)."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return int(value[0]), int(value[1])
    if isinstance(value, dict) and {"height", "width"} <= value.keys():
        return int(value["height"]), int(value["width"])
    return None


def flexible_image_size(config: PreTrainedConfig, module: PreTrainedModel) -> bool:
    """Whether other picture sizes than the trained one are taken, always or by the library's keyword."""
    if config.model_type in _FLEXIBLE:
        return True
    return "interpolate_pos_encoding" in inspect.signature(module.forward).parameters


def pads_to_whole_patches(module: nn.Module) -> bool:
    """Whether a picture that is no whole number of patches is padded with zeros (Swin) instead of cut."""
    return any(hasattr(part, "maybe_pad") and hasattr(part, "projection") for part in module.modules())


def attention_inputs(config: PreTrainedConfig, module: PreTrainedModel) -> tuple[str, ...]:
    """Names of the modules whose output (or its first part) enters each self-attention; () where not known.

    Pre-norm models: the norm. Post-norm models: the embeddings, then the block before. Models that share one block
    between layers (ALBERT) have no module a layer. Swin shifts the norm's output and cuts it into windows.
    """
    names = list(_pre_norm_names(config, module))
    if not names and config.model_type in _POST_NORM_BLOCKS:
        names = list(_post_norm_names(config, module))
    expected = stack_sizes(config)[0]
    return tuple(names) if len(names) == expected else ()


def _pre_norm_names(config: PreTrainedConfig, module: nn.Module) -> Iterator[str]:
    children = set(_PRE_NORMS) - ({"layernorm_before"} if config.model_type in _NORM_AFTER else set())
    if config.model_type in _PRE_NORM_SEQ2SEQ or getattr(config, "do_layer_norm_before", False):
        children.add("self_attn_layer_norm")
    known = {name for name, _ in module.named_modules()}
    for name in known_blocks(module):
        if config.is_encoder_decoder and "decoder" in name.split("."):
            continue
        yield from (f"{name}.{child}" for child in sorted(children) if f"{name}.{child}" in known)


def _post_norm_names(config: PreTrainedConfig, module: nn.Module) -> Iterator[str]:
    marker, first = _POST_NORM_BLOCKS[config.model_type]
    blocks = [name for name in known_blocks(module) if f".{name}".rpartition(f".{marker}")[2].isdigit()]
    if not blocks:
        return
    base = blocks[0].removesuffix(f"{marker}0")
    known = {name for name, _ in module.named_modules()}
    yield from [f"{base}{name}" for name in first if f"{base}{name}" in known][:1]
    yield from blocks[:-1]


def known_blocks(module: nn.Module) -> list[str]:
    """Names of the members of module lists, in the order in which the model holds them."""
    return [name for name, _ in module.named_modules() if name.rpartition(".")[2].isdigit()]
