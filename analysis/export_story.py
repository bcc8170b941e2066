"""Timelines and diagrams in data files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import csv_cell, strings
from analysis.figure_data import Provenance
from analysis.figure_lab import Diagram, Timeline, TimelineEntry

Arrays = dict[str, NDArray[Any]]

_COLUMNS = tuple(item.name for item in fields(TimelineEntry))


# Timelines ----------------------------------------------------------------------------------------------------------


def timeline_rows(view: Timeline, provenance: Provenance) -> Iterator[str]:
    """A row a work."""
    yield ",".join(_COLUMNS)
    for entry in view.entries:
        yield ",".join(_cell(getattr(entry, name)) for name in _COLUMNS)


def _cell(value: str | int | bool) -> str:
    return csv_cell(value) if isinstance(value, str) else str(value).lower()


def timeline_arrays(view: Timeline) -> Arrays:
    """Each column of the works under its name."""
    columns = {name: [getattr(entry, name) for entry in view.entries] for name in _COLUMNS}
    return {
        name: strings(values) if isinstance(values[0], str) else np.array(values)
        for name, values in columns.items()
    }


def timeline_entries(view: Timeline) -> list[dict[str, Any]]:
    """Everything that is known of each work."""
    return [asdict(entry) for entry in view.entries]


# Diagrams -----------------------------------------------------------------------------------------------------------

_TOLD = ("name", "symbol", "formula", "about", "parameter", "shape", "axes")


def _sources(view: Diagram) -> list[list[int]]:
    """Of each stage those that it is made from."""
    return [
        [arrow.start for arrow in view.arrows if arrow.stop == index] for index in range(len(view.stages))
    ]


def diagram_rows(view: Diagram, provenance: Provenance) -> Iterator[str]:
    """A row a stage; those that it is made from by their indices."""
    yield ",".join(["stage", *_TOLD, "made_from"])
    for index, (stage, sources) in enumerate(zip(view.stages, _sources(view), strict=True)):
        told = (csv_cell(getattr(stage, name)) for name in _TOLD)
        yield ",".join([str(index), *told, csv_cell(" ".join(map(str, sources)))])


def diagram_arrays(view: Diagram) -> Arrays:
    """``names``, and of stage i its numbers ``stage_i``; of arrows (n, 2) stages and their labels."""
    arrays: Arrays = {
        "names": strings(stage.name for stage in view.stages),
        "arrows": np.array([[arrow.start, arrow.stop] for arrow in view.arrows], dtype=np.int64).reshape(
            -1, 2
        ),
        "arrow_labels": strings(arrow.label for arrow in view.arrows),
    }
    for index, stage in enumerate(view.stages):
        arrays[f"stage_{index}"] = np.asarray(stage.values.values, dtype=np.float32)
    return arrays


def diagram_entries(view: Diagram) -> list[dict[str, Any]]:
    """Everything that is known of each stage but its numbers."""
    return [
        {"stage": index, **{name: getattr(stage, name) for name in _TOLD}, "made_from": sources}
        for index, (stage, sources) in enumerate(zip(view.stages, _sources(view), strict=True))
    ]
