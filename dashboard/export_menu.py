"""The Export popover that every view has: pictures, an interactive page, numbers, settings and link of what is shown.

Files are built when they are asked for, on a thread of their own, and not kept here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, cast

import streamlit as st

from analysis.export import (
    MEDIA_TYPES,
    PICTURE_FORMATS,
    EvidenceBoard,
    ExportFormat,
    export_figure,
    figure_name,
    only,
    only_provenance,
    panel_name,
    refusal,
    safe_name,
)
from analysis.figure_data import EvidenceWords, Figure, Floats, HeadView, Provenance
from dashboard.components import page_link
from dashboard.selection import LINK_TEXT_CHARACTERS
from dashboard.sources import ALL_LAYERS_TOKENS

EveryLayer = Callable[[], Floats]


@dataclass(frozen=True)
class Entry:
    """One kind of file in the menu."""

    format: str
    label: str
    help: str


SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    (
        "Figure",
        (
            Entry("png", "PNG", "Picture at 200 dots per inch"),
            Entry("svg", "SVG", "Vector graphic; text stays text"),
            Entry("pdf", "PDF", "Vector graphic for documents"),
        ),
    ),
    ("Interactive", (Entry("html", "HTML", "This view as one page that works offline"),)),
    (
        "Data",
        (
            Entry("csv", "CSV", "The numbers that are shown, one row each"),
            Entry("npz", "NPZ", "All exact float32 arrays, for NumPy"),
        ),
    ),
    ("Settings", (Entry("json", "JSON", "Model, input and every choice, without the numbers"),)),
)
"""What the menu offers, in order."""


PAGE_BYTES = 75_000
"""Size of an HTML file of a head view without its weights."""

WHOLE = "Whole board"
"""What the menu exports of an evidence board unless one of its panels is chosen."""


def export_menu(
    figure: Figure,
    provenance: Provenance,
    *,
    key: str,
    name: str,
    query: Mapping[str, str],
    every_layer: EveryLayer | None = None,
) -> None:
    """Show the Export popover for what is on the screen.

    Args:
        figure: the record that the view has drawn.
        provenance: written inside every file.
        key: of the popover; its buttons have ``<key>_<format>``.
        name: short name of the model for the files' names, such as "minilm".
        query: parameters of the address that reopens the view (``dashboard.selection.to_query``).
        every_layer: gives (L, H, Q, K) weights of every layer of a head view for its HTML file; None for the layer
            of the figure alone.
    """
    problems: list[str] = []
    with st.popover("Export", icon=":material/download:", key=key, help="Save what this view shows"):
        if _has_parts(figure):
            figure, provenance = chosen_part(figure, provenance, key=f"{key}_part")
        for section, entries in SECTIONS:
            st.caption(section)
            with st.container(horizontal=True, gap="small"):
                for entry in entries:
                    reason = export_problem(figure, entry.format)
                    if reason is not None and reason not in problems:
                        problems.append(reason)
                    st.download_button(
                        entry.label,
                        data=partial(file_bytes, figure, provenance, entry.format, every_layer),
                        file_name=file_name(figure, provenance, entry.format, name=name),
                        mime=MEDIA_TYPES[entry.format],
                        key=f"{key}_{entry.format}",
                        help=entry.help,
                        on_click="ignore",
                        disabled=reason is not None,
                        width=76,
                    )
            if section == "Interactive" and isinstance(figure, HeadView) and figure.layers > 1:
                st.caption(layers_in_words(figure, whole=every_layer is not None))
        for problem in problems:
            st.caption(problem[:1].upper() + problem[1:])
        st.caption("Model, input and settings are stored inside each file.")
        st.caption("Link")
        page_link(query, key=f"{key}_link")
        st.caption(link_in_words(query))


def _has_parts(figure: Figure) -> TypeGuard[EvidenceBoard]:
    """Whether it is a board of several maps or texts, each of which can be a file; a table is one."""
    table = isinstance(figure, EvidenceWords) and bool(figure.predicted)
    return isinstance(figure, EvidenceBoard) and len(figure.panels) > 1 and not table


def chosen_part(
    board: EvidenceBoard, provenance: Provenance, *, key: str
) -> tuple[EvidenceBoard, Provenance]:
    """The whole board, or the one panel of it that the user chooses, with its record."""
    titles = [panel_name(panel) for panel in board.panels]
    # Two classes of a model may share a name.
    names = [title + "′" * titles[:place].count(title) for place, title in enumerate(titles)]
    if st.session_state.get(key) not in names:
        st.session_state[key] = WHOLE
    st.selectbox(
        "What to export", [WHOLE, *names], key=key, help="The whole board, or one of its panels alone"
    )
    chosen = st.session_state[key]
    if chosen == WHOLE:
        return board, provenance
    place = names.index(chosen)
    return only(board, place), only_provenance(board, provenance, place)


def layers_in_words(view: HeadView, *, whole: bool) -> str:
    """Which layers the HTML file of a head view holds, and how large it is."""
    if not whole:
        return f"HTML holds layer {view.layer} alone; up to {ALL_LAYERS_TOKENS} tokens, all layers go in."
    size = PAGE_BYTES + view.layers * view.weights.size * 4 / 3  # a byte a weight, as base64
    return f"HTML holds all {view.layers} layers to step through, {size / 1e6:.1f} MB."


def link_in_words(query: Mapping[str, str]) -> str:
    """What the link of a view holds, and that it cannot hold the input where it does not."""
    if "sample" in query or "t" in query:
        return "Holds model, input, view, layer and heads; not zoom, filters or colours."
    if "model" not in query:  # of the Lab and Scale pages
        return "Holds what is chosen on this page, not what was computed or measured."
    return (
        "Holds model, view, layer and heads, but not this input: a file, or a text of more than "
        f"{LINK_TEXT_CHARACTERS} characters, stays here. The link opens on a sample."
    )


def export_problem(figure: Figure, format: str) -> str | None:
    """Why a file of this kind cannot be made, in a sentence; None when it can."""
    if format in PICTURE_FORMATS and importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed; install it to export pictures, or take HTML."
    return refusal(figure, format)


def file_bytes(
    figure: Figure, provenance: Provenance, format: str, every_layer: EveryLayer | None = None
) -> bytes:
    """The file's content; ``every_layer`` goes into an HTML file alone."""
    if format == "html":
        from dashboard.standalone import figure_html  # reads components' sources: the first paint need not

        return figure_html(figure, provenance, all_layers=every_layer() if every_layer else None)
    return export_figure(figure, provenance, cast(ExportFormat, format))


def file_name(figure: Figure, provenance: Provenance, format: str, *, name: str) -> str:
    """A name that tells what is inside, such as ``attnscope_minilm_head-view_L3_H5.png``."""
    stem = figure_name(figure, provenance, model=safe_name(name).removeprefix("attnscope").lstrip("-_"))
    return f"attnscope_{stem}.{format}"
