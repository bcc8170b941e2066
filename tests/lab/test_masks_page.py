"""Masks and mods in the app: every control, typed mods good and bad, the library, odd input, files."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from analysis.figure_lab import CurveSheet, MatrixSheet
from dashboard.lab_choices import LabChoices, kind_of
from dashboard.views.lab_masks import EXAMPLES, MOD_WORDS, RULE_WORDS
from tests.lab.pages import Exports, needs_models, opened, settled, shown

pytestmark = needs_models

ALL_RULES = ",".join(RULE_WORDS)


def differ(before: MatrixSheet, after: MatrixSheet) -> bool:
    return any(
        one.values.shape != other.values.shape or not np.array_equal(one.values, other.values)
        for one, other in zip(before.matrices, after.matrices, strict=True)
    )


def test_every_rule_and_size_moves_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks")
    assert "The rule allows 136 of 256 pairs (53 %). Every query sees at least one key." in shown(at)
    assert "saves 48 % of the work" in shown(at)
    sheet = exports.given[-1][0]
    assert [matrix.name for matrix in sheet.matrices] == ["Mask", "Scores", "After mod and mask", "Weights"]
    sizes = {
        "window": ("window", 7),
        "dilated": ("stride", 3),
        "prefix": ("prefix", 6),
        "padding": ("padded", 5),
        "document": ("documents", 3),
        "block": ("block", 5),
    }
    for rule, (size, value) in sizes.items():
        at.button_group(key="lab_masks_rules").set_value([rule]).run()
        before = exports.given[-1][0]
        at.slider(key=f"lab_masks_{size}").set_value(value).run()
        assert not at.exception
        assert differ(before, exports.given[-1][0]), size
        assert (at.query_params["rules"], at.query_params[size]) == (rule, str(value))
    at.button_group(key="lab_masks_rules").set_value(["causal", "block"]).run()
    both = exports.given[-1][0].matrices[0].values
    at.button_group(key="lab_masks_joined").set_value("or").run()
    either = exports.given[-1][0].matrices[0].values
    assert both.sum() < either.sum()
    at.toggle(key="lab_masks_negate").set_value(True).run()
    np.testing.assert_array_equal(exports.given[-1][0].matrices[0].values, 1 - either)
    assert exports.check()["settings"]["rule"] == "not (causal | blocks of 5)"
    at.button_group(key="lab_masks_rules").set_value([]).run()
    assert "No query sees any key" in shown(at)
    assert not at.exception


def test_vectors_head_and_mods_move_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks")
    moves: list[tuple[str, str, Any]] = [
        ("slider", "tokens", 9),
        ("slider", "seed", 4),
        ("selectbox", "head", 5),
        *(("selectbox", "mod", mod) for mod in MOD_WORDS if mod != "none"),
        ("text_input", "typed", "score * 3"),
        ("selectbox", "mod", "soft_cap"),
        ("slider", "cap", 0.5),
    ]
    for widget, name, value in moves:
        before = exports.given[-1][0]
        getattr(at, widget)(key=f"lab_masks_{name}").set_value(value).run()
        assert not at.exception
        assert differ(before, exports.given[-1][0]), (name, value)
    read = exports.check()
    assert read["settings"]["mod"] == "soft cap 0.5"
    assert read["input"] == "random vectors, seed 4, head 5"
    at.selectbox(key="lab_masks_exported").set_value("Cost").run()
    assert isinstance(exports.given[-1][0], CurveSheet)
    assert "attn_core.cost" in exports.check()["method"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "expected a number, a name, a function or “(” but found the end."),
        ("score + sqr(2)", "unknown name “sqr”; did you mean sqrt?"),
        ("(" * 160, "nested more than 32 deep"),
        ("__import__('os').system('x')", "unexpected “'”, which no expression has."),
        ("<script>alert(1)</script>", "found “<”."),
    ],
)
def test_a_mod_that_cannot_be_read_is_pointed_at_and_left_out(
    typed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks", mod="typed", typed=typed)
    (pointed,) = at.code
    told, line, caret = pointed.value.split("\n")
    assert said in told
    assert (line, caret.strip()) == (f"  {typed}", "^")
    assert "what is shown is without a mod" in shown(at)
    assert exports.given[-1][1].settings["mod"] == "none"
    assert at.text_input(key="lab_masks_typed").value == typed, "what was typed is kept"
    at.text_input(key="lab_masks_typed").set_value("score * 2").run()
    assert not at.code
    assert exports.given[-1][1].settings["mod"] == "score * 2"


def test_a_mod_without_a_score_says_for_which_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks", mod="typed", typed="score / (q_idx - 2)")
    said = shown(at).replace("\\", "")  # Markdown's
    assert re.search(r"The mod gives \+∞ for query 2 and key [012], whose score is \d", said)
    assert exports.given[-1][1].settings["mod"] == "none"


def test_every_example_is_a_mod(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks", mod="typed", rules="")
    most = kind_of(LabChoices().masks, "typed").options[0]
    for index, (_, typed) in enumerate(EXAMPLES):
        at.button(key=f"lab_masks_example_{index}").click().run()
        assert not at.exception
        assert not at.code
        assert not at.warning
        assert exports.given[-1][1].settings["mod"] == typed
        assert len(typed) <= most


def test_the_library_shows_every_mod(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks", show="library")
    assert len(exports.given[-1][0].matrices) == 8
    assert "score - 2 ** (-8 * (h + 1) / 8) * abs(q_idx - kv_idx)" in shown(at)
    for name, value in {"window": 2, "prefix": 5, "documents": 4, "cap": 0.4}.items():
        before = exports.given[-1][0]
        at.slider(key=f"lab_masks_{name}").set_value(value).run()
        assert differ(before, exports.given[-1][0]), name
    assert exports.check()["settings"]["cap"] == 0.4
    at.button_group(key="lab_masks_show").set_value("attention").run()
    assert len(exports.given[-1][0].matrices) == 4


def test_a_head_of_the_bundled_bert_and_odd_input(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("masks", numbers="model", layer="99", head="99", t="hello", rules=ALL_RULES)
    assert "layer 5, head 11" in exports.given[-1][1].input
    assert exports.given[-1][0].matrices[0].values.shape == (3, 3)
    for text in (" ".join(["word"] * 40), "<script>alert(1)</script> $x$", "a"):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert exports.given[-1][1].input.startswith(text)
    at.selectbox(key="lab_masks_layer").set_value(0).run()
    at.selectbox(key="lab_masks_head").set_value(3).run()
    assert "layer 0, head 3" in exports.given[-1][1].input
    at.button_group(key="lab_masks_show").set_value("library").run()
    assert "alibi(12)" in shown(at)
    at.text_area(key="lab_text").set_value("   ").run()
    assert "Type a sentence on the left." in shown(at)
    assert not at.exception


def test_the_largest_and_smallest_choices_are_drawn() -> None:
    low = {
        "tokens": "2",
        "window": "1",
        "prefix": "0",
        "padded": "64",
        "documents": "16",
        "block": "1",
        "stride": "1",
    }
    high = {"tokens": "64", "window": "64", "prefix": "64", "padded": "0", "documents": "16", "block": "32"}
    for params in (low, high):
        at = opened("masks", rules=ALL_RULES, joined="or", mod="alibi", **params)
        assert "The rule allows" in shown(at)
