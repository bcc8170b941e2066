"""BERT and the vision transformers: equal to the library's, from its own files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_core.errors import UnsupportedModelError
from attn_core.models.bert import Bert, BertConfig, load_bert
from attn_core.models.vit import ViT, ViTConfig, load_vit
from attn_core.seam import recording
from tests.attn_core.checkpoints import (
    DTYPES,
    assert_near,
    counted,
    files_of,
    first_head_uniform,
    library_model,
    text,
)

BERT = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 30,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
}
BERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "three layers of four heads": ("BertModel", BERT),
    "one head": ("BertModel", BERT | {"num_attention_heads": 1, "num_hidden_layers": 2}),
    "classification": ("BertForSequenceClassification", BERT | {"num_labels": 3}),
    "masked words": ("BertForMaskedLM", BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6}),
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 30,
    "image_size": 12,
    "patch_size": 4,
}
VITS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "ViT": ("ViTModel", VIT, (12, 12)),
    "ViT on another size": ("ViTForImageClassification", VIT | {"num_labels": 3}, (16, 9)),
    "ViT of pictures that are not square": ("ViTModel", VIT | {"image_size": (12, 20)}, (12, 20)),
    "DeiT": ("DeiTForImageClassification", VIT, (12, 12)),
    "DeiT with teacher on another size": ("DeiTForImageClassificationWithTeacher", VIT, (8, 20)),
    "DINOv2": ("Dinov2Model", VIT | {"num_attention_heads": 1, "num_hidden_layers": 2}, (12, 12)),
    "DINOv2 on another size": ("Dinov2ForImageClassification", VIT | {"mlp_ratio": 2}, (21, 13)),
    "DINOv2 with SwiGLU": ("Dinov2Model", VIT | {"use_swiglu_ffn": True, "use_mask_token": False}, (20, 12)),
    "registers": ("Dinov2WithRegistersForImageClassification", VIT | {"num_register_tokens": 3}, (16, 24)),
    "registers and SwiGLU": ("Dinov2WithRegistersModel", VIT | {"use_swiglu_ffn": True, "hidden_size": 20}, (12, 12)),
}  # fmt: skip


def picture(size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, 3, *size, generator=generator, dtype=torch.float64).to(dtype)


def resized(module: Any, size: tuple[int, int]) -> dict[str, bool]:
    """The library's keyword for a picture of another size, where it needs one."""
    other = size != tuple(module.config.image_size) if isinstance(module.config.image_size, tuple) else (
        size != (module.config.image_size,) * 2
    )  # fmt: skip
    needs = module.config.model_type in ("vit", "deit")
    return {"interpolate_pos_encoding": True} if other and needs else {}


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", BERTS)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_bert_equals_the_librarys(name, left, dtype, tmp_path):
    class_name, options = BERTS[name]
    library = library_model(class_name, options, dtype=dtype)
    ours = load_bert(*files_of(library, tmp_path))
    ids, valid = text((9, 6), left=left)
    given = {
        "input_ids": ids,
        "attention_mask": valid.long(),
        "token_type_ids": (torch.arange(9) > 4).long().expand(2, -1),
        "position_ids": counted(valid),
    }
    with torch.no_grad(), recording() as record:
        found = ours(**given, output_hidden_states=True)
        expected = library(**given, output_attentions=True, output_hidden_states=True)
    for state, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_near(state[valid], other[valid], dtype)
    assert torch.equal(found.last_hidden_state, found.hidden_states[-1])
    if "logits" in expected:
        same = valid if expected.logits.ndim == 3 else ...
        assert_near(found.logits[same], expected.logits[same], dtype)
    if "pooler_output" in expected:
        assert found.logits is None
        at_first = valid[:, 0]  # padding on the left stands where the pooler reads
        assert_near(found.pooler_output[at_first], expected.pooler_output[at_first], dtype)
    assert len(record.calls) == len(expected.attentions)
    for call, weights in zip(record.calls, expected.attentions, strict=True):
        own = call.map.weights()
        rows = own.transpose(1, 2)[valid]
        assert_near(rows, weights.transpose(1, 2)[valid], dtype)
        assert_near(rows.sum(-1), torch.ones_like(rows[..., 0]), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", VITS)
def test_vit_equals_the_librarys(name, dtype, tmp_path):
    class_name, options, size = VITS[name]
    library = library_model(class_name, options, dtype=dtype, implementation="sdpa")
    ours = load_vit(*files_of(library, tmp_path))
    pixels, keyword = picture(size, dtype), resized(library, size)
    with torch.no_grad(), recording() as record:
        found = ours(pixels, output_hidden_states=True)
        expected = library(pixels, output_hidden_states=True, **keyword)
        library.set_attn_implementation("eager")
        attentions = library(pixels, output_attentions=True, **keyword).attentions
    for state, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_near(state, other, dtype)
    for field in ("last_hidden_state", "pooler_output", "logits"):
        if field in expected:
            assert_near(getattr(found, field), expected[field], dtype)
    rounded = 1e-6 if library.config.model_type in ("vit", "deit") else None  # their eager softmax is float32
    for call, weights in zip(record.calls, attentions, strict=True):
        own = call.map.weights()
        assert_near(own, weights, dtype, tolerance=rounded if dtype == torch.float64 else None)
        assert_near(own.sum(-1), torch.ones_like(own[..., 0]), dtype)
    rows, columns = (side // 4 for side in size)
    assert found.last_hidden_state.shape[1] == ours.prefix_tokens + rows * columns


def test_an_edited_head_has_the_same_effect(tmp_path):
    ids, valid = text((8, 5))
    for class_name, options, load, given in (
        ("BertModel", BERT, load_bert, {"input_ids": ids, "attention_mask": valid.long()}),
        ("Dinov2Model", VIT, load_vit, {"pixel_values": picture((16, 12), torch.float32)}),
    ):
        library = library_model(class_name, options)
        ours = load(*files_of(library, tmp_path / class_name))
        with torch.no_grad():
            plain = ours(**given).last_hidden_state
            with first_head_uniform(ours, 4):
                found = ours(**given).last_hidden_state
            with first_head_uniform(library, 4):
                expected = library(**given).last_hidden_state
        keep = valid if "input_ids" in given else ...
        assert_near(found[keep], expected[keep], torch.float32)
        assert float((found - plain).abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["BertModel", "ViTModel"])
def test_names_of_attention_inputs_are_modules_that_give_it_out(name, tmp_path):
    bert = name == "BertModel"
    ours: Any = (load_bert if bert else load_vit)(
        *files_of(library_model(name, BERT if bert else VIT), tmp_path)
    )
    given_out: dict[str, Tensor] = {}
    entered: list[Tensor] = []
    for place in ours.attention_inputs:
        ours.get_submodule(place).register_forward_hook(
            lambda _, __, output, place=place: given_out.__setitem__(place, output)
        )
    for block in ours.layers:
        block.attention.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
    with torch.no_grad():
        ours(text((7,))[0] if bert else picture((12, 12), torch.float32))
    assert len(entered) == 3
    for place, tensor in zip(ours.attention_inputs, entered, strict=True):
        assert given_out[place] is tensor


def test_heads_and_backbones_load_from_one_another(tmp_path):
    config, tensors = files_of(library_model("BertForSequenceClassification", BERT), tmp_path / "bert")
    ids, _ = text((7,))
    whole, headless = load_bert(config, tensors), load_bert(config, tensors, head="none")
    bare = {key.removeprefix("bert."): tensor for key, tensor in tensors.items()}
    assert headless.classifier is None
    for other in (headless, load_bert(config, bare)):
        assert torch.equal(other(ids).last_hidden_state, whole(ids).last_hidden_state)
    with pytest.raises(UnsupportedModelError, match=r"no tensor for cls\.predictions\.bias"):
        load_bert(config, tensors, head="masked-lm")
    config, tensors = files_of(library_model("DeiTForImageClassificationWithTeacher", VIT), tmp_path / "deit")
    pixels = picture((12, 12), torch.float32)
    headless_vit = load_vit(config, tensors, head="none")
    assert headless_vit(pixels).logits is None
    assert torch.equal(
        headless_vit(pixels).last_hidden_state, load_vit(config, tensors)(pixels).last_hidden_state
    )


def test_old_names_and_copies_of_berts_files_are_known(tmp_path):
    config, tensors = files_of(library_model("BertForMaskedLM", BERT), tmp_path)
    expected = load_bert(config, tensors)(text((7,))[0]).logits
    words = tensors["bert.embeddings.word_embeddings.weight"]
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for key, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    old["cls.predictions.decoder.weight"] = words.clone()
    old["cls.seq_relationship.weight"], old["cls.seq_relationship.bias"] = torch.ones(2, 24), torch.ones(2)
    assert torch.equal(load_bert(config, old)(text((7,))[0]).logits, expected)
    old["cls.predictions.decoder.weight"][3, 2] += 1
    with pytest.raises(
        UnsupportedModelError, match=r"numbers of cls\.predictions\.decoder\.weight must be those of"
    ):
        load_bert(config, old)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "mish"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("tie_word_embeddings", False),
    ],
)
def test_a_bert_that_is_not_written_out_is_refused_by_its_field(field, value):
    with pytest.raises(UnsupportedModelError, match=rf"BertConfig\.from_dict: {field} must be .* but is"):
        BertConfig.from_dict({"model_type": "bert", field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "beit"),
        ("hidden_act", "mish"),
        ("qkv_bias", False),
        ("pooler_act", "relu"),
        ("pooler_output_size", 5),
    ],
)
def test_a_vit_that_is_not_written_out_is_refused_by_its_field(field, value):
    with pytest.raises(UnsupportedModelError, match=rf"ViTConfig\.from_dict: {field} must be .* but is"):
        ViTConfig.from_dict({"model_type": "vit", field: value})


def test_what_a_config_leaves_out_has_the_librarys_default():
    import transformers

    for own, names in (
        (BertConfig, {"bert": "BertConfig"}),
        (ViTConfig, {"vit": "ViTConfig", "deit": "DeiTConfig", "dinov2": "Dinov2Config",
                     "dinov2_with_registers": "Dinov2WithRegistersConfig"}),
    ):  # fmt: skip
        for family, name in names.items():
            library = getattr(transformers, name)()
            found = own.from_dict({"model_type": family})
            for field in type(found).__dataclass_fields__:
                expected = getattr(library, field, None)
                pair = (expected,) * 2 if field in ("image_size", "patch_size") else expected
                assert expected is None or getattr(found, field) == pair, (name, field)


def test_bad_input_is_told(tmp_path):
    ours = load_bert(*files_of(library_model("BertModel", BERT), tmp_path / "bert"))
    with pytest.raises(ValueError, match="input_ids must have 2 axes"):
        ours(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"attention_mask must be \(1, 2\) but is \(1, 3\)"):
        ours(torch.tensor([[1, 2]]), torch.ones(1, 3))
    with pytest.raises(ValueError, match="must end within 20 positions but end at 21"):
        ours(torch.ones(1, 21, dtype=torch.long))
    with pytest.raises(ValueError, match="head must be none"):
        Bert(BertConfig(num_hidden_layers=0), head="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pooler must be True"):
        Bert(BertConfig(num_hidden_layers=0), head="sequence-classification", pooler=False)
    uneven = load_vit(*files_of(library_model("ViTModel", VIT | {"image_size": (12, 20)}), tmp_path / "vit"))
    with pytest.raises(
        ValueError, match=r"must give 3 × 5 patches since the table of positions is not square"
    ):
        uneven(picture((12, 12), torch.float32))
    with pytest.raises(ValueError, match="pixel_values must have 4 axes"):
        uneven(torch.zeros(3, 12, 20))
    with pytest.raises(ValueError, match="head must be none, image-classification for vit"):
        ViT(ViTConfig(num_hidden_layers=0), head="with-teacher")
