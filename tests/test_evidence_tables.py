"""The script of the tables in docs/methods: rows are kept, a stopped run goes on, the tables say what is in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from analysis.evidence.explanation import Explanation
from analysis.inputs import PatchGrid
from scripts import evidence_tables
from tests.test_evidence_views import classifier

CLASSES = ("elephant", "dalmatian", "cup")


@pytest.fixture
def folder(tmp_path):
    """Three classes with a photograph each."""
    random = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        pixels = random.integers(0, 256, size=(40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "test" / name / "image_0001.jpg")
    return tmp_path / "test"


def plain(text):
    """Rows without the times, which differ between runs."""
    found = [row for line in text.splitlines() for row in json.loads(line)]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


def run(folder, table, rows, *methods, items=2):
    given = [str(folder), table, "--rows", str(rows), "--items", str(items), "--methods", *methods]
    evidence_tables.main(given)


@classifier
def test_a_stopped_run_goes_on_and_computes_nothing_twice(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evidence_tables, "SIDE", 28)
    rows = tmp_path / "rows.jsonl"
    run(folder, "pointing", rows, "cdam", "attention")
    whole = rows.read_text()
    assert len(evidence_tables.read_rows(rows)) == 2 * 2 * 2, "collages, classes, methods"
    first = whole.splitlines(keepends=True)[0]
    rows.write_text(first + '[{"item": 1, "meth')  # cut off while the second collage was written
    capsys.readouterr()
    run(folder, "pointing", rows, "cdam", "attention")
    printed = capsys.readouterr().out
    assert "1:" not in printed
    assert "2: cdam, attention" in printed

    assert plain(rows.read_text()) == plain(whole)
    monkeypatch.setattr(
        evidence_tables, "load_model", lambda *_, **__: pytest.fail("nothing is to be computed")
    )
    evidence_tables.main([str(folder), "pointing", "--rows", str(rows), "--print"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[3] for line in lines[2:]] == ["4", "4"]


@classifier
def test_faithfulness_of_each_method_shares_its_random_orders(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evidence_tables, "SIDE", 28)
    asked = []
    curves = evidence_tables.random_curves
    monkeypatch.setattr(evidence_tables, "random_curves", lambda *given: (asked.append(1), curves(*given))[1])
    run(folder, "faithfulness", tmp_path / "rows.jsonl", "cdam", "leave_one_out")
    assert len(asked) == 2, "once a photograph"
    table = capsys.readouterr().out.splitlines()[-2:]
    assert {line.split(" | ")[0] for line in table} == {"| CDAM", "| Leave one out"}
    assert all("of 2 |" in line for line in table)


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_map_points_to_its_half(across, second):
    import torch

    scores = torch.zeros(2, 4) if across else torch.zeros(4, 2)
    place = (1, 3 if second else 0) if across else (3 if second else 0, 1)
    scores[place] = 2.0
    scores.flatten()[scores.flatten() == 0] = -1.0
    grid = PatchGrid(*scores.shape, patch=14, prefix_tokens=1, height=14, width=14)
    found = Explanation("cdam", "x", scores.flatten(), torch.arange(8), True, grid)
    assert evidence_tables.in_half(found, second=second, across=across) == (True, True)
    assert evidence_tables.in_half(found, second=not second, across=across) == (False, False)
