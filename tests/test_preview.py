"""The fast preview: offered where a processor multiplies bfloat16, told where it is shown, never taken for exact."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import get_args

import numpy as np
import pytest
import torch

from analysis.adversarial.measures import class_probabilities
from analysis.catalogue import BUNDLED, is_installed
from analysis.evidence.targets import Outputs, class_logit, class_probability
from analysis.models import load_model
from analysis.processor import flags_multiply_bfloat16
from analysis.trained import has_preview
from attn_core.errors import UnsupportedModelError
from dashboard import cached, sidebar
from dashboard.selection import ImageView, ModelChoice, TextView, default_selection, from_query, to_query
from tests.test_app import opened, settled, shown

needs_models = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED),
    reason="bundled models are not installed; run make bundled",
)


def test_flags_of_processors():
    assert flags_multiply_bfloat16("model name\t: of vectors\nflags\t\t: fpu avx512f avx512_bf16 sse")
    assert flags_multiply_bfloat16("flags\t\t: amx_bf16")
    assert flags_multiply_bfloat16("Features\t: fp asimd bf16")
    assert not flags_multiply_bfloat16("model name\t: called bf16\nflags\t\t: fpu avx512f avx512_vnni")
    assert not flags_multiply_bfloat16("")


def test_links_carry_the_preview_and_leave_it_with_another_model():
    start = default_selection()
    asked = from_query({"model": "minilm", "numbers": "bfloat16"}, start, "text")
    assert asked.text.model.numbers == "bfloat16"
    assert to_query(asked, "text")["numbers"] == "bfloat16"
    assert from_query(to_query(asked, "text"), start, "text") == asked
    assert from_query({"model": "minilm"}, asked, "text").text.model.numbers == "auto"
    assert "numbers" not in to_query(start, "text")
    wrong = from_query({"model": "minilm", "numbers": "float16"}, start, "text")
    assert wrong.text.model.numbers == "auto"
    assert "numbers" in wrong.notes[0]


def test_small_models_of_our_own_have_none():
    """The weights of additive attention do not sum to 1 in bfloat16."""
    found = from_query({"model": "recurrent-sentiment", "numbers": "bfloat16"}, default_selection(), "text")
    assert found.text.model == ModelChoice("recurrent-sentiment")
    assert "numbers" in found.notes[0]
    with pytest.raises(UnsupportedModelError, match="float32 or float64 but is asked for bfloat16"):
        load_model("recurrent-sentiment", dtype="bfloat16")
    assert has_preview("some-one/some-model")
    assert has_preview("minilm-from-scratch")


def test_answers_of_half_precision_are_reckoned_with_in_float32():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, generator=generator).bfloat16()
    outputs = Outputs(logits, torch.randn(2, 4, 5, generator=generator).bfloat16(), torch.arange(4))
    shares = class_probabilities(("a", "b", "c")).read(outputs)
    torch.testing.assert_close(shares, logits.float().softmax(-1))
    torch.testing.assert_close(class_logit(1).value(outputs), logits[:, 1].float())
    torch.testing.assert_close(class_probability(1).value(outputs), logits.float().softmax(-1)[:, 1])
    assert outputs.embedding("mean").dtype == torch.float32
    exact = Outputs(logits.double(), None, torch.arange(4))
    assert class_logit(1).value(exact).dtype == torch.float64


@needs_models
def test_the_sidebar_offers_it_where_it_gains(monkeypatch):
    monkeypatch.setattr(sidebar, "multiplies_bfloat16", lambda: True)
    for model, offered in (("sentiment", True), ("recurrent-sentiment", False)):
        at = opened()
        chosen = at.session_state["selection"]
        at.session_state["selection"] = replace(chosen, text=replace(chosen.text, model=ModelChoice(model)))
        at = settled(at.run())
        assert bool([group for group in at.button_group if group.key == "text_numbers"]) == offered
    monkeypatch.setattr(sidebar, "multiplies_bfloat16", lambda: False)
    at = opened()
    assert not [group for group in at.button_group if group.key == "text_numbers"]


@needs_models
def test_a_model_is_loaded_once_however_it_is_asked_for():
    assert cached.shared_model("minilm", None) is cached.shared_model("minilm", None, "auto")


@needs_models
def test_the_same_weights_but_for_three_digits():
    exact = cached.traced_text("minilm", None, "The cat sat on the mat.", None)
    preview = cached.traced_text("minilm", None, "The cat sat on the mat.", None, numbers="bfloat16")
    assert exact.key != preview.key
    assert exact.model.identity != preview.model.identity
    for one, other in zip(exact.trace.encoder, preview.trace.encoder, strict=True):
        difference = np.abs(one.dense().numpy() - other.dense().float().numpy())
        assert 0 < difference.max() < 0.1
        np.testing.assert_allclose(other.dense().sum(-1), 1.0, atol=1e-5)


def walk_in_preview(page: str, model: str, views: tuple[str, ...]) -> None:
    """Open a page's views one after the other; all say that this is a preview."""
    at = opened(page)
    for view in views:
        chosen = at.session_state["selection"]
        choices = replace(getattr(chosen, page), model=ModelChoice(model, numbers="bfloat16"), view=view)
        at.session_state["selection"] = replace(chosen, **{page: choices})
        at = settled(at.run()) if view == views[0] else at.run()
        assert not at.exception, view
        assert not at.error, f"{view}: {at.error[0].value}"
        told = unescape(shown(at))
        assert f"({cached.PREVIEW_WORDS})" in told, view
        assert cached.PREVIEW_NOTE in told, view


@needs_models
def test_every_view_of_a_picture():
    walk_in_preview("image", "picture-classifier", get_args(ImageView))


@needs_models
def test_every_view_of_a_text():
    walk_in_preview("text", "sentiment", get_args(TextView))
