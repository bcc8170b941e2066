"""One panel of an evidence board as a file of its own: the same numbers and colours, and a record about it alone."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from analysis.export import export_figure, figure_name, only, only_provenance, panel_name, read_provenance
from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords, TokenLabel
from dashboard import figures
from dashboard.evidence_payload import evidence_maps_payload
from dashboard.export_menu import WHOLE, file_bytes, file_name
from dashboard.provenance import evidence_provenance
from tests.sample_figures import labels

FORMATS = ("png", "svg", "csv", "npz", "json", "html")
PANELS = (
    EvidencePanel("CDAM", "elephant", True, 3.0, "Says.", "Not.", ("Left out: 5.0%.", "Shared.")),
    EvidencePanel(
        "CDAM", "=dog: <b>", True, 3.0, facts=("Shared.",), warning="It does not depend on the class."
    ),
    EvidencePanel("Relevance", "elephant", False, 0.5, facts=("Shared.",)),
    EvidencePanel("Attention rollout", "", False, 0.25, empty="Every score is 0."),
)


def maps(panels: tuple[EvidencePanel, ...] = PANELS, **changes: Any) -> EvidenceMaps:
    generator = np.random.default_rng(3)
    entries: dict[str, Any] = {
        "picture": generator.integers(0, 256, size=(40, 60, 3), dtype=np.uint8),
        "maps": generator.normal(size=(len(panels), 2, 3)).astype(np.float32),
        "panels": panels,
        "title": "Evidence for elephant (logit 5) and for dog (logit 2)",
    }
    return EvidenceMaps(**{**entries, **changes})


def words(panels: tuple[EvidencePanel, ...] = PANELS, **changes: Any) -> EvidenceWords:
    scores = np.random.default_rng(4).normal(size=(len(panels), len(labels()))).astype(np.float32)
    return EvidenceWords(**{"scores": scores, "tokens": labels(), "panels": panels, **changes})


def board_record(board: Any) -> Any:
    return evidence_provenance(board, "model", "1", "cat.jpg", ("the model's own note",), layers=12)


# The record ---------------------------------------------------------------------------------------------------------

texts = st.text(max_size=6)
some_panels = st.lists(
    st.builds(
        EvidencePanel,
        method=st.sampled_from(["CDAM", "GradCAM", "Rollout"]),
        target=st.sampled_from(["", "a", "b", "a: b", "for b"]),
        signed=st.booleans(),
        limit=st.floats(0.1, 9),
        facts=st.lists(texts, max_size=2).map(tuple),
        empty=texts,
        warning=texts,
    ),
    min_size=1,
    max_size=5,
    unique_by=panel_name,
).map(tuple)


@given(panels=some_panels, make=st.sampled_from([maps, words]), data=st.data())
def test_the_record_of_a_panel_is_that_of_a_board_of_it_alone(panels, make, data):
    board = make(panels)
    index = data.draw(st.integers(0, len(panels) - 1))
    part = only(board, index)
    assert part.panels == (panels[index],)
    told = only_provenance(board, board_record(board), index)
    assert told == board_record(part)


def test_a_panel_keeps_its_numbers_limit_and_every_switch():
    board = maps(positive=True, marked=(1, 2), opacity=0.4, smooth=True, grey=False)
    part = only(board, 1)
    np.testing.assert_array_equal(part.maps, board.maps[1:2])
    assert part.panels[0].limit == 3.0, "colours end where they end on the board"
    assert replace(part, maps=board.maps, panels=board.panels, title=board.title) == board
    np.testing.assert_array_equal(only(words(), 2).scores, words().scores[2:3])


def test_a_row_of_a_table_keeps_its_word_and_probability():
    table = words(predicted=tuple(TokenLabel(text, text) for text in "abcd"), probabilities=np.arange(4.0))
    part = only(table, 2)
    assert [label.text for label in part.predicted] == ["c"]
    assert part.probabilities is not None
    assert part.probabilities.tolist() == [2.0]


def test_the_title_is_the_boards_where_it_is_about_this_panel_alone():
    assert only(maps(), 1).title == "CDAM for =dog: <b>"
    assert only(maps(), 3).title == "Attention rollout"
    one_target = maps(PANELS[2:], title="Evidence for elephant (logit 5)")
    assert [only(one_target, place).title for place in (0, 1)] == [one_target.title, "Attention rollout"]


@pytest.mark.parametrize("index", [-1, 4])
def test_a_panel_that_is_not_there_is_refused(index):
    with pytest.raises(
        ValueError, match=f"only: index must be one of the 4 panels, counted from 0, but is {index}"
    ):
        only(maps(), index)
    with pytest.raises(ValueError, match="only: index must be"):
        only_provenance(words(), board_record(words()), index)


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [maps, words])
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_a_panel_holds_this_panel_alone(make, format):
    board = make()
    part, record = only(board, 1), only_provenance(board, board_record(board), 1)
    data = file_bytes(part, record, format)
    document = read_provenance(data, format)
    assert [panel["target"] for panel in document["choices"]["panels"]] == ["=dog: <b>"]
    assert document["provenance"]["method"] == "CDAM"
    assert document["provenance"]["notes"] == [
        "the model's own note",
        "CDAM for =dog: <b>: It does not depend on the class.",
        "CDAM for =dog: <b>: Shared.",
    ]
    assert b"Attention rollout" not in data


def test_the_table_of_a_panel_holds_its_scores():
    part = only(maps(), 2)
    text = export_figure(part, board_record(part), "csv").decode()
    rows = list(csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if line[:1] != "#"))))
    assert {row["method"] for row in rows} == {"Relevance"}
    assert np.array_equal(np.array([row["score"] for row in rows], np.float32), part.maps.ravel())


def test_the_picture_of_a_panel_is_larger_than_on_the_board():
    board = maps()
    whole, part = (export_figure(view, board_record(view), "png") for view in (board, only(board, 0)))
    sizes = [Image.open(io.BytesIO(data)).size for data in (whole, part)]
    # The panel takes less than the board's sheet, and more than its share of it.
    assert 0.25 * sizes[0][0] * sizes[0][1] < sizes[1][0] * sizes[1][1] < 1.5 * sizes[0][0] * sizes[0][1]


def test_names_tell_the_method_and_the_target():
    board = maps()
    assert figure_name(board, board_record(board)) == "model_evidence-maps"
    part = only(board, 1)
    assert (
        file_name(part, board_record(part), "png", name="vit") == "attnscope_vit_evidence-maps_CDAM_dog-b.png"
    )
    header, _ = figures.read_header(evidence_maps_payload(board))
    files = [panel["file"] for card in header["cards"] for panel in card["panels"]]
    assert files == [
        "attnscope_CDAM-for-elephant",
        "attnscope_CDAM-for-dog-b",
        "attnscope_Relevance-for-elephant",
        "attnscope_Attention-rollout",
    ]


# The menu -----------------------------------------------------------------------------------------------------------


def menu_of(board: Any) -> AppTest:
    """A page with nothing but the menu."""

    def page(board, record):  # its source is run elsewhere, without the imports above
        from dashboard.export_menu import export_menu

        export_menu(board, record, key="e", name="vit", query={"v": "1", "sample": "cat"})

    return run(page, board)


def choice_of(board: Any) -> AppTest:
    """A page with nothing but the choice of a part, which says what was chosen; ``fewer`` leaves two panels."""

    def page(board, record):  # its source is run elsewhere, without the imports above
        from dataclasses import replace

        import streamlit as st

        from dashboard.export_menu import chosen_part

        if "fewer" in st.session_state:
            board = replace(board, panels=board.panels[:2])
        part, told = chosen_part(board, record, key="e_part")
        st.text(f"{', '.join(f'{panel.method}|{panel.target}' for panel in part.panels)} as {told.method}")

    return run(page, board)


def run(page: Any, board: Any) -> AppTest:
    app = AppTest.from_function(page, args=(board, board_record(board)), default_timeout=30)
    app.run()
    assert not app.exception
    return app


@pytest.mark.parametrize("make", [maps, words])
def test_the_board_or_one_of_its_panels_is_exported(make):
    app = choice_of(make())
    box = app.selectbox(key="e_part")
    assert box.options == [WHOLE, *map(panel_name, PANELS)]
    assert box.value == WHOLE
    assert app.text[0].value.count("|") == 4
    box.set_value("Relevance for elephant").run()
    assert app.text[0].value == "Relevance|elephant as Relevance"
    app.session_state["fewer"] = True  # the method is taken off the board
    app.run()
    assert app.selectbox(key="e_part").value == WHOLE
    assert app.text[0].value.count("|") == 2


def test_classes_of_one_name_are_told_apart():
    app = choice_of(maps((PANELS[2], replace(PANELS[2], method="CDAM"), replace(PANELS[2], limit=9.0))))
    box = app.selectbox(key="e_part")
    assert box.options == [WHOLE, "Relevance for elephant", "CDAM for elephant", "Relevance for elephant′"]
    box.set_value("Relevance for elephant′").run()
    assert app.text[0].value == "Relevance|elephant as Relevance"


def test_the_menu_asks_only_where_there_are_parts():
    app = menu_of(maps())
    assert [box.key for box in app.selectbox] == ["e_part"]
    assert len(app.download_button) == 7
    table = words(predicted=tuple(TokenLabel(text, text) for text in "abcd"))
    for board in (maps(PANELS[:1]), table):
        assert not menu_of(board).selectbox
