"""Heads: the layer in NumPy, the sum over heads, groups, pooled checkpoints, the cache, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.lab.heads_split import (
    SHARING_HEADER,
    Layer,
    SplitHeads,
    added_sheet,
    cache_sheet,
    divisors,
    from_scratch,
    head_sheet,
    heads_sheet,
    mean_pooled,
    model_layer,
    nearest_divisor,
    pooling_errors,
    random_layer,
    sharing_conclusion,
    sharing_rows,
    sharing_sheet,
    sharings,
    size_in_words,
    split_conclusions,
    split_heads,
)
from analysis.models import load_model
from attn_core import MultiHeadAttention, attention
from tests.lab.pages import needs_models

WORDS = ("the", "cat", "sat", "on", "a", "mat")
TEXT = "The animal didn't cross the street because it was too tired"


def shape() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda sizes: (sizes[0] * sizes[1], sizes[1]))


@settings(max_examples=25)
@given(sizes=shape(), seed=st.integers(0, 99), count=st.integers(1, 6))
def test_a_layer_is_the_sum_of_its_heads(sizes: tuple[int, int], seed: int, count: int) -> None:
    heads, groups = sizes
    layer = random_layer(WORDS[:count], heads=heads, groups=groups, seed=seed)
    view = split_heads(layer)
    assert (view.heads, view.groups, view.query.shape[-1]) == (heads, groups, 8)
    # The layer once more in NumPy, head by head.
    x = layer.hidden.numpy()
    w = {name: tensor.numpy() for name, tensor in layer.module.state_dict().items()}
    output = np.broadcast_to(w["output_projection.bias"], x.shape).copy()
    for head in range(heads):
        own = slice(8 * head, 8 * head + 8)
        group = head // (heads // groups)
        shared = slice(8 * group, 8 * group + 8)
        query = x @ w["query_projection.weight"][own].T
        key = x @ w["key_projection.weight"][shared].T
        value = x @ w["value_projection.weight"][shared].T
        powers = np.exp(query @ key.T / np.sqrt(8))
        weights = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(view.query[head], query, atol=1e-12)
        np.testing.assert_allclose(view.key[view.group_of(head)], key, atol=1e-12)
        np.testing.assert_allclose(view.value[view.group_of(head)], value, atol=1e-12)
        np.testing.assert_allclose(view.weights[head], weights, atol=1e-12)
        np.testing.assert_allclose(view.concat[:, own], weights @ value, atol=1e-12)
        added = weights @ value @ w["output_projection.weight"][:, own].T
        np.testing.assert_allclose(view.added[head], added, atol=1e-12)
        output += added
    np.testing.assert_allclose(view.output, output, atol=1e-12)
    assert view.remade_error < 1e-12
    np.testing.assert_allclose(view.sizes, np.linalg.norm(view.added, axis=2).mean(1))


def test_scores_of_a_random_layer_are_spread_as_is_said() -> None:
    layer = random_layer(tuple(map(str, range(60))), heads=8, groups=8, seed=1)
    view = split_heads(layer)
    scores = np.einsum("hnd,hmd->hnm", view.query, view.key) / np.sqrt(8)
    assert scores.std() == pytest.approx(2, rel=0.1)


@settings(max_examples=15)
@given(sizes=shape(), biased=st.booleans(), seed=st.integers(0, 9))
def test_a_pooled_layer_reads_the_mean_of_its_groups_keys_and_values(
    sizes: tuple[int, int], biased: bool, seed: int
) -> None:
    heads, groups = sizes
    torch.manual_seed(seed)
    module = MultiHeadAttention(heads * 4, heads, bias=biased).double()
    hidden = torch.randn(1, 5, heads * 4, dtype=torch.float64)
    query, key, value = (
        linear(hidden).view(5, heads, 4).transpose(0, 1)[None]
        for linear in (module.query_projection, module.key_projection, module.value_projection)
    )
    key, value = (t.view(1, groups, heads // groups, 5, 4).mean(2) for t in (key, value))
    context = attention(query, key, value).context
    expected = module.output_projection(context[0].transpose(0, 1).flatten(1))
    pooled = mean_pooled(module, groups)
    assert pooled.num_kv_heads == groups
    assert_close(pooled(hidden)[0], expected)
    assert not any(parameter.requires_grad for parameter in pooled.parameters())


def test_pooling_heads_that_are_alike_changes_nothing_and_others_something() -> None:
    layer = random_layer(WORDS, heads=4, groups=4)
    trained = replace(layer, trained=True)
    errors = pooling_errors(trained)
    assert list(errors) == [1, 2, 4]
    assert errors[4] == 0
    assert errors[1] > 0.1
    state = layer.module.state_dict()
    for name in ("key_projection.weight", "value_projection.weight"):
        state[name] = state[name].view(4, 8, 32)[:1].expand(4, 8, 32).reshape(32, 32).clone()
    layer.module.load_state_dict(state)
    assert pooling_errors(trained)[1] == pytest.approx(0, abs=1e-12)
    assert pooling_errors(layer) == {}, "a random layer is not a checkpoint"
    whole, part = split_heads(trained), split_heads(trained, 2)
    assert (whole.groups, part.groups) == (4, 2)
    assert part.error == pytest.approx(
        np.linalg.norm(part.output - whole.output) / np.linalg.norm(whole.output)
    )


@needs_models
def test_a_layer_of_the_bundled_bert_is_the_models_own() -> None:
    model = load_model("minilm")
    bert = from_scratch(model)
    layer = model_layer(model, bert, TEXT, 2)
    view = split_heads(layer)
    assert (view.heads, view.groups, view.weights.shape) == (12, 12, (12, 15, 15))
    assert view.remade_error < 1e-12
    encoded = model.processor(TEXT, return_tensors="pt")
    with torch.no_grad():
        states = model.module(**encoded, output_hidden_states=True).hidden_states
        theirs = model.module.encoder.layer[2].attention.self(states[2])[0][0]
    assert_close(layer.hidden.float(), states[2][0], atol=1e-5, rtol=1e-5)
    assert_close(torch.from_numpy(view.concat).float(), theirs, atol=1e-5, rtol=1e-5)
    assert bert.layers[2].attention.query_projection.weight.dtype == torch.float32, (
        "the model's own is untouched"
    )
    assert view.tokens[0] == "[CLS]"
    errors = pooling_errors(layer)
    assert list(errors) == [1, 2, 3, 4, 6, 12]
    sheet = head_sheet(split_heads(layer, 3), 11)
    assert max(matrix.values.shape[1] for matrix in sheet.matrices) == 64
    concat, output = sheet.matrices[5], sheet.matrices[7]
    assert concat.note == "this head's are 352 to 383; columns 320 to 383 of 384"
    np.testing.assert_array_equal(concat.values, split_heads(layer, 3).concat[:, 320:])
    assert concat.columns[0] == "320"
    assert output.note.endswith("columns 0 to 63 of 384")
    np.testing.assert_array_equal(output.values, split_heads(layer, 3).output[:, :64])
    assert head_sheet(view, 4).matrices[5].note == "this head's are 128 to 159; columns 112 to 175 of 384"
    with pytest.raises(ValueError, match="model_layer: layer must be 0 to 5"):
        model_layer(model, bert, TEXT, 6)


def test_divisors() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert [nearest_divisor(12, wanted) for wanted in (0, 1, 5, 11, 12, 99)] == [1, 1, 4, 6, 12, 12]


def test_sizes_of_caches_and_parameters() -> None:
    whole, grouped, single = sharings(32, 8, head_width=128, layers=32, element_bytes=2)
    assert whole.cache(4096) == 2 * 32 * 128 * 4096 * 32 * 2 == 2 * 2**30
    assert (grouped.cache(4096), single.cache(4096)) == (2**29, 2**26)
    width = 32 * 128
    assert whole.parameters == 32 * 4 * width**2
    assert single.parameters == 32 * (2 * width**2 + 2 * width * 128)
    assert [way.name for way in sharings(4, 4, head_width=8, layers=1, element_bytes=2)] == [
        "multi-head",
        "multi-query",
    ]
    assert [way.name for way in sharings(1, 1, head_width=8, layers=1, element_bytes=2)] == ["multi-head"]
    ways = (whole, grouped, single)
    rows = sharing_rows(ways, 4096)
    assert rows[0] == ("multi-head", "32", "2.00 GiB", "1", "2,147.48 million")
    assert rows[1][2:4] == ("512.00 MiB", "1/4")
    assert all(len(row) == len(SHARING_HEADER) for row in rows)
    curves = cache_sheet(ways, 5000).panels[0].curves
    assert 5000 in curves[0].x
    np.testing.assert_allclose(curves[0].y / curves[1].y, 4)
    np.testing.assert_allclose(curves[0].y / curves[0].x, curves[0].y[0] / curves[0].x[0])


def test_sizes_are_written_with_binary_units() -> None:
    sizes = (0, 1023, 1024, 1536, 2**20, 3 * 2**40, 2**60)
    assert [size_in_words(size) for size in sizes] == [
        "0 bytes", "1,023 bytes", "1.00 KiB", "1.50 KiB", "1.00 MiB", "3.00 TiB", "1,048,576.00 TiB"
    ]  # fmt: skip


# What is said ----------------------------------------------------------------------------------------------------


def taken_apart(weights: np.ndarray, *, groups: int | None = None, **changes: object) -> SplitHeads:
    heads, n = weights.shape[:2]
    vectors, wide = np.zeros((heads, n, 2)), np.zeros((n, heads * 2))
    added = np.zeros((heads, n, heads * 2))
    added[:, :, 0] = 1 + np.arange(heads)[:, None]
    given: dict = {
        "query": vectors, "key": vectors[:groups], "value": vectors[:groups], "weights": weights, "context": vectors,
        "concat": wide, "output": wide, "added": added, "bias": wide[0], "tokens": WORDS[:n], "source": "", **changes,
    }  # fmt: skip
    return SplitHeads(**given)


def test_the_sentence_counts_tokens_with_two_targets() -> None:
    even, left, right = [0.5, 0.5], [0.6, 0.4], [0.4, 0.6]
    view = taken_apart(np.array([[left, left], [right, left]]))
    assert view.two_targets.tolist() == [True, False]
    assert view.places == 1.5
    text = " ".join(split_conclusions(view))
    assert "The 2 heads of a token look hardest at 1.5 different tokens on average." in text
    assert "For 1 of 2 tokens two of them put more than half" in text
    assert "Head 1 adds most to the output and head 0 least, 2.0 times as much." in text
    view = taken_apart(np.array([[even, left], [right, even]]))
    assert "Nowhere do two of them put more than half" in split_conclusions(view)[0]
    alone = split_conclusions(taken_apart(np.array([[left, right]])))
    assert alone == (
        "One head gives a token one row of weights: more than half of it can go to one token alone.",
    )


def test_the_sentence_tells_what_pooling_changes() -> None:
    weights = np.full((2, 2, 2), 0.5)
    told = "Pooling 2 key–value heads to 1 changes the layer's output by 37\N{NO-BREAK SPACE}% before any further"
    assert told in " ".join(split_conclusions(taken_apart(weights, groups=1, error=0.37)))
    assert "Pooling" not in " ".join(split_conclusions(taken_apart(weights, groups=2, error=0.0)))
    assert "Pooling" not in " ".join(split_conclusions(taken_apart(weights, groups=1)))


def test_the_sentence_tells_what_the_cache_takes() -> None:
    text = sharing_conclusion(sharings(32, 8, head_width=128, layers=32, element_bytes=2), 4096)
    assert "multi-head attention keeps 2.00 GiB for 4,096 tokens" in text
    assert (
        "grouped-query attention 512.00 MiB, a quarter of it and multi-query attention 64.00 MiB, 1/32 of it"
        in text
    )
    assert "1,040.19 million parameters fewer, 48\N{NO-BREAK SPACE}% of those of attention." in text
    text = sharing_conclusion(sharings(1, 1, head_width=128, layers=1, element_bytes=1), 1)
    assert text.startswith(
        "With 1 head of width 128, 1 layer, 1 byte a number, multi-head attention keeps 256 bytes"
    )
    assert text.endswith("for 1 token; with one head there is nothing to share.")


def test_sheets_show_the_head_and_what_it_shares() -> None:
    layer = random_layer(WORDS, heads=4, groups=2)
    view = split_heads(layer)
    one = head_sheet(view, 3)
    assert [matrix.name for matrix in one.matrices][:3] == ["Q of head 3", "K 1 (shared)", "V 1 (shared)"]
    assert one.matrices[0].columns == tuple(map(str, range(24, 32)))
    assert one.matrices[1].columns == tuple(map(str, range(8, 16)))
    assert head_sheet(split_heads(random_layer(WORDS, heads=4, groups=4)), 3).matrices[1].name == "K 3"
    every = heads_sheet(view, 3)
    assert every.selected == 3
    assert [matrix.note for matrix in every.matrices] == ["K, V 0"] * 2 + ["K, V 1"] * 2
    assert len(added_sheet(view).panels) == 1
    curve = added_sheet(view, {1: 0.5, 2: 0.25, 4: 0.0}).panels[1]
    assert (curve.mark, curve.curves[0].y.tolist()) == (2.0, [0.5, 0.25, 0.0])
    reads = sharing_sheet(sharings(4, 2, head_width=8, layers=1, element_bytes=2)).matrices
    np.testing.assert_array_equal(reads[1].values, [[1, 0], [1, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(reads[0].values, np.eye(4))


def test_wrong_input_is_told() -> None:
    with pytest.raises(ValueError, match="random_layer: tokens must not be empty"):
        random_layer((), heads=2, groups=1)
    with pytest.raises(ValueError, match="num_kv_heads must divide heads"):
        random_layer(WORDS, heads=4, groups=3)
    layer: Layer = random_layer(WORDS, heads=4, groups=2)
    with pytest.raises(ValueError, match="mean_pooled: groups must divide the layer's 2"):
        mean_pooled(layer.module, 4)
