"""A bundled model's files → the same model in our own code (``attn_core.models``), as a ``LoadedModel``.

Configuration, weights and processor are those of the verified folder. No class of the library computes anything: its
configuration is read for the tokenizer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from analysis.hf.files import WEIGHTS, read_json, read_weights
from analysis.hf.loading import automatic_dtype, dtype_notes, read_config, read_processor
from analysis.hf.memory import check_memory
from analysis.models import LoadedModel, Modality, Progress, Source
from attn_core.errors import UnsupportedModelError
from attn_core.models.bert import Bert, load_bert
from attn_core.models.vit import ViT, load_vit

_LOADERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Tensor]], nn.Module]] = {
    "bert": load_bert,
    "vit": load_vit,
    "deit": load_vit,
    "dinov2": load_vit,
    "dinov2_with_registers": load_vit,
}


def load_from_scratch(
    source: Source, *, device: torch.device, dtype: torch.dtype | None, report: Progress
) -> LoadedModel:
    """The model of a verified folder, frozen and ready.

    Raises:
        UnsupportedModelError: if the model is not written out here, or a tensor has no place in it.
    """
    report("reading configuration", 0.0)
    raw = read_json(source.folder / "config.json")
    family = str(raw.get("model_type"))
    if family not in _LOADERS:
        raise UnsupportedModelError(
            f"load_model: {source.title} must be one of {', '.join(_LOADERS)} to be computed by our own code but is "
            f"{family!r}; choose it from the library."
        )
    weights = read_weights(source.folder)
    target = dtype or automatic_dtype(weights, device)
    check_memory(weights.numbers * target.itemsize, what=source.title, device=device)
    report("loading weights", 0.0)
    tensors = {
        key: tensor.to(device, target if tensor.is_floating_point() else None)
        for key, tensor in load_file(source.folder / WEIGHTS).items()
    }
    module = cast(Bert | ViT, _LOADERS[family](raw, tensors))
    report("preparing", 0.0)
    config, _ = read_config(raw, source)
    modality: Modality = "text" if isinstance(module, Bert) else "image"
    processor, missing = read_processor(source, modality, config)
    report("preparing", 1.0)
    picture = None if isinstance(module, Bert) else module.config
    return LoadedModel(
        name=source.name,
        title=source.title,
        revision=source.revision,
        module=module,
        modality=modality,
        family=family,
        layers=module.config.num_hidden_layers,
        decoder_layers=0,
        heads=module.config.num_attention_heads,
        kv_heads=module.config.num_attention_heads,
        max_tokens=module.config.max_position_embeddings if isinstance(module, Bert) else None,
        labels=None,
        task="none",
        is_encoder_decoder=False,
        is_causal=False,
        image_size=None if picture is None else picture.image_size,
        patch_size=None if picture is None else picture.patch_size[0],
        prefix_tokens=0 if isinstance(module, Bert) else module.prefix_tokens,
        flexible_image_size=picture is not None,
        processor=processor,
        attention_inputs=module.attention_inputs,
        device=device,
        dtype=target,
        seam=True,
        bundled=source.bundled,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        notes=(*source.notes, *missing, *dtype_notes(weights, target)),
    )
