"""The Scale page, run by Streamlit's AppTest: choices and their link, what is told before, curves, stop, files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis import scale_curves, scale_plan
from analysis.estimate import AvailableMemory
from analysis.export import read_provenance
from analysis.figure_lab import CurveSheet
from analysis.scale_curves import WAYS, Ended, Point, ScalePlan, ScaleRun
from dashboard import evidence_cache, scale_jobs
from dashboard.export_menu import file_bytes
from dashboard.scale_choices import ScaleChoices, plan_of, read_scale, scale_params
from dashboard.selection import default_selection, from_query, to_query
from dashboard.views import scale_workspace
from tests.lab.pages import shown

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "dashboard" / "app.py"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    evidence_cache.jobs.clear()
    scale_jobs._found.clear()


def opened(**params: str) -> AppTest:
    """The page as a link opens it."""
    at = AppTest.from_file(APP, default_timeout=120)
    at.switch_page("views/scale.py")
    for name, value in {"v": "1", **params}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def ended(at: AppTest) -> AppTest:
    """Run again when the measurement has ended."""
    (job,) = [job for key, job in evidence_cache.jobs()._jobs.items() if key[0] == "scale"]
    assert job.wait(120)
    at.run()
    assert not at.exception
    return at


class Exports:
    """What the Export menu was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[Any, Any]] = []
        menu = scale_workspace.export_menu

        def watched(figure: Any, provenance: Any, **options: Any) -> None:
            self.given.append((figure, provenance))
            menu(figure, provenance, **options)

        monkeypatch.setattr(scale_workspace, "export_menu", watched)


# Choices ------------------------------------------------------------------------------------------------------------


def test_a_link_reopens_every_choice_and_leaves_out_what_it_does_not_know() -> None:
    start = default_selection()
    assert scale_params(start.scale) == {}
    choices = ScaleChoices(
        heads=12,
        width=128,
        numbers="bfloat16",
        rule="window",
        window=512,
        passes="both",
        longest=32768,
        memory=8,
        threads="all",
        ways=("dense", "tiled"),
    )
    params = to_query(replace(start, scale=choices), "scale")
    assert params["ways"] == "dense,tiled"
    assert from_query(params, start, "scale").scale == choices
    read, bad = read_scale({"heads": "7", "longest": "999", "rule": "causal", "colour": "red"})
    assert (read, set(bad)) == (ScaleChoices(rule="causal"), {"heads", "longest", "colour"})
    assert plan_of(choices) == ScalePlan(
        ("dense", "tiled"), 12, 128, "bfloat16", "window", 512, True, 32768, 8 * 2**30, threads=0
    )
    assert plan_of(replace(choices, rule="all")).window == scale_plan.WINDOW_START, "no window, no other plan"


PAINTED = """
    import sys
    from streamlit.testing.v1 import AppTest
    at = AppTest.from_file({app!r}, default_timeout=100)
    at.switch_page("views/scale.py").run()
    assert not at.exception, at.exception
    assert at.button(key="scale_measure").label == "Measure"
    brought = {{"torch", "transformers", "matplotlib"}} & set(sys.modules)
    assert not brought, brought
    print("painted")
"""


def test_the_page_is_there_before_torch_is_imported() -> None:
    script = textwrap.dedent(PAINTED).format(app=str(APP))
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert "painted" in ran.stdout, ran.stderr[-3000:]


def test_widgets_change_the_plan_its_link_and_what_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_workspace, "available_memory", lambda: AvailableMemory(64 * 2**30))
    monkeypatch.setattr(scale_jobs, "product_rate", lambda: 1e11)
    at = opened()
    assert "its kernels run on a GPU" in shown(at)
    assert "Written out, attention will end near n = 4,096" in shown(at).replace("\u00a0", " ")
    at.button_group(key="scale_rule").set_value("window").run()
    at.selectbox(key="scale_window").set_value(512).run()
    at.button_group(key="scale_passes").set_value("both").run()
    at.selectbox(key="scale_heads").set_value(12).run()
    at.selectbox(key="scale_width").set_value(128).run()
    at.selectbox(key="scale_numbers").set_value("bfloat16").run()
    at.selectbox(key="scale_longest").set_value(1024).run()
    at.selectbox(key="scale_memory").set_value(1).run()
    at.selectbox(key="scale_threads").set_value("all").run()
    assert not at.exception
    text = shown(at)
    assert "12 heads of width 128, bfloat16, causal window of 512 keys, forward and backward pass" in text
    assert "flex_attention has no backward pass" in text
    assert "will end near" not in text
    at.button_group(key="scale_ways").set_value(["sdpa", "dense"]).run()
    expected = {
        "rule": "window",
        "window": "512",
        "passes": "both",
        "heads": "12",
        "width": "128",
        "memory": "1",
    }
    expected |= {"numbers": "bfloat16", "longest": "1024", "threads": "all", "ways": "dense,sdpa"}
    assert {name: at.query_params[name] for name in expected} == {
        name: [value] if isinstance(at.query_params[name], list) else value
        for name, value in expected.items()
    }
    at.button_group(key="scale_ways").set_value([]).run()
    assert "Choose a way above." in shown(at)
    assert not [button for button in at.button if button.key == "scale_measure"]


def test_little_free_memory_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_workspace, "available_memory", lambda: AvailableMemory(2**30))
    assert "1 GiB are free here" in shown(opened()).replace("\u00a0", " ")


# Measuring ----------------------------------------------------------------------------------------------------------


def test_what_is_measured_here_is_drawn_told_and_goes_into_files(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened(longest="256", ways="dense,sdpa,triton", heads="2", width="16")
    assert not exports.given
    at.button(key="scale_measure").click().run()
    ended(at)
    text = shown(at)
    assert "PyTorch SDPA" in text
    assert "Triton kernel is not here: its kernels run on a GPU" in text
    assert "Cores:" in text
    assert at.button(key="scale_measure").label == "Measure again"
    sheet, told = exports.given[-1]
    assert isinstance(sheet, CurveSheet)
    curves = {curve.name: curve for curve in sheet.panels[0].curves}
    assert list(curves) == ["Written out", "PyTorch SDPA", "~ n²", "~ n"]
    np.testing.assert_array_equal(curves["PyTorch SDPA"].x, [128, 256])
    for format in ("png", "html", "csv", "npz", "json"):
        read = read_provenance(file_bytes(sheet, told, format), format)["provenance"]  # type: ignore[arg-type]
        assert read["settings"]["heads"] == 2
        assert read["settings"]["machine: Threads"] == "1"
        assert any("is not here" in note for note in read["notes"])


def test_curves_grow_while_it_measures_and_a_stop_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    points = tuple(Point("dense", n, n * 1e-6, n * 1000, 5) for n in (128, 256))

    def waits(plan: ScalePlan, told: Any) -> ScaleRun:
        told(ScaleRun(points=points, now="Written out at n = 512"))
        begun.set()
        assert go_on.wait(60)
        told(ScaleRun(points=points, now="Written out at n = 1,024"))
        raise AssertionError("it was not stopped")

    monkeypatch.setattr(scale_curves, "measured", waits)
    exports = Exports(monkeypatch)
    at = opened()
    at.button(key="scale_measure").click().run()
    assert begun.wait(60)
    at.run()
    assert [chart.proto.id for chart in at.get("plotly_chart")], "the curves so far"
    assert not exports.given
    at.button(key="scale_stop").click().run()
    go_on.set()
    ended(at)
    assert "Stopped." in shown(at)
    assert exports.given[-1][0].panels[0].curves[0].x.tolist() == [128, 256]
    assert scale_jobs.found_so_far(plan_of(ScaleChoices())).run.now == ""
    again = opened()
    assert again.button(key="scale_measure").label == "Measure again", "another session sees it too"


def test_a_measurement_that_finds_nothing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ScaleRun(ended=tuple(Ended(way, 128, "absent", "there is no such device") for way in WAYS))
    monkeypatch.setattr(scale_curves, "measured", lambda plan, told: run)
    at = opened()
    at.button(key="scale_measure").click().run()
    ended(at)
    assert "PyTorch SDPA is not here: there is no such device." in shown(at)

    def fails(plan: ScalePlan, told: Any) -> ScaleRun:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(scale_curves, "measured", fails)
    at.button(key="scale_measure").click().run()
    ended(at)
    assert "This could not be measured" in at.error[0].value
    assert at.button(key="scale_measure").label == "Measure"
