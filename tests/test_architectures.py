"""Every architecture of the table, proved on a tiny random model: the captured attention is the model's own."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch.testing import assert_close

from analysis.hf.attention import capture
from attn_core import WindowedMap
from scripts.architecture_table import TARGET, fixed_cells
from tests.capture_helpers import (
    assert_same_state,
    captured,
    item_maps,
    maps_by_kind,
    measure,
    state_of,
)
from tests.oracles.windows import windows_of
from tests.tiny_models import ARCHITECTURES, BY_NAME, Architecture, library_run, library_weights

TOLERANCE = 1e-5
SAME_NUMBERS = 5e-6
"""For two ways to the same weight: scores near 20 in float32 differ by up to 2e-6 with the shape of the product."""

every_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=[architecture.name for architecture in ARCHITECTURES]
)
left_padded = pytest.mark.parametrize(
    "architecture",
    [architecture for architecture in ARCHITECTURES if architecture.left_batch is not None],
    ids=lambda architecture: architecture.name,
)

REQUIRED = {
    "BERT", "RoBERTa", "DistilBERT", "ALBERT", "ELECTRA", "ModernBERT", "GPT-2", "Llama", "Mistral", "Gemma 2",
    "Qwen 3", "GPT-NeoX", "OPT", "T5", "BART", "Marian", "ViT", "DeiT", "DINOv2", "DINOv2 with registers",
    "CLIP vision", "SigLIP vision", "BEiT", "Swin", "Swin V2", "Donut Swin", "Whisper", "DeBERTa-v2", "Bloom",
    "Longformer", "LED",
}  # fmt: skip


def test_the_table_in_docs_is_this_list() -> None:
    """Every cell but the measured figures, and the figures are within what the tests demand."""
    lines = TARGET.read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| ---")) + 1
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[start:] if line]
    assert [cells[:-2] for cells in rows] == [fixed_cells(architecture) for architecture in ARCHITECTURES], (
        "docs/architectures.md is not the tests' list; run python -m scripts.architecture_table"
    )
    assert all(0.0 <= float(figure) <= TOLERANCE for cells in rows for figure in cells[-2:])


@lru_cache(maxsize=4)
def traced(name: str):
    """Model, inputs, trace and output of one architecture; read only."""
    architecture = BY_NAME[name]
    module, batch = architecture.build(), architecture.batch()
    trace, output = captured(module, batch.tensors)
    return module, batch, trace, output


def test_the_list_is_whole_and_each_name_stands_once() -> None:
    assert set(BY_NAME) == REQUIRED
    assert len(ARCHITECTURES) == len(REQUIRED)


@every_architecture
def test_outputs_and_weights_equal_the_librarys(architecture: Architecture) -> None:
    measured = measure(architecture, architecture.batch())
    assert measured.outputs <= TOLERANCE
    assert measured.weights <= TOLERANCE
    assert measured.compared > 1000


@left_padded
def test_outputs_and_weights_equal_the_librarys_with_padding_on_the_left(architecture: Architecture) -> None:
    assert architecture.left_batch is not None
    measured = measure(architecture, architecture.left_batch())
    assert measured.outputs <= TOLERANCE
    assert measured.weights <= TOLERANCE


@every_architecture
def test_layers_heads_and_kinds_are_those_of_the_model(architecture: Architecture) -> None:
    module, batch, trace, _ = traced(architecture.name)
    assert module.config.model_type == architecture.family
    assert {kind: len(maps) for kind, maps in maps_by_kind(trace).items()} == dict(architecture.layers)
    assert trace.fallback == (architecture.path == "fallback")
    library = library_weights(architecture, architecture.build(eager=True), batch.tensors)
    for kind, maps in maps_by_kind(trace).items():
        for layer, layer_map in enumerate(maps):
            assert layer_map.heads == architecture.heads_of(layer)
            assert (layer_map.batch, layer_map.heads, layer_map.queries, layer_map.keys) == tuple(
                library[kind][layer].shape
            )
            assert layer_map.kv_heads == (architecture.kv_heads or layer_map.heads)
    if trace.fallback:
        assert trace.notes


@every_architecture
def test_attention_is_peaked_and_differs_between_layers_heads_and_items(architecture: Architecture) -> None:
    """Guards the models themselves: flat or equal maps would let a mixed-up layer, head or item pass."""
    _, batch, trace, _ = traced(architecture.name)
    seen = [
        layer_map.dense()[head]
        for item in range(2)
        for _, _, layer_map, _ in item_maps(architecture, batch, trace, item)
        for head in range(layer_map.heads)
    ]
    assert torch.stack([weights.amax(-1).mean() for weights in seen]).mean() > 0.3
    for index, weights in enumerate(seen):
        for other in seen[:index]:
            assert weights.shape != other.shape or not torch.allclose(weights, other, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("ModernBERT", [(10, 10), (3, 3), (3, 3)]),
        ("GPT-2", [(10, 0)] * 3),
        ("Mistral", [(3, 0)] * 3),
        ("Gemma 2", [(3, 0), (10, 0), (3, 0), (10, 0)]),
        ("Qwen 3", [(10, 0), (10, 0), (4, 0)]),
        ("BERT", [(10, 10)] * 3),
    ],
)
def test_layers_reach_as_far_back_and_ahead_as_the_table_says(
    name: str, reach: list[tuple[int, int]]
) -> None:
    """Guards the configs: a window as long as the text would prove nothing about windows."""
    _, _, trace, _ = traced(name)
    (maps,) = maps_by_kind(trace.item(0)).values()
    found = []
    for layer_map in maps:
        query, key = (layer_map.dense().amax(0) > 0).nonzero(as_tuple=True)
        found.append((int((query - key).max()), int((key - query).max())))
    assert found == reach


@pytest.mark.parametrize("name", ["Swin", "Swin V2", "Donut Swin"])
def test_no_weight_leaves_a_window_or_crosses_the_seam_of_a_roll(name: str) -> None:
    """A rolled window at the border holds patches from opposite edges, which must not see each other."""
    architecture = BY_NAME[name]
    assert architecture.windows is not None
    _, _, trace, _ = traced(name)
    assert trace.grids == tuple(grid for grid, _, _ in architecture.windows)
    for layer, (grid, window, shift) in enumerate(architecture.windows):
        weights = trace.encoder[layer].weights()  # (B, H, N, N)
        row, column = torch.arange(grid[0] * grid[1]) // grid[1], torch.arange(grid[0] * grid[1]) % grid[1]
        # after the roll by ``shift`` windows start at shift, shift + window ...; what lies before is a window's rest
        down, across = (row - shift) // window, (column - shift) // window
        together = (down[:, None] == down) & (across[:, None] == across)
        assert float(weights[:, :, ~together].abs().max()) < 1e-20
        assert float(weights[:, :, together].min()) > 0


@pytest.mark.parametrize("name", ["Swin", "Swin V2", "Donut Swin"])
def test_what_falls_on_the_padding_of_windows_is_left_out(name: str) -> None:
    """9 rows and 11 columns are padded to 12 × 12: only windows that hold padding lose weight to it."""
    architecture = BY_NAME[name]
    assert architecture.windows is not None
    _, _, trace, _ = traced(name)
    item = trace.item(0)
    for layer_map, (grid, window, shift) in zip(item.encoder, architecture.windows, strict=True):
        assert isinstance(layer_map, WindowedMap)
        kept = layer_map.kept(None)
        padded = torch.zeros(grid[0] * grid[1], dtype=torch.bool)
        for places in windows_of(grid, window, shift):
            if None in places:
                padded[[place[0] * grid[1] + place[1] for place in places if place is not None]] = True
        assert padded.any()
        ones = torch.ones_like(kept[:, ~padded])
        assert_close(kept[:, ~padded], ones, rtol=0.0, atol=1e-5)
        assert float(kept[:, padded].min()) < 0.9
        assert_close(layer_map.dense().sum(-1), kept, rtol=0.0, atol=1e-5)


@every_architecture
def test_rows_sum_to_one_and_row_and_block_agree_with_dense(architecture: Architecture) -> None:
    _, batch, trace, _ = traced(architecture.name)
    for item in range(2):
        for _, _, layer_map, _ in item_maps(architecture, batch, trace, item):
            dense = layer_map.dense()
            if architecture.windows is None:  # windows may hold padding, on which weight falls
                assert_close(dense.sum(-1), torch.ones_like(dense[..., 0]), rtol=0.0, atol=1e-5)
            for head in (None, 0, layer_map.heads - 1):
                of_head = dense if head is None else dense[head]
                for query in (0, layer_map.queries - 1):
                    assert_close(
                        layer_map.row(head, query), of_head[..., query, :], rtol=0.0, atol=SAME_NUMBERS
                    )
                rows, columns = slice(1, layer_map.queries), slice(layer_map.keys // 3, layer_map.keys - 1)
                block = layer_map.block(head, rows, columns)
                assert_close(block, of_head[..., rows, columns], rtol=0.0, atol=SAME_NUMBERS)
                assert_close(layer_map.dense(head), of_head, rtol=0.0, atol=SAME_NUMBERS)


@every_architecture
def test_an_item_of_a_padded_batch_equals_the_item_alone(architecture: Architecture) -> None:
    module, batch, trace, _ = traced(architecture.name)
    _compare_items_with_items_alone(architecture, module, batch, trace)


@left_padded
def test_an_item_of_a_left_padded_batch_equals_the_item_alone(architecture: Architecture) -> None:
    """Case T16: padding is the end-of-text token, on the left; neither attention nor positions may feel it."""
    assert architecture.left_batch is not None
    module, batch = architecture.build(), architecture.left_batch()
    trace, _ = captured(module, batch.tensors)
    _compare_items_with_items_alone(architecture, module, batch, trace)


def _compare_items_with_items_alone(architecture, module, batch, trace) -> None:
    for item in range(2):
        alone, _ = captured(module, batch.alone(item))
        found = list(item_maps(architecture, batch, trace, item))
        expected = list(item_maps(architecture, batch, alone, 0))
        assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
        for (kind, layer, of_batch, _), (_, _, of_alone, _) in zip(found, expected, strict=True):
            assert (of_batch.queries, of_batch.keys) == (of_alone.queries, of_alone.keys), (kind, layer)
            assert_close(of_batch.dense(), of_alone.dense(), rtol=0.0, atol=TOLERANCE)
            ours, theirs = of_batch.statistics(), of_alone.statistics()
            assert_close(ours.entropy, theirs.entropy, rtol=0.0, atol=1e-4)
            assert_close(ours.received, theirs.received, rtol=0.0, atol=1e-4)


@every_architecture
def test_nothing_is_left_changed_on_the_model(architecture: Architecture) -> None:
    module, batch = architecture.build(), architecture.batch()
    next(module.parameters()).requires_grad_(False)
    next(child for child in module.modules() if type(child).__name__.endswith("Norm")).train()
    before = state_of(module)
    captured(module, batch.tensors)
    assert_same_state(before, state_of(module))


@every_architecture
def test_nothing_is_left_changed_after_an_exception(architecture: Architecture) -> None:
    module, batch = architecture.build(), architecture.batch()
    before = state_of(module)

    def run_and_fail() -> None:
        with torch.no_grad(), capture(module):
            module(**batch.tensors)
            raise ZeroDivisionError("in the block")

    with pytest.raises(ZeroDivisionError, match="in the block"):
        run_and_fail()
    assert_same_state(before, state_of(module))

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the middle of the model")

    middle = [
        child for child in module.modules() if type(child).__name__.endswith(("Layer", "Block", "Stage"))
    ][-1]
    handle = middle.register_forward_hook(fail)
    before = state_of(module)
    with pytest.raises(ZeroDivisionError, match="in the middle"), torch.no_grad(), capture(module):
        module(**batch.tensors)
    assert_same_state(before, state_of(module))
    handle.remove()
    trace, _ = captured(module, batch.tensors)
    assert {kind: len(maps) for kind, maps in maps_by_kind(trace).items()} == dict(architecture.layers)


@every_architecture
def test_a_model_that_was_built_eager_gives_the_same(architecture: Architecture) -> None:
    """Case M2: an eager CLIP vision tower gave an empty attention field."""
    _, batch, trace, _ = traced(architecture.name)
    eager, _ = captured(architecture.build(eager=True), batch.tensors)
    for kind, maps in maps_by_kind(trace).items():
        for one, other in zip(maps, maps_by_kind(eager)[kind], strict=True):
            for item in range(one.batch):
                assert_close(one.item(item).dense(), other.item(item).dense(), rtol=0.0, atol=TOLERANCE)


@every_architecture
def test_the_model_answers_as_before_after_a_capture(architecture: Architecture) -> None:
    module, batch, _, _ = traced(architecture.name)
    fresh = library_run(architecture.build(), batch.tensors)
    again = library_run(module, batch.tensors)
    for name, value in again.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, fresh[name]), name
