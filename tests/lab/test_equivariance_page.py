"""Equivariance in the app: every control, the live table, odd input, files."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dashboard.views.lab_equivariance import MECHANISM_LABELS, SHUFFLE_LABELS
from tests.lab.pages import Exports, needs_models, opened, settled, shown

pytestmark = needs_models


def test_every_shuffle_and_mechanism_gets_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("equivariance")
    assert "It is equivariant." in shown(at)
    assert shown(at).count("✗ ") >= 22
    assert len(re.findall("<td>✓ ", shown(at))) == 6
    said = {
        "keys_values": "It is invariant: it sees a set of keys, not a list.",
        "keys": "Keys no longer stand beside their own values.",
        "tokens": "It is equivariant.",
        "queries": "It is equivariant.",
    }
    assert set(said) == set(SHUFFLE_LABELS)
    for shuffle, sentence in said.items():
        at.button_group(key="lab_equivariance_shuffle").set_value(shuffle).run()
        assert sentence in shown(at)
        assert exports.given[-1][1].settings["shuffle"] == shuffle
    for mechanism in list(MECHANISM_LABELS)[1:]:
        at.selectbox(key="lab_equivariance_mechanism").set_value(mechanism).run()
        assert not at.exception
        assert ("It sees the order of queries." in shown(at)) == (mechanism != "linear")
    before = exports.given[-1][0].matrices[0].values
    at.selectbox(key="lab_equivariance_head").set_value(6).run()
    other = exports.given[-1][0].matrices[0].values
    assert not np.array_equal(before, other)
    at.slider(key="lab_equivariance_seed").set_value(8).run()
    assert not np.array_equal(other, exports.given[-1][0].matrices[0].values)
    assert exports.check()["settings"]["mechanism"] == "linear"
    at.selectbox(key="lab_equivariance_exported").set_value("Table").run()
    assert exports.given[-1][0].matrices[0].values.sum() == 6
    assert exports.check()["settings"]["seed"] == 8


def test_a_head_of_the_bundled_bert_and_odd_input(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("equivariance", numbers="model", layer="99", head="99", t="hello", shuffle="tokens")
    assert "layer 5, head 11" in exports.given[-1][1].input
    assert exports.given[-1][0].matrices[0].values.shape == (3, 3)
    assert "BERT adds positions to its words before the first layer" in shown(at)
    for text in (" ".join(["word"] * 40), "<script>alert(1)</script> $x$", "a"):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert exports.given[-1][1].input.startswith(text)
    at.selectbox(key="lab_equivariance_layer").set_value(0).run()
    assert "layer 0, head 11" in exports.given[-1][1].input
    at.button_group(key="lab_equivariance_numbers").set_value("random").run()
    assert "One token has no other order" in shown(at)
    at.text_area(key="lab_text").set_value("   ").run()
    assert "Type a sentence on the left: its words are the tokens." in shown(at)
    assert not at.exception
    at.text_area(key="lab_text").set_value(" ".join("ab" for _ in range(66))).run()
    assert exports.given[-1][0].matrices[0].values.shape == (64, 64)
