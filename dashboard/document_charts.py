"""A whole document as a strip of bars: where its scores lie, and which part of it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figure_data import Floats
from analysis.visible_evidence import AGAINST, FOR, UNSIGNED
from dashboard.charts import CHART_FONT, CHART_TEXT, blank_chart

if TYPE_CHECKING:
    from dashboard.charts import Chart

STRIP_BARS = 160
"""Most bars of the strip."""


def strip_bounds(length: int, bars: int = STRIP_BARS) -> list[tuple[int, int]]:
    """First and one after the last of each bar's positions: all of them, each once."""
    count = min(bars, length)
    return [(i * length // count, (i + 1) * length // count) for i in range(count)]


def document_strip(scores: Floats, *, shown: slice, signed: bool, unit: str, direction: str = "ltr") -> Chart:
    """Sums of scores along a document, those for and against apart; what is shown stands on a shade.

    Args:
        scores: (N,) one a position.
        shown: positions of the part that is laid out.
        unit: what a position is called, such as "token".
    """
    bounds = strip_bounds(len(scores))
    exact = np.asarray(scores, dtype=np.float64)
    above = np.array([np.clip(exact[low:high], 0, None).sum() for low, high in bounds])
    below = np.array([np.clip(exact[low:high], None, 0).sum() for low, high in bounds])
    middles = [(low + high - 1) / 2 for low, high in bounds]
    spans = [f"{unit}s {low:,}–{high - 1:,}" for low, high in bounds]
    figure = blank_chart()
    for values, colour in ((above, FOR if signed else UNSIGNED), (below, AGAINST)):
        if signed or values is above:
            figure.add_bar(
                x=middles,
                y=values,
                width=[high - low for low, high in bounds],  # Plotly's own is the narrowest, and leaves gaps
                customdata=spans,
                marker={"color": "rgb({},{},{})".format(*colour), "line": {"width": 0}},
                hovertemplate="%{customdata}<br><b>%{y:.4~g}</b><extra></extra>",
                showlegend=False,
            )
    axis: dict[str, Any] = {"showgrid": False, "zeroline": False, "automargin": True, "tickformat": ",d"}
    edges = [-0.5, len(exact) - 0.5]
    figure.add_vrect(
        x0=shown.start - 0.5,
        x1=shown.stop - 0.5,
        fillcolor="rgba(127, 134, 143, 0.25)",
        line_width=0,
        layer="below",
    )
    figure.update_layout(
        margin={"l": 8, "r": 8, "t": 6, "b": 6},
        height=92,
        barmode="relative",
        bargap=0.0,
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": CHART_TEXT, "size": 12, "family": CHART_FONT},
        hoverlabel={"font": {"size": 12}},
        dragmode=False,
        clickmode="event+select",
        xaxis={**axis, "range": edges if direction == "ltr" else edges[::-1]},
        yaxis={"visible": False, "fixedrange": True},
    )
    figure.update_xaxes(fixedrange=True)
    figure.update_traces(unselected={"marker": {"opacity": 1.0}}, selected={"marker": {"opacity": 1.0}})
    return figure
