"""The recurrent classifier with attention that ships in ``models/`` → a ``LoadedModel``."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from analysis.hf.families import RECURRENT
from analysis.hf.word_tokenizer import word_tokenizer
from analysis.models import LoadedModel, Source
from attn_core.errors import UnsupportedModelError
from attn_core.models.classifier import AttentionClassifier


def load_recurrent(source: Source, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The classifier of a verified trained part.

    Raises:
        UnsupportedModelError: for half precision, or if the weights do not fit what ``trained.json`` says of them.
    """
    if dtype.itemsize < 4:
        raise UnsupportedModelError(
            f"load_model: {source.title} computes in float32 or float64 but is asked for "
            f"{str(dtype).removeprefix('torch.')}, in which weights do not sum to 1; leave dtype out."
        )
    part = source.part
    assert part is not None
    width, words = int(part.facts["width"]), part.facts["words"]
    with torch.device("meta"):
        module = AttentionClassifier(
            len(words),
            len(part.labels),
            embedding=width,
            hidden=width,
            scoring=part.facts["scoring"],
            attention_width=width,
        )
    tensors = {name: tensor.to(device, dtype) for name, tensor in load_file(part.weights).items()}
    try:
        module.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise UnsupportedModelError(f"load_model: {source.title} is not whole: {error}") from error
    module.eval().requires_grad_(False)
    return LoadedModel(
        name=source.name,
        title=source.title,
        revision=source.revision,
        module=module,
        modality="text",
        family=RECURRENT,
        layers=1,
        decoder_layers=0,
        heads=1,
        kv_heads=1,
        max_tokens=None,
        labels=part.labels,
        task="sequence-classification",
        is_encoder_decoder=False,
        is_causal=False,
        image_size=None,
        patch_size=None,
        prefix_tokens=0,
        flexible_image_size=False,
        processor=word_tokenizer(words),
        attention_inputs=(),
        device=device,
        dtype=dtype,
        seam=True,
        bundled=True,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        notes=(
            "One learned query attends to the states of a BiLSTM; a state holds its sentence, not its word alone.",
            *source.notes,
        ),
        kind="softmax",
        temperature=part.temperature,
    )
