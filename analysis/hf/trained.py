"""A bundled backbone and its trained part → an ordinary classifier of the transformers library."""

from __future__ import annotations

import copy
from dataclasses import fields

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from analysis.predictions import Familiarity
from analysis.trained import TrainedPart
from attn_core.errors import UnsupportedModelError

_CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", "sequence-classification"),
    "dinov2": ("Dinov2ForImageClassification", "image-classification"),
}
"""Class by family, by name: the library imports a model's code when it is asked for."""


@torch.no_grad()
def with_trained_part(backbone: PreTrainedModel, part: TrainedPart) -> tuple[PreTrainedModel, str]:
    """The classifier and its task; the backbone becomes part of it, with W + (alpha / rank) · up · down merged.

    Args:
        backbone: freshly loaded, in the type that the classifier is to have; its weights are written into.
    Raises:
        UnsupportedModelError: if a tensor of the trained part has no place in the classifier, or the wrong shape.
    """
    name, task = _CLASSIFIERS[backbone.config.model_type]
    chosen: type[PreTrainedModel] = getattr(transformers, name)
    config = copy.deepcopy(backbone.config)
    config.id2label = dict(enumerate(part.labels))
    config.label2id = {label: index for index, label in config.id2label.items()}
    config.num_labels = len(part.labels)
    dtype = next(backbone.parameters()).dtype
    with torch.device("meta"):
        model = chosen(config)
    setattr(model, chosen.base_model_prefix, backbone)
    tensors = load_file(part.weights)
    scale = float(part.facts["alpha"]) / float(part.facts["rank"])
    updates = {name.removesuffix(".down") for name in tensors if name.endswith(".down")}
    weights = dict(model.named_parameters())
    for layer in sorted(updates):
        up, down = tensors.pop(f"{layer}.up").float(), tensors.pop(f"{layer}.down").float()
        weight = _place(weights, f"{layer}.weight", (up.shape[0], down.shape[1]), part)
        weight += (scale * (up @ down)).to(weight.dtype)
    state = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for name, tensor in state.items():
        _place(weights, name, tuple(tensor.shape), part)
    model.load_state_dict(state, strict=False, assign=True)
    left = [name for name, weight in model.named_parameters() if weight.is_meta]
    if left:
        raise UnsupportedModelError(f"load_model: the trained part of {part.model.title} lacks {left[0]}.")
    return model, task


def familiarity_of(part: TrainedPart) -> Familiarity | None:
    """Where the training features lie, if the trained part tells."""
    path = part.weights.with_name("familiarity.safetensors")
    if all(file.name != path.name for file in part.model.files):
        return None
    tensors = load_file(path)
    return Familiarity(**{field.name: tensors[field.name].float() for field in fields(Familiarity)})


def _place(
    weights: dict[str, torch.nn.Parameter], name: str, shape: tuple[int, ...], part: TrainedPart
) -> Tensor:
    """The classifier's tensor of that name, if it has this shape."""
    weight = weights.get(name)
    if weight is None or tuple(weight.shape) != shape:
        there = "no such tensor" if weight is None else f"shape {tuple(weight.shape)}"
        raise UnsupportedModelError(
            f"load_model: the trained part of {part.model.title} holds {name} with shape {shape}, but the model has "
            f"{there}; it does not belong to this backbone."
        )
    return weight
