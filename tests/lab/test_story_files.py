"""Timelines and diagrams in files: what each format holds of them, and that the paper shows what the screen shows."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

import numpy as np
import pytest

from analysis.export import CSV_ROWS, export_figure, read_provenance, refusal
from analysis.figure_lab import Diagram, Timeline
from dashboard.standalone import figure_html
from tests.sample_figures import diagram, provenance, timeline


def table(view: Timeline | Diagram) -> list[dict[str, str]]:
    text = export_figure(view, provenance(), "csv").decode()
    return list(csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#")))


def restored(cell: str) -> str:
    """Without the apostrophe that keeps a spreadsheet from running it."""
    return cell[1:] if cell.startswith("'") else cell


def test_the_table_of_a_timeline_has_every_work():
    view = timeline()
    rows = table(view)
    assert len(rows) == 3
    assert [row["year"] for row in rows] == ["1953", "1992", "1992"]
    assert [row["alike"] for row in rows] == ["true", "false", "true"]
    assert restored(rows[0]["authors"]) == "=authors()"
    assert rows[0]["address"] == "lab?v=1&section=masks"


def test_the_document_of_a_timeline_has_its_works_and_other_files_do_not():
    view = timeline()
    document = json.loads(export_figure(view, provenance(), "json"))
    expected = json.loads(json.dumps([asdict(entry) for entry in view.entries]))
    assert document["entries"] == expected
    assert document["choices"]["selected"] == "key1"
    for format in ("png", "svg", "csv"):
        inside = read_provenance(export_figure(view, provenance(), format), format)
        assert "entries" not in inside["choices"]
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert arrays["year"].tolist() == [1953, 1992, 1992]
        assert arrays["alike"].tolist() == [True, False, True]
        assert arrays["authors"].tolist() == ["=authors()"] * 3


def test_the_table_of_a_diagram_has_every_stage_and_what_it_is_made_from():
    view = diagram()
    rows = table(view)
    assert [row["stage"] for row in rows] == [str(index) for index in range(7)]
    assert rows[4]["made_from"] == "0 3"
    assert rows[0]["made_from"] == ""
    assert restored(rows[2]["formula"]) == "=a_1 <b>"
    assert {row["parameter"] for row in rows} == {"model.<weight>"}
    document = json.loads(export_figure(view, provenance(), "json"))
    assert [stage["made_from"] for stage in document["stages"]][4] == [0, 3]
    assert document["choices"]["stages"][0]["values"]["values"]["shape"] == [3, 4]
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert arrays["arrows"].tolist()[0] == [0, 1]
        np.testing.assert_array_equal(arrays["stage_5"], view.stages[5].values.values.astype(np.float32))


@pytest.mark.parametrize(
    ("view", "other"),
    [
        (timeline(), timeline(selected="")),
        (diagram(), diagram(selected=None)),
        (diagram(), diagram(arrows=diagram().arrows[:-1])),
    ],
    ids=["timeline", "diagram", "arrows"],
)
def test_the_picture_shows_what_is_chosen(view, other):
    pictures = [export_figure(each, provenance(notes=()), "svg") for each in (view, other)]
    bodies = [picture.split(b"</metadata>", 1)[1] for picture in pictures]
    assert bodies[0] != bodies[1]
    assert pictures[0] == export_figure(view, provenance(notes=()), "svg")


def test_the_pictures_hold_their_texts():
    svg = export_figure(timeline(), provenance(), "svg").decode()
    assert "1953" in svg
    assert "Mind &lt;b&gt;" in svg
    assert "Nothing" not in svg.split("</metadata>")[1]  # a theme without works has no lane
    svg = export_figure(diagram(), provenance(), "svg").decode()
    assert "3 × 4" in svg
    assert svg.count("<image") == 7


def test_the_pages_draw_with_the_components_of_the_app():
    for view, name in ((timeline(), "timeline"), (diagram(), "diagram")):
        page = figure_html(view, provenance()).decode()
        assert f'class="{name}"' in page
        assert refusal(view, "csv") is None
    assert len(timeline().entries) < CSV_ROWS
