"""Strict loading: what does not fit to the last key is refused by name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attn_core.errors import UnsupportedModelError
from attn_core.models.bert import BertConfig, load_bert
from attn_core.models.weights import Piece, load_strictly, per_layer, without_prefix

CONFIG = {
    "model_type": "bert", "vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 10, "max_position_embeddings": 6,
}  # fmt: skip


def checkpoint() -> dict[str, Tensor]:
    """A whole BERT, under the keys of its files."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (12, 8),
        "embeddings.position_embeddings.weight": (6, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        "embeddings.LayerNorm.weight": (8,),
        "embeddings.LayerNorm.bias": (8,),
        "pooler.dense.weight": (8, 8),
        "pooler.dense.bias": (8,),
    }
    for layer in range(2):
        for name, size in (
            ("attention.self.query", (8, 8)),
            ("attention.self.key", (8, 8)),
            ("attention.self.value", (8, 8)),
            ("attention.output.dense", (8, 8)),
            ("attention.output.LayerNorm", (8,)),
            ("intermediate.dense", (10, 8)),
            ("output.dense", (8, 10)),
            ("output.LayerNorm", (8,)),
        ):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = size
            shapes[f"encoder.layer.{layer}.{name}.bias"] = size[:1]
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


KEYS = sorted(key for key in checkpoint() if "pooler" not in key)


def test_the_numbers_of_a_file_are_those_of_the_model():
    tensors = checkpoint()
    model = load_bert(CONFIG, tensors)
    state = model.state_dict()
    assert len(state) == len(tensors)
    assert sum(tensor.double().sum() for tensor in state.values()) == pytest.approx(
        float(sum(tensor.double().sum() for tensor in tensors.values()))
    )
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in model.parameters())
    assert not model.training
    assert model.embeddings.words.weight.data_ptr() == tensors["embeddings.word_embeddings.weight"].data_ptr()


@settings(max_examples=15)
@given(key=st.sampled_from(KEYS), prefix=st.sampled_from(["", "bert."]))
def test_a_missing_a_renamed_and_a_misshaped_tensor_are_named(key, prefix):
    tensors = {prefix + name: tensor for name, tensor in checkpoint().items()}
    lacking = {name: tensor for name, tensor in tensors.items() if name != prefix + key}
    with pytest.raises(UnsupportedModelError, match=f"has no tensor for {key}"):
        load_bert(CONFIG, lacking)
    with pytest.raises(UnsupportedModelError, match=f"has unknown keys {key}.extra"):
        load_bert(CONFIG, {**tensors, f"{prefix}{key}.extra": torch.ones(1)})
    longer = torch.ones(13, *tensors[prefix + key].shape[1:])
    with pytest.raises(UnsupportedModelError, match=rf"other shapes than the config tells of: {key} \(13"):
        load_bert(CONFIG, {**tensors, prefix + key: longer})


def test_several_faults_are_counted():
    tensors = {key: tensor for key, tensor in checkpoint().items() if "encoder.layer.1" not in key}
    with pytest.raises(UnsupportedModelError, match=r"encoder\.layer\.1\.attention.* and 12 more; take"):
        load_bert(CONFIG, tensors)


def test_a_key_that_comes_twice_is_refused():
    tensors = checkpoint()
    with pytest.raises(
        UnsupportedModelError, match=r"come once but bert\.embeddings\.LayerNorm\.bias come also without"
    ):
        load_bert(CONFIG, tensors | {"bert.embeddings.LayerNorm.bias": torch.ones(8)})
    assert without_prefix({"a.b": torch.ones(1), "c": torch.ones(1)}, "a.").keys() == {"b", "c"}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(2))


@given(transposed=st.booleans())
def test_pieces_of_a_stored_tensor_find_their_places(transposed):
    stored = torch.arange(12.0).view(4, 3)
    table = {
        f"layers.{index}.{part}": Piece(f"all.{part}", index, 2, transposed=transposed)
        for index in range(2)
        for part in ("weight", "bias")
    }
    model = Two()
    tensors = {"all.weight": stored.mT if transposed else stored, "all.bias": torch.arange(4.0)}
    load_strictly(model, tensors, table)
    assert torch.equal(torch.cat([layer.weight for layer in model.layers]), stored)
    assert torch.equal(torch.cat([layer.bias for layer in model.layers]), torch.arange(4.0))


def test_beside_what_is_made_from_a_formula_is_compared():
    table = per_layer(2, "layers.{}.", "h.{}.", {"weight": "weight", "bias": "bias"})
    tensors = {key: torch.ones(2, 3) if key.endswith("weight") else torch.ones(2) for key in table.values()}
    line = torch.linspace(0, 1, 5, dtype=torch.float64)
    load_strictly(Two(), {**tensors, "line": line.half(), "unused": torch.ones(9)}, table,
                  beside={"line": line, "unused": None, "absent": None})  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="numbers of line must be what the formula gives"):
        load_strictly(Two(), {**tensors, "line": line.half() + 0.01}, table, beside={"line": line})
    with pytest.raises(UnsupportedModelError, match=r"numbers of copy must be those of h\.0\.bias"):
        load_strictly(Two(), {**tensors, "copy": torch.zeros(2)}, table, beside={"copy": "h.0.bias"})


def test_a_config_counts_its_labels():
    assert BertConfig.from_dict({"id2label": {"0": "a", "1": "b", "2": "c"}}).num_labels == 3
    assert BertConfig.from_dict({"num_labels": 5}).num_labels == 5
    assert BertConfig.from_dict({}).num_labels == 2
