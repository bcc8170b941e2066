"""Our sentence-pair filter against the very matrices and tokens that BertViz 1.4.1 hands to the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from analysis.figure_data import HeadView, TokenLabel
from analysis.pairs import PAIR_FILTERS, PairFilter, filter_pair
from analysis.visible import visible_tokens

CASES = Path(__file__).parent / "oracles" / "08_bertviz"
PAIR = np.load(CASES / "minilm_pair.npz")
META: dict[str, Any] = json.loads((CASES / "minilm_pair.json").read_text())
TOKENS: list[str] = META["tokens"]
SEGMENTS = [int(position >= META["sentence_b_start"]) for position in range(len(TOKENS))]
ENTRY_NAMES: dict[str, PairFilter] = {
    "All": "all",
    "Sentence A -> Sentence A": "aa",
    "Sentence B -> Sentence B": "bb",
    "Sentence A -> Sentence B": "ab",
    "Sentence B -> Sentence A": "ba",
}


def entries() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every (view, its settings, one filter's entry) that BertViz wrote for the pair."""
    return [(name, view, entry) for name, view in META["views"].items() for entry in view["attention"]]


def test_the_oracle_holds_every_filter() -> None:
    assert {ENTRY_NAMES[entry["name"]] for _, _, entry in entries() if entry["name"]} == set(PAIR_FILTERS)
    assert len(entries()) >= 15


@pytest.mark.parametrize(
    ("view", "entry"),
    [pytest.param(view, entry, id=f"{name}-{entry['name']}") for name, view, entry in entries()],
)
def test_matrices_and_tokens_equal_what_bertviz_sends(view: dict[str, Any], entry: dict[str, Any]) -> None:
    shown = PAIR["attention"][view["include_layers"]]
    if "include_heads" in view:
        shown = shown[:, view["include_heads"]]
    weights, rows, columns = filter_pair(shown, SEGMENTS, ENTRY_NAMES[entry["name"] or "All"])
    assert list(weights.shape) == entry["attn_shape"]
    np.testing.assert_allclose(weights, PAIR[entry["attn"]], rtol=0.0, atol=1e-6)
    assert [TOKENS[row] for row in rows] == entry["left_text"]
    assert [TOKENS[column] for column in columns] == entry["right_text"]


def test_the_first_separator_belongs_to_the_first_sentence() -> None:
    _, rows, columns = filter_pair(PAIR["attention"], SEGMENTS, "ab")
    assert [TOKENS[row] for row in rows][-2:] == [".", "[SEP]"]
    assert [TOKENS[column] for column in columns][:2] == ["it", "was"]


def test_rows_are_not_renormalised_and_both_parts_of_a_row_make_the_whole() -> None:
    weights = PAIR["attention"].astype(np.float64)
    to_a, to_b = (filter_pair(weights, SEGMENTS, which)[0].sum(-1) for which in ("aa", "ab"))
    assert (to_a < 0.999).any()
    np.testing.assert_allclose(to_a + to_b, 1.0, atol=1e-6)


def test_segments_of_unequal_length_give_rows_of_queries_and_columns_of_keys() -> None:
    weights = np.arange(25.0).reshape(5, 5)
    part, rows, columns = filter_pair(weights, [0, 0, 0, 1, 1], "ba")
    np.testing.assert_array_equal(part, [[15, 16, 17], [20, 21, 22]])
    np.testing.assert_array_equal(rows, [3, 4])
    np.testing.assert_array_equal(columns, [0, 1, 2])


def test_the_filters_are_those_of_the_head_view_record() -> None:
    assert set(get_args(get_type_hints(HeadView)["pair_filter"])) == set(PAIR_FILTERS)


@pytest.mark.parametrize(
    ("shape", "segments", "which", "message"),
    [
        ((3, 3), [0, 0, 1], "ac", "which must be one of all, aa, ab, ba, bb but is 'ac'"),
        ((2, 3, 4), [0, 0, 1], "aa", r"weights must be \(..., 3, 3\) for 3 segments but is \(2, 3, 4\)"),
        ((3, 3), [0, 0, 0], "ab", "hold a token of sentence B but have none; use the filter 'all'"),
    ],
)
def test_wrong_arguments_say_what_is_wanted(
    shape: tuple[int, ...], segments: list[int], which: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        filter_pair(np.ones(shape), segments, which)


@pytest.mark.parametrize("which", PAIR_FILTERS)
def test_the_head_view_and_its_files_show_the_same_part(which: PairFilter) -> None:
    """What screen and export draw (``visible_tokens``) is the part that the oracle above vouches for."""
    segments = [0, 0, 0, 1, 1]
    labels = tuple(
        TokenLabel(text=str(i), piece=str(i), segment=segment) for i, segment in enumerate(segments)
    )
    weights = np.full((1, 5, 5), 0.2)
    view = HeadView(weights, labels, labels, layer=0, layers=1, active=(0,), pair_filter=which)
    _, rows, columns = filter_pair(weights, segments, which)
    left, right = visible_tokens(view)
    assert np.flatnonzero(left).tolist() == rows.tolist()
    assert np.flatnonzero(right).tolist() == columns.tolist()
