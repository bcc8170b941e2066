"""Timelines and diagrams packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_lab import Diagram, Timeline
from analysis.visible import visible_text
from analysis.visible_evidence import evidence_colours
from analysis.visible_lab import matrix_limit
from analysis.visible_story import BREAK, arrow_ways, check_diagram, check_timeline, lanes, theme_colour
from dashboard.colour_maps import colour_table
from dashboard.figures import pack


def timeline_payload(view: Timeline) -> bytes:
    """What the ``timeline`` component draws.

    Raises:
        ValueError: if parts of the timeline do not belong together (``analysis.visible_story.check_timeline``).
    """
    check_timeline(view, "timeline_payload")
    header: dict[str, Any] = {
        "kind": "timeline",
        "title": visible_text(view.title),
        "lanes": [
            {"key": key, "name": visible_text(name), "colour": theme_colour(view, key)}
            for key, name in lanes(view)
        ],
        "entries": [_shown(asdict(entry)) for entry in view.entries],
        "break": BREAK,
        "notes": [visible_text(note) for note in view.notes],
        "input": timeline_digest(view),
        "state": {"entry": view.selected},
    }
    return pack(header, {})


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: visible_text(value) if isinstance(value, str) else value for name, value in entry.items()}


def timeline_digest(view: Timeline) -> str:
    """Short fingerprint of the entries that are shown."""
    return hashlib.blake2b(repr([entry.key for entry in view.entries]).encode(), digest_size=8).hexdigest()


def diagram_payload(view: Diagram, *, told: Sequence[Sequence[str]] = (), said: Sequence[str] = ()) -> bytes:
    """What the ``diagram`` component draws.

    Args:
        told: sentences of each stage about its numbers; () for none.
        said: sentences below.
    Raises:
        ValueError: if parts of the diagram do not belong together (``analysis.visible_story.check_diagram``), or
            there are sentences of another number of stages.
    """
    check_diagram(view, "diagram_payload")
    if told and len(told) != len(view.stages):
        raise ValueError(
            f"diagram_payload: told must be of {len(view.stages)} stages, or none, but is of {len(told)}."
        )
    stages = [
        {
            "name": visible_text(stage.name),
            "symbol": visible_text(stage.symbol),
            "formula": visible_text(stage.formula),
            "about": visible_text(stage.about),
            "parameter": visible_text(stage.parameter),
            "shape": visible_text(stage.shape),
            "axes": visible_text(stage.axes),
            "size": [int(size) for size in stage.values.values.shape],
            "rows": [visible_text(label) for label in stage.values.rows],
            "columns": [visible_text(label) for label in stage.values.columns],
            "axis_names": list(stage.values.axes),
            "scale": stage.values.scale,
            "limit": matrix_limit(stage.values),
            "row": stage.row,
            "place": list(stage.place),
            "told": [visible_text(sentence) for sentence in (told[index] if told else ())],
        }
        for index, stage in enumerate(view.stages)
    ]
    header: dict[str, Any] = {
        "kind": "diagram",
        "title": visible_text(view.title),
        "stages": stages,
        "arrows": [
            {
                "start": arrow.start,
                "stop": arrow.stop,
                "label": visible_text(arrow.label),
                "corners": [list(corner) for corner in way.corners],
                "at": list(way.label),
                "side": way.side,
            }
            for arrow, way in zip(view.arrows, arrow_ways(view), strict=True)
        ],
        "said": [visible_text(sentence) for sentence in said],
        "input": diagram_digest(view),
        "state": {"selected": view.selected},
    }
    values = [np.asarray(stage.values.values, dtype=np.float32).ravel() for stage in view.stages]
    arrays: dict[str, NDArray[Any]] = {
        "values": np.concatenate(values),
        "weights": colour_table("viridis"),
        "signed": evidence_colours(True),
    }
    return pack(header, arrays)


def diagram_digest(view: Diagram) -> str:
    """Short fingerprint of the boxes and arrows, whatever their numbers."""
    meaning = repr(([(stage.name, stage.place) for stage in view.stages], view.arrows))
    return hashlib.blake2b(meaning.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
