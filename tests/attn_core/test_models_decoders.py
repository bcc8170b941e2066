"""GPT-2 and Llama: equal to the library's, whole or step by step with a cache."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from analysis.hf.attention import capture
from attn_core.errors import UnsupportedModelError
from attn_core.models.common import DecoderOutput
from attn_core.models.gpt import Gpt, GptConfig, load_gpt
from attn_core.models.llama import Llama, LlamaConfig, RotaryScaling, load_llama
from attn_core.positions import rotary
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

GPT = {
    "vocab_size": 60,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 30,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2LMHeadModel", GPT),
    "GPT-2 of one head": ("GPT2LMHeadModel", GPT | {"n_head": 1, "n_layer": 2, "n_inner": 20}),
    "GPT-2 with an output of its own": ("GPT2LMHeadModel", GPT | {"tie_word_embeddings": False}),
    "Llama": ("LlamaForCausalLM", LLAMA),
    "Llama of one key-value head": ("LlamaForCausalLM", LLAMA | {"num_key_value_heads": 1, "num_hidden_layers": 2}),
    "Llama with biases, tied": (
        "LlamaForCausalLM",
        LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "Llama 3": ("LlamaForCausalLM", LLAMA | {"num_attention_heads": 2, "rope_parameters": LLAMA3}),
}  # fmt: skip
SINGLE = 5e-6
"""In float64: the library computes Llama's norms and angles in float32 whatever its weights are, which rounds numbers
near 10 by 6e-7 in each of seven norms."""


def loaded(config: dict[str, Any], tensors: dict[str, Tensor], **options: Any) -> Gpt | Llama:
    load = load_gpt if config["model_type"] == "gpt2" else load_llama
    return load(config, tensors, **options)


def with_places(ours: Gpt | Llama, valid: Tensor) -> dict[str, Tensor]:
    """Positions, for a model that has some."""
    return {"position_ids": counted(valid)} if isinstance(ours, Gpt) else {}


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_decoder_equals_the_librarys(name, left, dtype, tmp_path):
    class_name, options = DECODERS[name]
    double = dtype == torch.float64
    library = library_model(class_name, options, dtype=dtype, implementation="sdpa" if double else "eager")
    ours = loaded(*files_of(library, tmp_path))
    ids, valid = text((11, 6), left=left)
    tensors = {"input_ids": ids, "attention_mask": valid.long(), "position_ids": counted(valid)}
    with torch.no_grad(), recording() as record:
        found = ours(ids, valid, **with_places(ours, valid))
        expected = library(**tensors, output_hidden_states=True, output_attentions=not double)
    attentions = expected.attentions
    if (
        double
    ):  # the library's eager softmax is rounded to float32, and NaN where padding on the left sees nothing
        with torch.no_grad(), capture(library) as trace:
            library(**tensors)
        attentions = [layer.weights() for layer in trace.decoder]
    loose = SINGLE if dtype == torch.float64 and class_name.startswith("Llama") else None
    assert_near(found.logits[valid], expected.logits[valid], dtype, tolerance=loose and 10 * loose)
    last = expected.hidden_states[-1]
    assert_near(found.last_hidden_state[valid], last[valid], dtype, tolerance=loose)
    assert len(record.calls) == len(attentions)
    for call, weights in zip(record.calls, attentions, strict=True):
        rows = call.map.weights().transpose(1, 2)[valid]
        assert_near(rows, weights.transpose(1, 2)[valid], dtype, tolerance=loose)
        assert_near(rows.sum(-1), torch.ones_like(rows[..., 0]), dtype)
    if hasattr(library.config, "num_key_value_heads"):
        assert record.calls[0].map.kv_heads == library.config.num_key_value_heads


@cache
def ready(name: str) -> tuple[Any, Gpt | Llama]:
    """The library's model and ours, of the same numbers, in float64."""
    class_name, options = DECODERS[name]
    library = library_model(class_name, options, dtype=torch.float64, implementation="sdpa")
    with TemporaryDirectory() as folder:
        return library, loaded(*files_of(library, Path(folder)))


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Llama 3"])
@settings(max_examples=12)
@given(cuts=st.sets(st.integers(1, 10)), left=st.booleans())
def test_steps_with_a_cache_equal_one_pass(name, cuts, left):
    _, ours = ready(name)
    ids, valid = text((11, 7), left=left)
    where = with_places(ours, valid)
    with torch.no_grad():
        whole = ours(ids, valid, **where)
        parts: list[DecoderOutput] = []
        for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 11], strict=True):
            places = {name: value[:, first:last] for name, value in where.items()}
            parts.append(
                ours(
                    ids[:, first:last],
                    valid[:, first:last],
                    cache=parts[-1].cache if parts else None,
                    **places,
                )
            )
    found = torch.cat([part.logits for part in parts], dim=1)
    assert_near(found[valid], whole.logits[valid], torch.float64)
    assert parts[-1].cache[0].seen == 11


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_capture_puts_the_steps_together(name):
    _, ours = ready(name)
    ids, _ = text((6,))
    with torch.no_grad(), capture(ours) as whole:
        ours(ids)
    with torch.no_grad(), capture(ours) as steps:
        prompt = cache = ours(ids[:, :3]).cache
        for place in range(3, 6):
            cache = ours(ids[:, place : place + 1], cache=cache).cache
    with torch.no_grad(), capture(ours) as rest:
        ours(ids[:, 3:], cache=prompt)
    for trace, first in ((steps, 0), (rest, 3)):
        assert not trace.encoder
        assert not trace.cross
        for layer, expected in zip(trace.decoder, whole.decoder, strict=True):
            assert_near(layer.weights(), expected.weights()[:, :, first:], torch.float64)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Llama 3"])
def test_greedy_writing_from_a_padded_batch_is_the_librarys(name):
    library, ours = ready(name)
    ids, valid = text((7, 4), left=True)
    expected = library.generate(
        ids, attention_mask=valid.long(), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    written, mask, cache = ids, valid, None
    with torch.no_grad():
        for _ in range(8):
            given = slice(None) if cache is None else slice(-1, None)
            places = {name: value[:, given] for name, value in with_places(ours, mask).items()}
            output = ours(written[:, given], mask[:, given], cache=cache, **places)
            cache = output.cache
            written = torch.cat([written, output.logits[:, -1:].argmax(-1)], dim=1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    assert torch.equal(written, expected)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_an_edited_head_has_the_same_effect(name):
    library, ours = ready(name)
    ids, valid = text((9, 5))
    with torch.no_grad():
        plain = ours(ids, valid).logits
        with first_head_uniform(ours, 4):
            found = ours(ids, valid).logits
        with first_head_uniform(library, 4):
            expected = library(ids, attention_mask=valid.long()).logits
    assert_near(
        found[valid], expected[valid], torch.float64, tolerance=1e-12 if name == "GPT-2" else 10 * SINGLE
    )
    assert float((found - plain)[valid].abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_the_names_of_attention_inputs_are_norms(name):
    _, ours = ready(name)
    assert [ours.get_submodule(each) for each in ours.attention_inputs] == [
        block.attention_norm for block in ours.layers
    ]


def test_gpt_files_with_written_out_masks_and_without_a_prefix_load(tmp_path):
    config, tensors = files_of(library_model("GPT2LMHeadModel", GPT), tmp_path)
    ids, _ = text((6,))
    expected = load_gpt(config, tensors)(ids).logits
    old = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    for layer in range(3):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 32, 32).tril().bool()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = old["wte.weight"]
    assert torch.equal(load_gpt(config, old)(ids).logits, expected)
    assert load_gpt(config, old, head=False)(ids).logits is None
    with pytest.raises(UnsupportedModelError, match=r"unknown keys h\.3\.attn\.bias"):
        load_gpt(config, {**old, "h.3.attn.bias": torch.ones(1)})
    with pytest.raises(UnsupportedModelError, match=r"h\.0\.attn\.c_attn\.weight must divide into 3 parts"):
        load_gpt(config, {**old, "h.0.attn.c_attn.weight": torch.ones(24, 71)})


def test_llama_files_with_frequencies_and_an_untied_head_load(tmp_path):
    config, tensors = files_of(library_model("LlamaForCausalLM", LLAMA), tmp_path)
    ids, _ = text((6,))
    old = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    assert torch.equal(load_llama(config, old)(ids).logits, load_llama(config, tensors)(ids).logits)
    assert load_llama(config, tensors, head=False)(ids).logits is None
    del old["lm_head.weight"]
    with pytest.raises(UnsupportedModelError, match=r"no tensor for lm_head\.weight"):
        load_llama(config, old)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt_neo"),
        ("activation_function", "mish"),
        ("add_cross_attention", True),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("pruned_heads", {"0": [1]}),
    ],
)
def test_a_gpt_that_is_not_written_out_is_refused_by_its_field(field, value):
    with pytest.raises(UnsupportedModelError, match=rf"GptConfig\.from_dict: {field} must be .* but is"):
        GptConfig.from_dict({"model_type": "gpt2", field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "mistral"),
        ("hidden_act", "gelu"),
        ("head_dim", 5),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "llama3", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_a_llama_that_is_not_written_out_is_refused_by_its_field(field, value):
    with pytest.raises(
        UnsupportedModelError, match=rf"LlamaConfig\.from_dict: {field} must be .* but (is|are)"
    ):
        LlamaConfig.from_dict({"model_type": "llama", **LLAMA, field: value})


def test_older_files_name_the_rotary_settings_otherwise():
    older = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    for kind in ("rope_type", "type"):
        older = {kind: "llama3", **{key: value for key, value in older.items() if not key.endswith("type")}}
        found = LlamaConfig.from_dict({**LLAMA, "rope_theta": 500.0, "rope_scaling": older})
        assert found == LlamaConfig.from_dict({**LLAMA, "rope_parameters": LLAMA3})
    assert LlamaConfig.from_dict({**LLAMA, "rope_scaling": None}).rope_theta == 10000.0


def test_slow_channels_are_scaled_fast_ones_kept_and_those_between_blended():
    scaling = RotaryScaling(8.0, 1.0, 4.0, 32)
    turns = torch.tensor([6.0, 4.0, 2.5, 1.0, 0.5], dtype=torch.float64)  # within the original context
    frequencies = turns * 2 * math.pi / 32
    shares = scaling.scaled(frequencies) / frequencies
    assert_near(
        shares, torch.tensor([1, 1, (1 + 1 / 8) / 2, 1 / 8, 1 / 8], dtype=torch.float64), torch.float64
    )


def test_rotary_takes_frequencies_of_its_own():
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    plain = 10000.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    for interleaved in (False, True):
        found = rotary(x, torch.arange(5), frequencies=plain, interleaved=interleaved)
        assert_near(found, rotary(x, torch.arange(5), interleaved=interleaved), torch.float64)
    with pytest.raises(ValueError, match=r"frequencies must be \(3,\) for x of width 6 but are \(2,\)"):
        rotary(x, torch.arange(5), frequencies=plain[:2])


def test_what_a_config_leaves_out_has_the_librarys_default():
    import transformers

    for own, library in ((GptConfig, transformers.GPT2Config()), (LlamaConfig, transformers.LlamaConfig())):
        found = own.from_dict({})
        for field in set(type(found).__dataclass_fields__) - {
            "num_key_value_heads",
            "rope_theta",
            "rope_scaling",
        }:
            assert getattr(found, field) == getattr(library, field), field
    assert library.rope_parameters == {"rope_theta": found.rope_theta, "rope_type": "default"}


def test_bad_input_is_told():
    _, gpt = ready("GPT-2")
    with pytest.raises(ValueError, match="Gpt: input_ids must have 2 axes"):
        gpt(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="must end within 32 positions but end at 33"):
        gpt(torch.ones(1, 3, dtype=torch.long), cache=gpt(torch.ones(1, 30, dtype=torch.long)).cache)
    _, llama = ready("Llama")
    with pytest.raises(ValueError, match=r"Llama: attention_mask must be \(1, 2\)"):
        llama(torch.tensor([[1, 2]]), torch.ones(2, 2))
