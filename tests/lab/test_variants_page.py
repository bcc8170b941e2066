"""The section of variants in the app: every control, both parts, the measurement with its stop, odd input, files."""

from __future__ import annotations

import pytest

from analysis.lab import variant_costs
from analysis.lab.variant_costs import Costed, Measurement
from dashboard import evidence_cache
from tests.lab.pages import Exports, first_run, needs_models, opened, settled, shown

pytestmark = needs_models


def test_every_control_moves_what_is_shown_and_every_figure_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("variants")
    assert "At n = 32 the context of" in shown(at)
    assert "Block-sparse" in shown(at)
    first = exports.given[-1][0]
    assert len(first.matrices) == 6
    moved = {
        "tokens": 24,
        "sharpness": 2.0,
        "rank": 5,
        "hashes": 3,
        "buckets": 6,
        "window": 3,
        "block": 6,
        "seed": 7,
    }
    for name, value in moved.items():
        before = exports.given[-1][0]
        at.slider(key=f"lab_variants_{name}").set_value(value).run()
        assert not at.exception
        after = exports.given[-1][0]
        assert any(
            one.values.shape != other.values.shape or (one.values != other.values).any()
            for one, other in zip(before.matrices, after.matrices, strict=True)
        ), name
        assert at.query_params[name] == (f"{value:g}")
    for name, value in {"projection": "mean", "pattern": "bigbird", "features": "random"}.items():
        at.selectbox(key=f"lab_variants_{name}").set_value(value).run()
        assert at.query_params[name] == value
    at.slider(key="lab_variants_count").set_value(9).run()
    assert "9 random features" in " ".join(exports.given[-1][0].notes)
    at.button_group(key="lab_variants_variants").set_value(["exact", "fast_weights", "window"]).run()
    assert [matrix.name for matrix in exports.given[-1][0].matrices] == [
        "Exact",
        "Fast weights",
        "Sliding window",
    ]
    assert exports.check()["settings"]["window"] == 3
    at.selectbox(key="lab_variants_exported").set_value("Rows").run()
    assert exports.check()["input"] == "random vectors, seed 7, n = 24"
    at.button_group(key="lab_variants_variants").set_value([]).run()
    assert "Choose a variant above." in shown(at)
    assert not at.exception


@pytest.mark.parametrize("variants", ["exact", "linear", ""])
def test_few_variants_are_shown_without_a_fault(variants: str) -> None:
    assert not opened("variants", variants=variants).exception


def test_a_head_of_the_bundled_bert_and_odd_input(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("variants", numbers="model", layer="99", head="99", t="hello")
    assert exports.given[-1][0].title.endswith("layer 5, head 11")
    assert exports.given[-1][1].input == "hello"
    assert exports.given[-1][0].matrices[0].values.shape == (3, 3)
    for text in (" ".join(["word"] * 40), "<script>alert(1)</script> $x$", "a"):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert exports.given[-1][1].input == text
    at.selectbox(key="lab_variants_layer").set_value(0).run()
    at.selectbox(key="lab_variants_head").set_value(3).run()
    assert exports.given[-1][0].title.endswith("layer 0, head 3")
    at.text_area(key="lab_text").set_value("   ").run()
    assert "Type a sentence on the left." in shown(at)
    at = first_run("variants", tokens="1000", rank="x", pattern="round")
    assert not at.exception
    assert "pattern, rank, tokens" in shown(at)


def quickly(plan: variant_costs.CostPlan, progress) -> tuple[Measurement, ...]:
    """Made-up numbers of every variant at three lengths."""
    progress(0.5)
    return tuple(
        Measurement(variant, n, n * 1e-6, n * 1000, n * 100)
        for n in (64, 1024, 4096)
        for variant in plan.variants
    )


def job_of(at) -> object:
    (job,) = [job for key, job in evidence_cache.jobs()._jobs.items() if key[:2] == ("lab", "variants")]
    return job


def test_time_and_memory_are_measured_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_costs, "measured", quickly)
    evidence_cache.jobs.clear()
    exports = Exports(monkeypatch)
    at = opened("variants", show="cost")
    assert not exports.given
    assert "about ten seconds" in shown(at)
    at.button(key="lab_variants_measure").click().run()
    assert job_of(at).wait(60)
    at.run()
    assert not at.exception
    text = shown(at)
    assert "Exact, fused" in text
    assert "Measured on this machine" in text
    assert "Fast weights" not in text.split("MFLOPs")[1].split("</table>")[0]
    assert exports.check()["settings"]["repeats"] == 5
    names: list[Costed] = ["linear", "window"]
    at.button_group(key="lab_variants_variants").set_value(names).run()
    assert {curve.name for curve in exports.given[-1][0].panels[0].curves} == {
        "Linear", "Sliding window", "~ n²", "~ n"
    }  # fmt: skip
    at.slider(key="lab_variants_window").set_value(9).run()
    assert at.button(key="lab_variants_measure").label == "Measure time and memory"


def test_a_measurement_can_be_stopped_and_a_failed_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    begun, go_on = threading.Event(), threading.Event()

    def waits(plan, progress):
        progress(0.3)
        begun.set()
        assert go_on.wait(60)
        progress(0.6)

    monkeypatch.setattr(variant_costs, "measured", waits)
    evidence_cache.jobs.clear()
    at = opened("variants", show="cost")
    at.button(key="lab_variants_measure").click().run()
    assert begun.wait(60)
    at.run()
    at.button(key="lab_variants_stop").click().run()
    go_on.set()
    assert job_of(at).wait(60)
    at.run()
    assert "Stopped." in shown(at)

    def fails(plan, progress):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(variant_costs, "measured", fails)
    at.run()
    at.button(key="lab_variants_measure").click().run()
    assert job_of(at).wait(60)
    at.run()
    assert not at.exception
    assert "This could not be measured" in at.error[0].value
    assert at.button(key="lab_variants_measure").label == "Measure time and memory"
