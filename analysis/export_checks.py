"""Checks of attention in data files: a contrast of distributions, a set of inputs, edits of heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import cells, column_name, csv_cell, numbers, strings, told
from analysis.figure_data import AttentionContrast, CheckedSet, HeadEffects, Provenance, TradeOff
from analysis.visible_checks import strongest_outputs, within_epsilon
from analysis.visible_contrast import prefix_names

Arrays = dict[str, NDArray[Any]]


# One input ----------------------------------------------------------------------------------------------------------


def contrast_rows(view: AttentionContrast, provenance: Provenance) -> Iterator[str]:
    """A row a candidate and position, with the highest outputs of the observed attention as columns."""
    outputs = strongest_outputs(view)
    first = ["candidate", "name", "jsd", "change", "within_epsilon"]
    last = [
        "index",
        *(("token",) if view.grid is None else ("prefix", "patch_row", "patch_column")),
        "weight",
    ]
    yield ",".join([*first, *_output_columns(view, outputs, taken={*first, *last}), *last])
    told_outputs = np.asarray(view.outputs)[:, outputs]
    places = [f"{index},{place}" for index, place in enumerate(_places(view))]
    distances = zip(numbers(view.jsd), numbers(view.change), within_epsilon(view).tolist(), strict=True)
    for candidate, (jsd, change, within) in enumerate(distances):
        known = [jsd, change, str(within).lower(), *numbers(told_outputs[candidate])]
        start = ",".join([str(candidate), csv_cell(view.names[candidate]), *known])
        for place, weight in zip(places, numbers(view.weights[candidate]), strict=True):
            yield f"{start},{place},{weight}"


def _output_columns(view: AttentionContrast, outputs: list[int], *, taken: set[str]) -> list[str]:
    """Labels as names of columns; one that is taken already has its index after it."""
    columns, taken = [], set(taken)
    for index in outputs:
        name = view.labels[index]
        while name in taken:
            name = f"{name} (output {index})"
        taken.add(name)
        columns.append(column_name(name))
    return columns


def _places(view: AttentionContrast) -> list[str]:
    """Token; or of a picture the name of a position that is no patch, else the patch's row and column."""
    if view.grid is None:
        return cells(view.tokens)
    rows, columns = view.grid
    patches = [f",{row},{column}" for row in range(rows) for column in range(columns)]
    return [f"{csv_cell(name)},," for name in prefix_names(view.prefix)] + patches


def contrast_arrays(view: AttentionContrast) -> Arrays:
    """Names of candidates and outputs."""
    return {"names": strings(view.names), "labels": strings(view.labels)}


def candidate_entries(view: AttentionContrast) -> list[dict[str, Any]]:
    """Everything that is known of each candidate but its weights."""
    outputs, within = strongest_outputs(view), within_epsilon(view).tolist()
    return [
        {
            "candidate": index,
            "name": name,
            "jsd": told(view.jsd[index]),
            "change": told(view.change[index]),
            "within_epsilon": within[index],
            "outputs": [
                {"label": view.labels[place], "value": told(view.outputs[index, place])} for place in outputs
            ],
        }
        for index, name in enumerate(view.names)
    ]


# A set of inputs ----------------------------------------------------------------------------------------------------


def checked_rows(view: CheckedSet, provenance: Provenance) -> Iterator[str]:
    """A row an input, a column a number with its key as name."""
    yield ",".join(["index", "input", "predicted", *(column_name(number.key) for number in view.numbers)])
    columns = [numbers(number.values) for number in view.numbers]
    classes = view.predicted.tolist()
    for index, name in enumerate(view.names):
        told_numbers = (values[index] for values in columns)
        yield ",".join([str(index), csv_cell(name), csv_cell(view.labels[classes[index]]), *told_numbers])


def set_arrays(view: CheckedSet) -> Arrays:
    """Texts, and ``number_values`` (k, n)."""
    values = [np.asarray(number.values, dtype=np.float32) for number in view.numbers]
    return {
        "names": strings(view.names),
        "labels": strings(view.labels),
        "number_keys": strings(number.key for number in view.numbers),
        "number_titles": strings(number.title for number in view.numbers),
        "number_values": np.array(values, dtype=np.float32).reshape(len(values), len(view.names)),
    }


def input_entries(view: CheckedSet) -> list[dict[str, Any]]:
    """Everything that is known of each input."""
    return [
        {
            "index": index,
            "input": name,
            "predicted": view.labels[view.predicted[index]],
            "numbers": {number.key: told(number.values[index]) for number in view.numbers},
        }
        for index, name in enumerate(view.names)
    ]


# Edits of heads -----------------------------------------------------------------------------------------------------


def _changes(view: HeadEffects) -> Iterator[tuple[int, int | None, int | None, Any]]:
    """(edit, layer, head, change): heads, then whole layers (no head), then all layers (neither)."""
    edits, layers, heads = view.heads.shape
    for edit in range(edits):
        for layer in range(layers):
            for head in range(heads):
                yield edit, layer, head, view.heads[edit, layer, head]
        for layer in range(layers):
            yield edit, layer, None, view.layers[edit, layer]
        yield edit, None, None, view.whole[edit]


def effect_rows(view: HeadEffects, provenance: Provenance) -> Iterator[str]:
    """A row a change; head is empty for a whole layer, and layer too for all layers."""
    yield "edit,layer,head,change"
    edits = [csv_cell(edit) for edit in view.edits]
    for edit, layer, head, change in _changes(view):
        places = ("" if place is None else str(place) for place in (layer, head))
        yield ",".join([edits[edit], *places, str(np.float32(change))])


def effect_arrays(view: HeadEffects) -> Arrays:
    """Titles of the edits."""
    return {"edits": strings(view.edits)}


def effect_entries(view: HeadEffects) -> list[dict[str, Any]]:
    """Every change; head is None for a whole layer, and layer too for all layers."""
    return [
        {"edit": view.edits[edit], "layer": layer, "head": head, "change": told(change)}
        for edit, layer, head, change in _changes(view)
    ]


# Trained models -----------------------------------------------------------------------------------------------------


def _trade_off_numbers(view: TradeOff) -> Arrays:
    """(n, 3) of each distance: the value, and both ends of its interval, NaN where there is none."""
    nothing = (np.nan, np.nan)
    return {
        name: np.array(
            [
                (getattr(point, name), *(getattr(point, f"{name}_interval") or nothing))
                for point in view.points
            ],
            dtype=np.float32,
        ).reshape(-1, 3)
        for name in ("tvd", "jsd")
    }


def trade_off_rows(view: TradeOff, provenance: Provenance) -> Iterator[str]:
    """A row a trained model."""
    yield "name,group,tvd,tvd_low,tvd_high,jsd,jsd_low,jsd_high"
    found = _trade_off_numbers(view)
    for index, point in enumerate(view.points):
        values = numbers(np.concatenate([found["tvd"][index], found["jsd"][index]]))
        yield ",".join([csv_cell(point.name), csv_cell(point.group), *values])


def trade_off_arrays(view: TradeOff) -> Arrays:
    """Names, groups, and (n, 3) of each distance."""
    names = {"names": strings(point.name for point in view.points)}
    return {**names, "groups": strings(point.group for point in view.points), **_trade_off_numbers(view)}
