"""The transformer of Vaswani et al. 2017, held to the library's Marian."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.hf.attention import capture
from attn_core.errors import UnsupportedModelError
from attn_core.models.transformer import (
    Transformer,
    TransformerConfig,
    load_transformer,
    position_table,
)
from attn_core.seam import recording
from tests.attn_core.checkpoints import DTYPES, assert_near, files_of, first_head_uniform, library_model, text

MARIAN = {
    "vocab_size": 60,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 30,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "as the paper": MARIAN | {"activation_function": "relu", "scale_embedding": True},
    "as Marian": MARIAN
    | {"activation_function": "swish", "scale_embedding": True, "encoder_attention_heads": 2},
    "one head": MARIAN | {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "encoder_layers": 1},
}


def biased(library: Any) -> Any:
    """With a bias of the logits that is not zero."""
    with torch.no_grad():
        library.final_logits_bias.copy_(torch.linspace(-1, 1, library.final_logits_bias.shape[1])[None])
    return library


@cache
def ready(name: str, dtype: torch.dtype) -> tuple[Any, Transformer]:
    """The library's model and ours, of the same numbers."""
    library = biased(library_model("MarianMTModel", MODELS[name], dtype=dtype, sharpness=1.5))
    with TemporaryDirectory() as folder:
        return library, load_transformer(*files_of(library, Path(folder)))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [((9, 5), (6, 4)), ((5, 7), (7, 3))], ids=["longer source", "as long"])
def test_it_equals_the_librarys(name, lengths, dtype):
    library, ours = ready(name, dtype)
    source, source_valid = text(lengths[0])
    target, target_valid = text(lengths[1], seed=8)
    tensors = {
        "input_ids": source,
        "attention_mask": source_valid.long(),
        "decoder_input_ids": target,
        "decoder_attention_mask": target_valid.long(),
    }
    with torch.no_grad(), recording() as record:
        found = ours(**tensors)
        expected = library(**tensors, output_attentions=True, output_hidden_states=True)
    assert_near(found.logits[target_valid], expected.logits[target_valid], dtype)
    assert_near(
        found.last_hidden_state[target_valid], expected.decoder_hidden_states[-1][target_valid], dtype
    )
    states = expected.encoder_last_hidden_state
    assert_near(found.encoder_last_hidden_state[source_valid], states[source_valid], dtype)
    by_module = {id(module): name for name, module in ours.named_modules()}
    weights = {
        "encoder": (expected.encoder_attentions, source_valid),
        "decoder": (expected.decoder_attentions, target_valid),
        "cross": (expected.cross_attentions, target_valid),
    }
    seen = dict.fromkeys(weights, 0)
    for call in record.calls:
        called = by_module[id(call.module)]
        kind = "cross" if "cross" in called else called.split(".")[0]
        layers, valid = weights[kind]
        rows = call.map.weights().transpose(1, 2)[valid]
        assert_near(rows, layers[seen[kind]].transpose(1, 2)[valid], dtype)
        assert_near(rows.sum(-1), torch.ones_like(rows[..., 0]), dtype)
        seen[kind] += 1
    assert seen == {kind: len(layers) for kind, (layers, _) in weights.items()}


def test_kinds_of_attention_are_told_apart_also_where_source_and_target_are_as_long():
    _, ours = ready("as the paper", torch.float64)
    source, target = text((6,))[0], text((6,), seed=8)[0]
    with torch.no_grad(), recording() as record:
        ours(source, decoder_input_ids=target)
    with torch.no_grad(), capture(ours) as trace:
        ours(source, decoder_input_ids=target)
    assert [len(layers) for layers in (trace.encoder, trace.decoder, trace.cross)] == [3, 2, 2]
    expected = [call.map.weights() for call in record.calls]
    crossed = [expected[4], expected[6]]  # three of the encoder, then self and cross in each layer
    for layer, weights in zip(trace.cross, crossed, strict=True):
        assert torch.equal(layer.weights(), weights)


@settings(max_examples=12)
@given(cuts=st.sets(st.integers(1, 7)))
def test_steps_with_a_cache_equal_one_pass(cuts):
    _, ours = ready("as the paper", torch.float64)
    source, source_valid = text((7, 4))
    target, _ = text((8, 8), seed=8)
    with torch.no_grad():
        whole = ours(source, source_valid, target).logits
        _, cache = ours.encode(source, source_valid)
        parts = []
        for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 8], strict=True):
            output = ours.decode(target[:, first:last], cache)
            cache = output.cache
            parts.append(output.logits)
    assert_near(torch.cat(parts, dim=1), whole, torch.float64)


def test_a_cache_can_go_on_from_other_items():
    _, ours = ready("as the paper", torch.float64)
    source, source_valid = text((7, 4))
    target, order = torch.tensor([[1, 9], [1, 12]]), torch.tensor([1, 0, 1])
    with torch.no_grad():
        _, cache = ours.encode(source, source_valid)
        after = ours.decode(target, cache).cache.items(order)
        found = ours.decode(torch.tensor([[5], [6], [7]]), after).logits
        following = torch.cat([target[order], torch.tensor([[5], [6], [7]])], dim=1)
        expected = ours(source[order], source_valid[order], following).logits[:, -1:]
    assert_near(found, expected, torch.float64)


def test_greedy_writing_is_the_librarys():
    library, ours = ready("as Marian", torch.float64)
    source, source_valid = text((7, 4))
    expected = library.generate(
        source,
        attention_mask=source_valid.long(),
        max_new_tokens=6,
        do_sample=False,
        num_beams=1,
        eos_token_id=None,
    )
    with torch.no_grad():
        _, cache = ours.encode(source, source_valid)
        written = torch.ones(2, 1, dtype=torch.long)
        for _ in range(6):
            output = ours.decode(written[:, -1:], cache)
            cache = output.cache
            written = torch.cat([written, output.logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(written, expected)


def test_an_edited_head_has_the_same_effect():
    library, ours = ready("as the paper", torch.float64)
    source, target = text((7, 7))[0], text((5, 5), seed=8)[0]
    with torch.no_grad():
        plain = ours(source, decoder_input_ids=target).logits
        with first_head_uniform(ours, 4):
            found = ours(source, decoder_input_ids=target).logits
        with first_head_uniform(library, 4):
            expected = library(source, decoder_input_ids=target).logits
    assert_near(found, expected, torch.float64)
    assert float((found - plain).abs().max()) > 1e-2


def test_positions_are_the_papers_with_all_sines_first():
    found = position_table(torch.arange(40), 12).numpy()
    for position in (0, 1, 39):
        for pair in range(6):
            angle = position / 10000 ** (2 * pair / 12)  # Vaswani et al. 2017, section 3.5
            assert found[position, pair] == np.float32(math.sin(angle))
            assert found[position, 6 + pair] == np.float32(math.cos(angle))


def test_files_of_every_age_load_and_learned_positions_are_refused(tmp_path):
    library = biased(library_model("MarianMTModel", MARIAN))
    config, tensors = files_of(library, tmp_path)
    source, target = text((7,))[0], text((5,), seed=8)[0]
    expected = load_transformer(config, tensors)(source, decoder_input_ids=target).logits
    old = {**tensors, **{f"model.{side}.embed_positions.weight": position_table(torch.arange(32), 24)
                         for side in ("encoder", "decoder")}}  # fmt: skip
    old |= {
        f"model.{side}.embed_tokens.weight": tensors["model.shared.weight"] for side in ("encoder", "decoder")
    }
    old["lm_head.weight"] = tensors["model.shared.weight"]
    assert torch.equal(load_transformer(config, old)(source, decoder_input_ids=target).logits, expected)
    half = {key: tensor.half() for key, tensor in old.items()}
    assert load_transformer(config, half).words.weight.dtype == torch.float16
    bare = {key.removeprefix("model."): value for key, value in tensors.items() if key != "final_logits_bias"}
    without = load_transformer(config, bare)(source, decoder_input_ids=target).logits
    assert_near(without + library.final_logits_bias, expected, torch.float32)
    old["model.encoder.embed_positions.weight"] = torch.randn(32, 24)
    with pytest.raises(
        UnsupportedModelError, match=r"numbers of encoder\.embed_positions\.weight must be what the formula"
    ):
        load_transformer(config, old)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "bart"),
        ("activation_function", "mish"),
        ("share_encoder_decoder_embeddings", False),
        ("tie_word_embeddings", False),
        ("decoder_vocab_size", 7),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", False),
    ],
)
def test_what_is_not_written_out_is_refused_by_its_field(field, value):
    with pytest.raises(
        UnsupportedModelError, match=rf"TransformerConfig\.from_dict: {field} must be .* but is"
    ):
        TransformerConfig.from_dict({"model_type": "marian", field: value})


def test_what_a_config_leaves_out_has_the_librarys_default():
    import transformers

    found, library = TransformerConfig.from_dict({}), transformers.MarianConfig()
    for field in TransformerConfig.__dataclass_fields__:
        assert getattr(found, field) == getattr(library, field), field


def test_bad_input_is_told():
    _, ours = ready("one head", torch.float64)
    with pytest.raises(ValueError, match="Transformer: input_ids must have 2 axes"):
        ours(torch.tensor([1]))
    with pytest.raises(ValueError, match=r"attention_mask must be \(1, 2\)"):
        ours(torch.tensor([[5, 6]]), torch.ones(1, 3))
    with pytest.raises(ValueError, match="decoder_input_ids must have 2 axes"):
        ours(torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([1]))
    start = ours(torch.tensor([[5, 6]])).logits
    assert_near(
        start, ours(torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[1]])).logits, torch.float64
    )
