"""Tiny random models of every architecture that AttnScope claims to look into: the list that tests and docs share.

Each is built from a config and a seed; nothing is downloaded. Attention is peaked, and every bias, norm weight and
position table is non-zero, so that a forgotten scale, bias or mask shows in the numbers. ``ARCHITECTURES`` is the
list; ``scripts/architecture_table.py`` writes docs/architectures.md from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from tests.oracles.bands import absolute_positions
from tests.oracles.windows import over_the_grid

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")

PAD = 1
TEXT_LENGTHS = (11, 7)
"""Valid tokens of the two texts of a padded batch."""

TARGET_LENGTHS = (6, 4)
"""Valid target tokens of an encoder-decoder's batch: shorter than the texts, so that a transposed map shows."""


@dataclass(frozen=True)
class Batch:
    """What goes into a model, and which positions are real.

    Attributes:
        tensors: keyword arguments of the model's forward, batch of two.
        valid: (B, N) of the encoder's or decoder-only model's tokens; None when every position is real.
        target_valid: (B, N) of the decoder's tokens of an encoder-decoder.
    """

    tensors: dict[str, Tensor]
    valid: Tensor | None = None
    target_valid: Tensor | None = None

    def alone(self, index: int) -> dict[str, Tensor]:
        """The tensors of one item by itself, padding cut off."""
        tensors = {}
        for name, tensor in self.tensors.items():
            keep = self.target_valid if name.startswith("decoder_") else self.valid
            row = tensor[index]
            if keep is not None and row.ndim == 1 and row.shape == keep[index].shape:
                row = row[keep[index]]
            tensors[name] = row[None]
        return tensors


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Attributes:
        name: as people call it.
        family: the library's ``config.model_type``.
        model: class of transformers, by name.
        config: class and options of its config.
        batch: makes the inputs.
        layers: how many maps of each kind one run gives.
        heads: query heads of a layer, or of each layer where they differ.
        kv_heads: key-value heads, None where every head has its own.
        special: what a capture has to get right.
        prefix_tokens: positions before the first patch or word that are not part of the picture (vision only).
        path: through the seam, or by the library's own ``output_attentions``.
        sharpness: factor on query and key projections.
        windows: (grid, window, shift) of each layer of a model that attends inside windows of a grid.
        banded: the library hands the encoder's weights out at relative positions, beside those of global tokens.
    """

    name: str
    family: str
    model: str
    config: tuple[str, dict[str, Any]]
    batch: Callable[[], Batch]
    layers: Mapping[Kind, int]
    heads: int | tuple[int, ...] = 4
    kv_heads: int | None = None
    special: str = ""
    prefix_tokens: int = 0
    path: Literal["seam", "fallback"] = "seam"
    sharpness: float = 2.0
    windows: tuple[tuple[tuple[int, int], int, int], ...] | None = None
    banded: bool = False
    left_batch: Callable[[], Batch] | None = field(default=None)

    def build(self, *, eager: bool = False, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
        """The model, in evaluation mode; the same weights for the same seed, eager or as the library builds it."""
        config_name, options = self.config
        config = getattr(transformers, config_name)(**(options | changes))
        model_class = getattr(transformers, self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module: transformers.PreTrainedModel = (
                model_class._from_config(config, attn_implementation="eager")
                if eager
                else model_class(config)
            )
        sharpen(module, seed=seed, sharpness=self.sharpness)
        module.train(False)
        return module

    def heads_of(self, layer: int) -> int:
        """Query heads of a layer."""
        return self.heads if isinstance(self.heads, int) else self.heads[layer]


QUERY_OR_KEY = re.compile(
    r"(^|[._])(q|k|query|key|q_lin|k_lin|q_proj|k_proj|query_proj|key_proj|query_global|key_global|query_key_value|c_attn|Wqkv|qkv)[.]weight$"
)


def sharpen(module: nn.Module, *, seed: int, sharpness: float) -> None:
    """Replace every parameter by random numbers that make attention peaked and every term matter.

    Matrices are scaled so that a layer keeps the size of its input, query and key matrices by ``sharpness`` more,
    biases and norm weights are moved away from 0 and 1.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    owners = {
        f"{prefix}.{name}" if prefix else name: owner
        for prefix, owner in module.named_modules()
        for name, _ in owner.named_parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            owner = owners[name]
            if name.endswith("logit_scale"):  # the logarithm of what multiplies cosines
                parameter.copy_(2.0 + 0.2 * noise)
            elif parameter.ndim < 2:
                centred = name.endswith("bias") or "Gemma" in type(owner).__name__
                parameter.copy_(0.2 * noise + (0.0 if centred else 1.0))
            elif isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | transformers.pytorch_utils.Conv1D):
                conv1d = isinstance(owner, transformers.pytorch_utils.Conv1D)  # (in, out), GPT-2's
                fan_in = parameter.shape[0] if conv1d else parameter[0].numel()
                gain = sharpness if QUERY_OR_KEY.search(name) else 1.0
                parameter.copy_(gain * noise / fan_in**0.5)
            elif isinstance(owner, nn.Embedding) and "relative" not in name:
                parameter.copy_(0.3 * noise)  # tied to the output, so logits stay near 1
            else:  # class and register tokens, position and relative-bias tables
                parameter.copy_(0.7 * noise)


# Inputs


def _tokens(
    lengths: tuple[int, ...], *, seed: int, left: bool = False, pad: int = PAD
) -> tuple[Tensor, Tensor]:
    """(B, N) ids and validity of random texts, padded on one side."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(5, 90, (len(lengths), width), generator=generator)
    position = torch.arange(width)
    length = torch.tensor(lengths)[:, None]
    valid = position >= width - length if left else position < length
    return ids.masked_fill(~valid, pad), valid


def text_batch() -> Batch:
    """Two texts of unequal length, padded on the right."""
    ids, valid = _tokens(TEXT_LENGTHS, seed=1)
    return Batch({"input_ids": ids, "attention_mask": valid.long()}, valid)


def left_padded_batch() -> Batch:
    """The same for a decoder, padded on the left with the end-of-text token, positions counted without padding."""
    ids, valid = _tokens(TEXT_LENGTHS, seed=1, left=True, pad=2)
    ids[0, 3] = 2  # a real end-of-text token: padding is told by the mask, never by the id
    positions = (valid.long().cumsum(-1) - 1).clamp(min=0)
    return Batch({"input_ids": ids, "attention_mask": valid.long(), "position_ids": positions}, valid)


def left_padded_batch_own_positions() -> Batch:
    """Left padding for models that derive positions from the mask themselves."""
    batch = left_padded_batch()
    return Batch({name: batch.tensors[name] for name in ("input_ids", "attention_mask")}, batch.valid)


def pair_batch() -> Batch:
    """Texts and shorter targets, both padded on the right."""
    ids, valid = _tokens(TEXT_LENGTHS, seed=1)
    target, target_valid = _tokens(TARGET_LENGTHS, seed=2)
    tensors = {
        "input_ids": ids,
        "attention_mask": valid.long(),
        "decoder_input_ids": target,
        "decoder_attention_mask": target_valid.long(),
    }
    return Batch(tensors, valid, target_valid)


def with_global_tokens(batch: Callable[[], Batch]) -> Callable[[], Batch]:
    """The same texts with global attention on two tokens of the first and on one of the second."""

    def made() -> Batch:
        plain = batch()
        chosen = torch.zeros_like(plain.tensors["attention_mask"])
        chosen[0, 0] = chosen[0, 7] = chosen[1, 2] = 1
        return Batch({**plain.tensors, "global_attention_mask": chosen}, plain.valid, plain.target_valid)

    return made


def picture_batch(height: int = 16, width: int = 16) -> Callable[[], Batch]:
    """Two random pictures."""

    def batch() -> Batch:
        generator = torch.Generator().manual_seed(3)
        return Batch({"pixel_values": torch.randn(2, 3, height, width, generator=generator)})

    return batch


def sound_batch() -> Batch:
    """Two random spectrograms with targets; Whisper always takes its full length."""
    target, target_valid = _tokens(TARGET_LENGTHS, seed=2)
    features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(4))
    tensors = {
        "input_features": features,
        "decoder_input_ids": target,
        "decoder_attention_mask": target_valid.long(),
    }
    return Batch(tensors, None, target_valid)


# The list

BERT_LIKE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
}
LLAMA_LIKE: dict[str, Any] = {
    **BERT_LIKE,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
BART_LIKE: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
VIT_LIKE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}
ENCODER: Mapping[Kind, int] = {"encoder": 3}
DECODER: Mapping[Kind, int] = {"decoder": 3}
BOTH: Mapping[Kind, int] = {"encoder": 3, "decoder": 2, "cross": 2}


def _encoder(
    name: str, family: str, model: str, config: str, special: str = "", **options: Any
) -> Architecture:
    fields: dict[str, Any] = {"layers": ENCODER, "special": special}
    fields |= {key: options.pop(key) for key in ("path", "sharpness", "layers") if key in options}
    return Architecture(
        name, family, model, (config, BERT_LIKE | options), text_batch,
        **fields,
    )  # fmt: skip


def _decoder(
    name: str, family: str, model: str, config: str, special: str, options: dict[str, Any], **fields: Any
) -> Architecture:
    defaults: dict[str, Any] = {"layers": DECODER, "special": special, "left_batch": left_padded_batch}
    return Architecture(name, family, model, (config, options), text_batch, **(defaults | fields))


def _vision(
    name: str,
    family: str,
    model: str,
    config: str,
    special: str,
    *,
    prefix_tokens: int,
    size: tuple[int, int] = (16, 16),
    **options: Any,
) -> Architecture:
    return Architecture(
        name, family, model, (config, VIT_LIKE | options), picture_batch(*size),
        layers=ENCODER, special=special, prefix_tokens=prefix_tokens,
    )  # fmt: skip


def _swin(
    name: str,
    family: str,
    prefix: str,
    special: str,
    *,
    path: Literal["seam", "fallback"] = "seam",
    last_shift: int = 2,
) -> Architecture:
    """A Swin of two stages on pictures of 36 × 44 pixels, which neither windows nor merges divide evenly."""
    first, second = (9, 11), (5, 6)
    return Architecture(
        name,
        family,
        f"{prefix}Model",
        (
            f"{prefix}Config",
            {
                "image_size": 32,
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [2, 2],
                "num_heads": [2, 4],
                "window_size": 4,
            },
        ),
        picture_batch(36, 44),
        layers={"encoder": 4},
        heads=(2, 2, 4, 4),
        windows=((first, 4, 0), (first, 4, 2), (second, 4, 0), (second, 4, last_shift)),
        special=special,
        path=path,
    )


ARCHITECTURES: tuple[Architecture, ...] = (
    _encoder("BERT", "bert", "BertForSequenceClassification", "BertConfig", "absolute positions, segments"),
    _encoder("RoBERTa", "roberta", "RobertaModel", "RobertaConfig", "positions counted from the padding index"),
    Architecture(
        "DistilBERT", "distilbert", "DistilBertModel",
        ("DistilBertConfig", {"vocab_size": 99, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40,
                              "max_position_embeddings": 64, "pad_token_id": PAD}),
        text_batch, layers=ENCODER, special="own config names (dim, n_layers, n_heads)",
    ),
    _encoder("ALBERT", "albert", "AlbertModel", "AlbertConfig", "one module serves every layer",
             embedding_size=16),
    _encoder("ELECTRA", "electra", "ElectraModel", "ElectraConfig", "embedding narrower than the model",
             embedding_size=16),
    _encoder("ModernBERT", "modernbert", "ModernBertModel", "ModernBertConfig",
             "rotary positions, local window of ±3 in two layers of three", local_attention=6,
             global_attn_every_n_layers=3, norm_bias=True, attention_bias=True, mlp_bias=True,
             bos_token_id=0, cls_token_id=0, eos_token_id=2, sep_token_id=2),
    _decoder("GPT-2", "gpt2", "GPT2LMHeadModel", "GPT2Config", "causal; query, key and value in one matrix",
             {"vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 2,
              "eos_token_id": 2}),
    _decoder("Llama", "llama", "LlamaForCausalLM", "LlamaConfig", "rotary positions, grouped heads (4 on 2)",
             {**LLAMA_LIKE, "attention_bias": True}, kv_heads=2),
    _decoder("Mistral", "mistral", "MistralForCausalLM", "MistralConfig",
             "sliding window of 4, grouped heads (4 on 2)", {**LLAMA_LIKE, "sliding_window": 4}, kv_heads=2),
    _decoder("Gemma 2", "gemma2", "Gemma2ForCausalLM", "Gemma2Config",
             "scores capped at 4, window of 4 in every second layer, own scale, grouped heads (4 on 2)",
             {**LLAMA_LIKE, "num_hidden_layers": 4, "sliding_window": 4, "attn_logit_softcapping": 4.0,
              "query_pre_attn_scalar": 5, "attention_bias": True}, kv_heads=2, layers={"decoder": 4}),
    _decoder("Qwen 3", "qwen3", "Qwen3ForCausalLM", "Qwen3Config",
             "norm on query and key, window of 5 in the last layer, grouped heads (4 on 2)",
             {**LLAMA_LIKE, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, kv_heads=2,
             sharpness=1.0),
    _decoder("GPT-NeoX", "gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig",
             "rotary positions on a quarter of the width; query, key and value in one matrix",
             {**BERT_LIKE, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 2}),
    _decoder("OPT", "opt", "OPTForCausalLM", "OPTConfig", "positions from the mask; query scaled before the product",
             {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 40,
              "max_position_embeddings": 64, "word_embed_proj_dim": 32, "pad_token_id": PAD},
             left_batch=left_padded_batch_own_positions),
    Architecture(
        "T5", "t5", "T5ForConditionalGeneration",
        ("T5Config", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 3,
                      "num_decoder_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
                      "relative_attention_max_distance": 12, "pad_token_id": PAD, "decoder_start_token_id": 0}),
        pair_batch, layers=BOTH, special="relative position bias, no scale", sharpness=0.8,
    ),
    Architecture("BART", "bart", "BartForConditionalGeneration", ("BartConfig", BART_LIKE), pair_batch, layers=BOTH,
                 special="encoder-decoder, learned positions", sharpness=1.5),
    Architecture("Marian", "marian", "MarianMTModel", ("MarianConfig", BART_LIKE), pair_batch, layers=BOTH,
                 special="encoder-decoder, sinusoidal positions", sharpness=1.5),
    _vision("ViT", "vit", "ViTForImageClassification", "ViTConfig", "class token", prefix_tokens=1),
    _vision("DeiT", "deit", "DeiTModel", "DeiTConfig", "class and distillation token", prefix_tokens=2),
    _vision("DINOv2", "dinov2", "Dinov2Model", "Dinov2Config",
            "layer scale; positions interpolated to a 6 × 3 grid", prefix_tokens=1, size=(24, 12)),
    _vision("DINOv2 with registers", "dinov2_with_registers", "Dinov2WithRegistersModel",
            "Dinov2WithRegistersConfig", "class token and four registers; positions interpolated to a 3 × 5 grid",
            prefix_tokens=5, size=(12, 20), num_register_tokens=4),
    _vision("CLIP vision", "clip_vision_model", "CLIPVisionModel", "CLIPVisionConfig",
            "one tower of a two-tower model", prefix_tokens=1),
    _vision("SigLIP vision", "siglip_vision_model", "SiglipVisionModel", "SiglipVisionConfig",
            "no class token; its pooling head's own attention is not a layer", prefix_tokens=0),
    _vision("BEiT", "beit", "BeitModel", "BeitConfig", "relative position bias from a table a layer",
            prefix_tokens=1, use_relative_position_bias=True),
    _swin("Swin", "swin", "Swin",
          "windows of 4 × 4 of 9 × 11, then 5 × 6 patches (padded), shifted in every second layer; relative bias"),
    _swin("Swin V2", "swinv2", "Swinv2",
          "windows as Swin's, shifted in the second layer; cosine attention, does not use the attention interface",
          path="fallback", last_shift=0),
    _swin("Donut Swin", "donut-swin", "DonutSwin",
          "windows as Swin's; does not use the attention interface", path="fallback"),
    Architecture(
        "Whisper", "whisper", "WhisperForConditionalGeneration",
        ("WhisperConfig", BART_LIKE | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64,
                                       "bos_token_id": 0, "suppress_tokens": None,
                                       "begin_suppress_tokens": None}),
        sound_batch, layers=BOTH, special="encoder reads a spectrogram", sharpness=1.5,
    ),
    _encoder("DeBERTa-v2", "deberta-v2", "DebertaV2Model", "DebertaV2Config",
             "disentangled positions; does not use the attention interface", path="fallback",
             relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm",
             share_att_key=True, max_relative_positions=-1, position_biased_input=False),
    _decoder("Bloom", "bloom", "BloomForCausalLM", "BloomConfig", "ALiBi; does not use the attention interface",
             {"vocab_size": 99, "hidden_size": 32, "n_layer": 3, "n_head": 4, "pad_token_id": 2, "bos_token_id": 0,
              "eos_token_id": 2}, path="fallback", left_batch=left_padded_batch_own_positions),
    Architecture(
        "Longformer", "longformer", "LongformerForMaskedLM",
        ("LongformerConfig", BERT_LIKE | {"attention_window": [4, 8, 4], "sep_token_id": 2}),
        with_global_tokens(text_batch), layers=ENCODER, path="fallback", banded=True,
        special="kept as a band of ±2, ±4, ±2 tokens and global tokens; does not use the attention interface",
    ),
    Architecture(
        "LED", "led", "LEDForConditionalGeneration",
        ("LEDConfig", {name: value for name, value in BART_LIKE.items() if name != "max_position_embeddings"}
         | {"attention_window": [4, 8, 4], "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64}),
        with_global_tokens(pair_batch), layers=BOTH, path="fallback", banded=True, sharpness=1.5,
        special="encoder kept as a band, as Longformer; does not use the attention interface",
    ),
)  # fmt: skip

BY_NAME: Mapping[str, Architecture] = {architecture.name: architecture for architecture in ARCHITECTURES}


# What the library itself says


def library_run(module: transformers.PreTrainedModel, tensors: dict[str, Tensor], **options: Any) -> Any:
    """The model's own output, no gradient."""
    with torch.no_grad():
        return module(**tensors, **options)


def library_weights(
    architecture: Architecture, module: transformers.PreTrainedModel, tensors: dict[str, Tensor]
) -> dict[Kind, tuple[Tensor, ...]]:
    """The library's own eager ``output_attentions`` by kind: tuples of (B, H, Q, K).

    Swin reports the last layer of each stage alone; its attention modules return all of them, so they are read there,
    and written out over the grid.
    """
    if architecture.windows is not None:
        attention = f"{architecture.model.removesuffix('Model')}Attention"
        found = _weights_that_modules_return(module, attention, tensors)
        cuts = zip(found, architecture.windows, strict=True)
        return {"encoder": tuple(torch.from_numpy(over_the_grid(w.numpy(), *cut)).float() for w, cut in cuts)}
    output = library_run(module, tensors, output_attentions=True)
    if architecture.banded:
        prefix = "encoder_" if len(architecture.layers) > 1 else ""
        output[f"{prefix}attentions"] = _absolute(
            output[f"{prefix}attentions"],
            output[f"{prefix}global_attentions"],
            tensors["global_attention_mask"] * tensors["attention_mask"],
        )
    if len(architecture.layers) == 1:
        return {kind: tuple(output["attentions"]) for kind in architecture.layers}
    return {kind: tuple(output[f"{kind}_attentions"]) for kind in architecture.layers}


def _absolute(
    layers: tuple[Tensor, ...], of_global: tuple[Tensor, ...], chosen: Tensor
) -> tuple[Tensor, ...]:
    """Weights at relative positions as (B, H, N, N)."""
    return tuple(
        torch.stack(
            [
                torch.from_numpy(
                    absolute_positions(band.numpy(), rows.numpy(), is_global.bool().numpy())
                ).float()
                for band, rows, is_global in zip(weights, globals_, chosen, strict=True)
            ]
        )
        for weights, globals_ in zip(layers, of_global, strict=True)
    )


def _weights_that_modules_return(
    module: transformers.PreTrainedModel, class_name: str, tensors: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    handles = [
        child.register_forward_hook(lambda _module, _inputs, output: found.append(output[1]))
        for child in module.modules()
        if type(child).__name__ == class_name
    ]
    library_run(module, tensors, output_attentions=True)
    for handle in handles:
        handle.remove()
    return tuple(found)


def valid_outputs(batch: Batch, output: Any) -> dict[str, Tensor]:
    """A model's tensors (logits, hidden states, pooled vectors) without the positions that hold padding."""
    found = {}
    for name, value in output.items():
        if not isinstance(value, Tensor):
            continue
        of_target = batch.target_valid is not None and not name.startswith("encoder_")
        keep = batch.target_valid if of_target else batch.valid
        per_position = keep is not None and value.ndim == 3 and value.shape[:2] == keep.shape
        found[name] = value[keep] if per_position else value
    return found


def valid_weights(batch: Batch, kind: Kind, weights: Tensor, item: int) -> Tensor:
    """(H, q, k) of one item out of the library's (B, H, Q, K), padding rows and columns cut off."""
    decoder = batch.valid if batch.target_valid is None else batch.target_valid
    rows = batch.valid if kind == "encoder" else decoder
    columns = decoder if kind == "decoder" else batch.valid
    one = weights[item]
    if rows is not None:
        one = one[:, rows[item]]
    return one if columns is None else one[:, :, columns[item]]


def largest_difference(left: Tensor, right: Tensor) -> float:
    """Largest absolute difference, exact zeros and empty tensors included."""
    return float((left - right).abs().max()) if left.numel() else 0.0
