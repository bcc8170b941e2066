"""Plotly chart of a sheet of curves; it follows the same rules as exported figures (``analysis.visible_lab``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import numbers
from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from analysis.visible import short_label, visible_text
from analysis.visible_lab import (
    across_ends,
    across_ticks,
    bar_places,
    check_curve_sheet,
    curve_colour,
    curve_dash,
    drawn_points,
    name_parts,
    up_ends,
    up_ticks,
)
from dashboard.charts import CHART_TEXT, GRID, PLAIN, blank_chart, literal, plain_axis

if TYPE_CHECKING:
    from dashboard.charts import Chart

PANEL_HEIGHT = 270
"""Pixels of one row of panels with its title and axes."""

PANEL_WIDTH = 400
"""Pixels that a panel has at least in the app, which shows at most two side by side in a narrow window."""

MARKED_POINTS = 40
"""Lines of at most this many points have a mark at each."""

TITLE_CHARACTERS, LEGEND_CHARACTERS = 60, 40
"""Titles of panels and names of curves are cut there."""


def curve_sheet_chart(view: CurveSheet, *, columns: int = 0) -> Chart:
    """Panels of curves with their intervals and marks; a curve of one name and colour stands in the legend once.

    Args:
        view: the sheet; its title and notes are the page's to show.
        columns: panels side by side, at most as many as there are; 0 for all of them.
    Raises:
        ValueError: if parts of the sheet do not belong together, or ``columns`` is below 0.
    """
    check_curve_sheet(view, "curve_sheet_chart")
    if columns < 0:
        raise ValueError(
            f"curve_sheet_chart: columns must be at least 0 but is {columns}; use 0 for all panels side by side."
        )
    count = len(view.panels)
    across = min(columns or count, count)
    rows = math.ceil(count / across)
    height = PANEL_HEIGHT * rows
    figure = blank_chart(
        rows=rows,
        cols=across,
        subplot_titles=[_text(short_label(panel.title, TITLE_CHARACTERS)) for panel in view.panels],
        horizontal_spacing=min(0.09, 0.3 / across),
        vertical_spacing=78 / height if rows > 1 else 0.0,
    )
    figure.update_annotations(font={"size": 12, "color": CHART_TEXT})  # titles
    legend: set[tuple[str, str]] = set()
    for index, panel in enumerate(view.panels):
        _add_panel(figure, panel, {"row": index // across + 1, "col": index % across + 1}, legend)
    lines = _legend_lines([name for name, _ in legend], across)
    return figure.update_layout(
        **{**PLAIN, "margin": {"l": 8, "r": 8, "t": 34 + 20 * lines, "b": 8}},
        height=height + 20 * lines,
        showlegend=lines > 0,
        barmode="overlay",
        legend_orientation="h",
        legend_traceorder="normal",
        legend_x=0,
        legend_y=1,
        legend_yref="container",
        legend_yanchor="top",
    )


def _legend_lines(names: Sequence[str], columns: int) -> int:
    """About how many lines a legend of these names takes above so many panels; none of one curve alone."""
    if len(names) < 2:
        return 0
    width = sum(60 + 7 * min(len(name), LEGEND_CHARACTERS) for name in names)
    lines = math.ceil(width / (PANEL_WIDTH * columns))
    return lines + (columns == 1 and lines > 1)  # a panel alone may stand in a narrow column, a name a line


def _add_panel(figure: Chart, panel: CurvePanel, place: dict[str, int], legend: set[tuple[str, str]]) -> None:
    for index, curve in enumerate(panel.curves):
        colour = curve_colour(panel, index)
        told = (curve.name, colour)
        common: dict[str, Any] = {"legendgroup": f"{_text(curve.name)} {colour}", **place}
        if curve.style not in ("bars", "points"):
            _add_band(figure, panel, curve, colour, common)
        name = _text(short_label(curve.name, LEGEND_CHARACTERS))
        _add_curve(figure, panel, index, {**common, "name": name, "showlegend": told not in legend})
        legend.add(told)
    if panel.mark is not None:
        figure.add_vline(x=panel.mark, line={"color": CHART_TEXT, "width": 1.4, "dash": "dot"}, **place)
    across = _axis(panel.x_title, across_ends(panel), across_ticks(panel), log=panel.log_x)
    numeric = not any(curve.labels for curve in panel.curves)
    figure.update_xaxes(**across, showgrid=numeric, zeroline=numeric, **place)
    figure.update_yaxes(**_axis(panel.y_title, up_ends(panel), up_ticks(panel), log=panel.log_y), **place)


def _add_curve(figure: Chart, panel: CurvePanel, index: int, common: dict[str, Any]) -> None:
    """One series; what cannot be drawn is a gap, and every point tells its exact numbers."""
    curve, colour = panel.curves[index], curve_colour(panel, index)
    x = np.asarray(curve.x, dtype=np.float64)
    y = np.where(drawn_points(curve, panel), np.asarray(curve.y, dtype=np.float64), np.nan)
    told: dict[str, Any] = {
        "customdata": _told(curve, panel.x_title),
        "hovertemplate": (
            "%{customdata[0]}<br>%{customdata[1]}<br><b>%{customdata[2]}</b>%{customdata[3]}<extra></extra>"
        ),
    }
    if curve.style in ("bars", "points"):
        told["error_y"] = _whiskers(curve, colour)
    if curve.style == "bars":
        offset, width = bar_places(panel)[index]
        line = {"width": 0}
        figure.add_bar(
            x=x + offset, y=y, width=width, marker={"color": colour, "line": line}, **told, **common
        )
        return
    marked = curve.style == "line" and len(x) <= MARKED_POINTS
    mode = "markers" if curve.style == "points" else "lines+markers" if marked else "lines"
    figure.add_scatter(
        x=x,
        y=y,
        mode=mode,
        line={"color": colour, "dash": curve_dash(panel, index), "width": 2},
        marker={"color": colour, "size": 7 if curve.style == "points" else 4.5},
        connectgaps=False,
        **told,
        **common,
    )


def _add_band(figure: Chart, panel: CurvePanel, curve: Curve, colour: str, common: dict[str, Any]) -> None:
    """The interval around a line, a piece for each run of points that have one."""
    if curve.low is None or curve.high is None:
        return
    for run in _runs(drawn_points(curve, panel) & np.isfinite(curve.low) & np.isfinite(curve.high)):
        x, low, high = (np.asarray(part, dtype=np.float64)[run] for part in (curve.x, curve.low, curve.high))
        if panel.log_y:
            low = np.maximum(low, up_ends(panel)[0])  # an end that is not above 0 is below every axis
        figure.add_scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([high, low[::-1]]),
            mode="lines",
            line={"width": 0, "color": colour},
            fill="toself",
            fillcolor="rgba({}, {}, {}, 0.18)".format(*(int(colour[at : at + 2], 16) for at in (1, 3, 5))),
            hoverinfo="skip",
            showlegend=False,
            **common,
        )


def _runs(kept: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Indices of each run of neighbours that are true."""
    places = np.flatnonzero(kept)
    if not places.size:
        return []
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def _whiskers(curve: Curve, colour: str) -> dict[str, Any] | None:
    if curve.low is None or curve.high is None:
        return None
    y = np.asarray(curve.y, dtype=np.float64)
    return {
        "type": "data",
        "symmetric": False,
        "array": np.nan_to_num(np.asarray(curve.high, dtype=np.float64) - y),
        "arrayminus": np.nan_to_num(y - np.asarray(curve.low, dtype=np.float64)),
        "color": CHART_TEXT if curve.style == "bars" else colour,
        "thickness": 1.2,
        "width": 4,
    }


def _told(curve: Curve, across: str) -> list[list[str]]:
    """Name, place across, exact y and interval of each point; a template would read ``%{`` in a name, data do not."""
    name, heading = _text(curve.name), "" if curve.labels else f"{_text(across) or 'x'} "
    places = [_text(label) for label in curve.labels] or _exact(curve.x)
    intervals = [""] * len(places)
    if curve.low is not None and curve.high is not None:
        ends = zip(_exact(curve.low), _exact(curve.high), strict=True)
        intervals = ["" if "nan" in (low, high) else f" ({low} to {high})" for low, high in ends]
    points = zip(places, _exact(curve.y), intervals, strict=True)
    return [[name, f"{heading}{place}", value, interval] for place, value, interval in points]


def _exact(values: NDArray[np.floating]) -> list[str]:
    return [text.removesuffix(".0").replace("-", "−") for text in numbers(values)]


def _axis(
    title: str, ends: tuple[float, float], ticks: tuple[tuple[float, str], ...], *, log: bool
) -> dict[str, Any]:
    axis = plain_axis("")
    axis["title"] = {"text": _text(title), "font": {"size": 11}, "standoff": 6}
    return {
        **axis,
        "type": "log" if log else "linear",
        "range": [math.log10(end) for end in ends] if log else list(ends),
        "tickmode": "array",
        "tickvals": [place for place, _ in ticks],
        "ticktext": [_text(short_label(text)) for _, text in ticks],
        "gridcolor": GRID,
    }


def _text(text: str) -> str:
    """A text as Plotly can show it, its subscripts set lower."""
    return "".join(
        f"<sub>{literal(part)}</sub>" if below else literal(part)
        for part, below in name_parts(visible_text(text))
    )
