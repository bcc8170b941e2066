"""Interactive charts drawn by Plotly; the one file that imports it.

Colours are set explicitly (map, limits, text), so that no theme replaces them, and the background is transparent, so
that one chart serves the light and the dark theme.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import HEAD_COLOURS, EvidenceWords, HeadGrid, HeadStatistic, TokenScores
from analysis.visible import above_scale, score_limits, short_label, visible_text
from analysis.visible_evidence import AGAINST, FOR, UNSIGNED, drawn_scores
from analysis.visible_heads import grid_colour
from dashboard.colour_maps import colour_table

if TYPE_CHECKING:
    from typing import TypeAlias

    import plotly.graph_objects as go

    from analysis.evidence.faithfulness import Faithfulness, Side
    from analysis.evidence.sanity import ModelSensitivity

    Chart: TypeAlias = go.Figure

CHART_TEXT = "#7f868f"
"""Text and lines: a grey with a contrast of at least 3.6 : 1 on the light and on the dark background."""

CHART_FONT = '"Source Sans", "Source Sans Pro", sans-serif'
"""The font of the page around the chart."""

LABELLED_BARS = 80
"""Charts with more bars than this number their axis instead of naming every token."""

SCALE_STEPS = 32
"""Colours that Plotly gets of a colour map; it interpolates between them."""


BEYOND_ROOM = 1.1
"""Height of the axis, in units of the scale, where bars are cut at its end and their values stand above them."""


def blank_chart(**grid: Any) -> Chart:
    """An empty chart, or one of several parts (options of Plotly's ``make_subplots``), for charts in other files."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    return make_subplots(**grid) if grid else go.Figure()


def token_scores_chart(view: TokenScores, *, labelled: int = LABELLED_BARS) -> go.Figure:
    """Bars of token scores, coloured as the text above them is, as high as their frame.

    Bars above the end of the colour scale are cut there, hatched, and named with their value.

    Args:
        view: one score a token; the source token's bar is outlined.
        labelled: most bars that are named with their token.
    """
    import plotly.graph_objects as go  # here: the first page is painted without it

    names = [literal(short_label(token.text)) for token in view.tokens]
    full = [literal(visible_text(token.text)) for token in view.tokens]
    places = list(range(len(names)))
    exact = np.asarray(view.scores, dtype=np.float64)
    limits = score_limits(view)
    beyond = above_scale(view.scores, limits)
    bars = go.Bar(
        x=places,
        y=np.where(beyond, limits[1], exact),
        customdata=np.array([full, names, exact], dtype=object).T,
        marker=_marker(view, beyond),
        hovertemplate="token %{x} “%{customdata[0]}”<br><b>%{customdata[2]:.6~g}</b><extra></extra>",
    )
    figure = go.Figure(bars)
    axis: dict[str, Any] = {
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "range": [-0.6, len(names) - 0.4] if view.direction == "ltr" else [len(names) - 0.4, -0.6],
    }
    if len(names) <= labelled:
        axis |= {
            "tickmode": "array",
            "tickvals": places,
            "ticktext": names,
            "tickangle": -50 if len(names) > 8 else 0,
        }
    else:
        axis |= {"title": {"text": "token"}}
    line = "rgba(127, 134, 143, 0.28)"
    figure.update_layout(
        margin={"l": 8, "r": 8, "t": 30, "b": 8},
        modebar={"bgcolor": "rgba(0, 0, 0, 0)", "color": CHART_TEXT},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": CHART_TEXT, "size": 12, "family": CHART_FONT},
        hoverlabel={"font": {"size": 12}},
        bargap=0.18,
        xaxis=axis,
        yaxis={
            "title": {"text": literal(view.unit), "font": {"size": 11}},
            "gridcolor": line,
            "zerolinecolor": line,
            "automargin": True,
        }
        | ({"range": [min(limits[0], 0.0), limits[1] * BEYOND_ROOM]} if beyond.any() else {}),
        dragmode="zoom",
    )
    for place in np.flatnonzero(beyond).tolist() if beyond.sum() <= labelled else []:
        inward = "left" if (place < len(names) / 2) == (view.direction == "ltr") else "right"
        text = f"{exact[place]:.3g} ↑"
        figure.add_annotation(
            x=place, y=limits[1], text=text, showarrow=False, xanchor=inward, yanchor="bottom", yshift=2
        )
    return figure


STRONGEST = 8
"""Words that a chart of evidence names for each method."""


def strongest_words_chart(view: EvidenceWords, index: int, *, count: int = STRONGEST) -> go.Figure:
    """The strongest words of one panel by raw score, the strongest on top; red for, blue against, violet no sign.

    Args:
        view: the scores; only what is for the target is drawn where only the positive is.
        index: of the panel.
        count: most words.
    """
    import plotly.graph_objects as go

    panel = view.panels[index]
    scores = panel.limit * drawn_scores(view.scores[index], panel, positive=view.positive)
    order = np.argsort(-np.abs(scores), kind="stable")[:count][::-1]  # a category axis starts below
    hues = [UNSIGNED if not panel.signed else FOR if score >= 0 else AGAINST for score in scores[order]]
    full = [literal(visible_text(view.tokens[label].text)) for label in order]
    several = len({other.target for other in view.panels if other.target}) > 1
    name = f"{panel.method} · {panel.target}" if several and panel.target else panel.method
    line = "rgba(127, 134, 143, 0.28)"
    bars = go.Bar(
        x=scores[order],
        y=list(range(len(order))),
        orientation="h",
        marker={"color": ["rgb({}, {}, {})".format(*hue) for hue in hues]},
        customdata=np.array(list(zip(full, order.tolist(), strict=True)), dtype=object),
        hovertemplate="%{customdata[1]} “%{customdata[0]}”<br><b>%{x:.6~g}</b><extra></extra>",
    )
    return go.Figure(bars).update_layout(
        title={
            "text": literal(short_label(name, 36)),
            "font": {"size": 12},
            "x": 0,
            "xref": "container",
            "y": 0.98,
        },
        height=52 + 21 * len(order),
        margin={"l": 4, "r": 6, "t": 24, "b": 4},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": CHART_TEXT, "size": 12, "family": CHART_FONT},
        bargap=0.28,
        dragmode=False,
        xaxis={"gridcolor": line, "zerolinecolor": CHART_TEXT, "nticks": 5, "tickfont": {"size": 11}},
        yaxis={
            "showgrid": False,
            "automargin": True,
            "tickmode": "array",
            "tickvals": list(range(len(order))),
            "ticktext": [f"{literal(name)} " for name in _told_apart(view, order)],
        },
    )


def _told_apart(view: EvidenceWords, order: NDArray[np.intp]) -> list[str]:
    """Names of some words, with their place in the text where the same word is among them again."""
    names = [short_label(view.tokens[label].text) for label in order]
    return [
        name if names.count(name) == 1 else f"{view.start + label:,} {name}"
        for name, label in zip(names, order.tolist(), strict=True)
    ]


# How far to trust maps ---------------------------------------------------------------------------------------------


def faithfulness_chart(names: Sequence[str], found: Sequence[Faithfulness], target: str) -> go.Figure:
    """Deletion and insertion side by side, a line a map, with the range of random orders behind them.

    Args:
        names: of the maps, in the order of ``found``, all of one target.
        target: what falls and rises.
    """
    from plotly.subplots import make_subplots

    sides: tuple[Side, ...] = ("deletion", "insertion")
    figure = make_subplots(
        cols=2,
        rows=1,
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=("Deletion: strongest taken away first", "Insertion: strongest given first"),
    )
    for column, side in enumerate(sides, start=1):
        curves = getattr(found[0].chance, side)
        shares, values = curves[0].shares, np.stack([curve.values for curve in curves])
        grey = {"mode": "lines", "legendgroup": "random", "hoverinfo": "skip"}
        edge = {"width": 0}
        figure.add_scatter(x=shares, y=values.min(0), line=edge, showlegend=False, row=1, col=column, **grey)
        figure.add_scatter(
            x=shares, y=values.max(0), line=edge, showlegend=False, fill="tonexty",
            fillcolor="rgba(127, 134, 143, 0.22)", row=1, col=column, **grey,
        )  # fmt: skip
        figure.add_scatter(
            x=shares, y=values.mean(0), line={"color": CHART_TEXT, "dash": "dot", "width": 1.5},
            name=f"{len(curves)} random orders", showlegend=column == 1, row=1, col=column, **grey,
        )  # fmt: skip
        for index, (name, each) in enumerate(zip(names, found, strict=True)):
            curve = getattr(each, side)
            figure.add_scatter(
                x=curve.shares,
                y=curve.values,
                mode="lines",
                line=_line_style(index),
                name=literal(name),
                legendgroup=name,
                showlegend=column == 1,
                hovertemplate=f"{literal(name)}<br>%{{x:.0%}}: <b>%{{y:.4~g}}</b><extra></extra>",
                row=1,
                col=column,
            )
    axis = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "tickformat": ".0%",
        "range": [0, 1],
        "automargin": True,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_annotations(font={"size": 12, "color": CHART_TEXT})
    return figure.update_layout(
        **PLAIN,
        width=900,
        height=320,
        yaxis_title={"text": literal(short_label(target, 40)), "font": {"size": 11}},
    )


def cascade_chart(names: Sequence[str], found: Sequence[ModelSensitivity]) -> go.Figure:
    """How alike maps stay while the weights become random, from the head down; a line a method."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, each) in enumerate(zip(names, found, strict=True)):
        parts = ["none", *(_short_part(stage.part) for stage in each.stages[1:])]
        figure.add_scatter(
            x=[literal(part) for part in parts],
            y=[stage.correlation for stage in each.stages],
            mode="lines+markers",
            line=_line_style(index),
            marker={"size": 5},
            name=literal(name),
            hovertemplate=f"{literal(name)}<br>%{{x}}: <b>%{{y:.2f}}</b><extra></extra>",
        )
    return figure.update_layout(
        **PLAIN,
        width=900,
        height=340,
        xaxis={
            "title": {"text": "random down to", "font": {"size": 11}},
            "gridcolor": GRID,
            "automargin": True,
        },
        yaxis={
            "title": {"text": "rank correlation with the true map", "font": {"size": 11}},
            "range": [-1.05, 1.05],
            "automargin": True,
            "gridcolor": GRID,
            "zerolinecolor": CHART_TEXT,
        },
    )


def _short_part(name: str) -> str:
    """A part of a model by the end of its name, such as "layer.5"."""
    parts = name.split(".")
    return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


# Heads --------------------------------------------------------------------------------------------------------------

HEAD_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")
"""Of the classes in turn, so that colour never tells alone."""


def _by_class(grid: HeadGrid, places: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Indices of heads by the index of their class."""
    found: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        found.setdefault(int(grid.best[place]), []).append(index)
    return dict(sorted(found.items()))


def _every_head(grid: HeadGrid) -> list[tuple[int, int]]:
    layers, heads = grid.best.shape
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def _head_in_words(grid: HeadGrid, place: tuple[int, int]) -> str:
    variant = grid.variants[place[0]][place[1]]
    title = grid.classes[int(grid.best[place])] + (f" ({variant})" if variant else "")
    return f"layer {place[0]} · head {place[1]}: {title}"


def _points(
    figure: go.Figure,
    grid: HeadGrid,
    places: Sequence[tuple[int, int]],
    across: NDArray[np.float64],
    up: NDArray[np.float64],
    told: str,
    sizes: NDArray[np.float64] | None = None,
) -> None:
    """Heads as points, a trace a class."""
    for index, found in _by_class(grid, places).items():
        title = grid.classes[index]
        pale = grid.shown is not None and index not in grid.shown
        names = [
            literal(f"layer {places[i][0]} · head {places[i][1]}: {title}")
            + (
                f" ({literal(grid.variants[places[i][0]][places[i][1]])})"
                if grid.variants[places[i][0]][places[i][1]]
                else ""
            )
            for i in found
        ]
        figure.add_scatter(
            x=across[found],
            y=up[found],
            mode="markers",
            name=literal(title),
            text=names,
            marker={
                "color": grid_colour(grid, index),
                "symbol": HEAD_SYMBOLS[index % len(HEAD_SYMBOLS)],
                "size": 9 if sizes is None else sizes[found],
                "opacity": 0.15 if pale else 0.85,
                "line": {"width": 0.5, "color": CHART_TEXT},
            },
            hovertemplate=f"%{{text}}<br>{told}<extra></extra>",
        )


def heads_scatter(
    grid: HeadGrid, across: HeadStatistic, up: HeadStatistic, size: HeadStatistic | None = None
) -> go.Figure:
    """Every head by two statistics, coloured by class; the area of a point grows with |size|."""
    import plotly.graph_objects as go

    places, figure = _every_head(grid), go.Figure()
    sizes = None
    if size is not None:
        shares = np.abs(np.nan_to_num(size.values.ravel().astype(np.float64)))
        sizes = 5 + 23 * np.sqrt(shares / (shares.max() or 1.0))
    told = f"{literal(across.title)} %{{x:.4g}} {across.unit}<br>{literal(up.title)} %{{y:.4g}} {up.unit}"
    x, y = (each.values.ravel().astype(np.float64) for each in (across, up))
    _points(figure, grid, places, x, y, told, sizes)
    return figure.update_layout(
        **PLAIN,
        width=820,
        height=520,
        xaxis=plain_axis(f"{across.title} ({across.unit})"),
        yaxis=plain_axis(f"{up.title} ({up.unit})"),
    )


def plain_axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": literal(title), "font": {"size": 11}},
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "automargin": True,
    }


def heads_by_layer(grid: HeadGrid) -> go.Figure:
    """How many heads of each class every layer has, as stacked bars."""
    import plotly.graph_objects as go

    figure, layers = go.Figure(), grid.best.shape[0]
    for index, title in enumerate(grid.classes):
        counts = (grid.best == index).sum(1)
        if counts.any():
            figure.add_bar(
                x=list(range(layers)),
                y=counts,
                name=literal(title),
                marker={"color": grid_colour(grid, index)},
                hovertemplate=f"layer %{{x}}: %{{y}} {literal(title)}<extra></extra>",
            )
    return figure.update_layout(
        **PLAIN,
        barmode="stack",
        bargap=0.25,
        width=540,
        height=270,
        xaxis={**plain_axis("layer"), "dtick": max(1, layers // 16)},
        yaxis={**plain_axis("heads")},
    )


def statistic_by_layer(grid: HeadGrid, number: HeadStatistic) -> go.Figure:
    """Every head of each layer by one statistic, coloured by class, and the layer's mean as a line."""
    import plotly.graph_objects as go

    places, figure = _every_head(grid), go.Figure()
    values = number.values.astype(np.float64)
    layers = np.array([layer for layer, _ in places], dtype=np.float64)
    told = f"{literal(number.title)} %{{y:.4g}} {number.unit}"
    _points(figure, grid, places, layers, values.ravel(), told)
    counted = np.maximum((~np.isnan(values)).sum(1), 1)
    figure.add_scatter(
        x=list(range(len(values))),
        y=np.nansum(values, axis=1) / counted,
        mode="lines",
        name="mean",
        line={"color": CHART_TEXT, "width": 2},
        hovertemplate="layer %{x}: mean %{y:.4g}<extra></extra>",
    )
    return figure.update_layout(
        **PLAIN,
        width=540,
        height=270,
        showlegend=False,
        xaxis={**plain_axis("layer"), "dtick": max(1, len(values) // 16)},
        yaxis=plain_axis(f"{number.title} ({number.unit})"),
    )


def heads_plane(
    grid: HeadGrid, places: Sequence[tuple[int, int]], points: NDArray[Any], *, by_layer: bool = False
) -> go.Figure:
    """Heads in the plane, alike ones near each other; axes mean nothing by themselves.

    Args:
        by_layer: coloured by layer, else by class.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    if by_layer:
        figure.add_scatter(
            x=points[:, 0],
            y=points[:, 1],
            mode="markers",
            text=[literal(_head_in_words(grid, place)) for place in places],
            marker={
                "color": [layer for layer, _ in places],
                "colorscale": plotly_scale(colour_table("viridis")),
                "size": 9,
                "line": {"width": 0.5, "color": CHART_TEXT},
                "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": "layer"}, "dtick": 1},
            },
            hovertemplate="%{text}<extra></extra>",
        )
    else:
        _points(figure, grid, places, points[:, 0], points[:, 1], "")
    bare = {"showticklabels": False, "gridcolor": GRID, "zeroline": False}
    return figure.update_layout(
        **PLAIN, width=620, height=520, xaxis=bare, yaxis={**bare, "scaleanchor": "x", "scaleratio": 1}
    )


def heads_distances(
    grid: HeadGrid,
    places: Sequence[tuple[int, int]],
    distances: NDArray[np.float64],
    order: NDArray[np.int64],
) -> go.Figure:
    """Distances of every two heads, alike ones next to each other."""
    import plotly.graph_objects as go

    names = [
        f"{places[i][0]} · {places[i][1]} {literal(grid.classes[int(grid.best[places[i]])])}" for i in order
    ]
    figure = go.Figure(
        go.Heatmap(
            z=np.float32(distances[np.ix_(order, order)]),
            x=list(range(len(order))),
            y=list(range(len(order))),
            customdata=np.array([[f"{one}<br>{other}" for other in names] for one in names], dtype=object),
            colorscale=plotly_scale(colour_table("viridis")[::-1]),
            zmin=0,
            colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": "nats", "font": {"size": 11}}},
            hovertemplate="%{customdata}<br><b>%{z:.3f}</b><extra></extra>",
        )
    )
    bare = {"showticklabels": False, "showgrid": False, "zeroline": False, "ticks": ""}
    return figure.update_layout(
        **PLAIN,
        width=520,
        height=460,
        xaxis=bare,
        yaxis={**bare, "autorange": "reversed", "scaleanchor": "x"},
    )


GRID = "rgba(127, 134, 143, 0.28)"

PLAIN: dict[str, Any] = {
    "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "font": {"color": CHART_TEXT, "size": 12, "family": CHART_FONT},
    "modebar": {"bgcolor": "rgba(0, 0, 0, 0)", "color": CHART_TEXT},
    "hoverlabel": {"font": {"size": 12}},
    "legend": {"bgcolor": "rgba(0, 0, 0, 0)"},
    "dragmode": False,
}
"""Layout of every chart."""


def _line_style(index: int) -> dict[str, Any]:
    """Colour and dash of a map's line: told apart without colour as well."""
    dashes = ("solid", "dash", "dashdot", "longdash")
    return {"color": HEAD_COLOURS[index % len(HEAD_COLOURS)], "dash": dashes[index % len(dashes)], "width": 2}


def _marker(view: TokenScores, beyond: NDArray[np.bool_]) -> dict[str, Any]:
    """Colours of the bars on the scale of the record, with its scale bar."""
    low, high = score_limits(view)
    shares = np.clip((np.asarray(view.scores, dtype=np.float64) - low) / ((high - low) or 1.0), 0.0, 1.0)
    ticks = np.linspace(0.0, 1.0, 5)
    values = low + (high - low) * (ticks**2 if view.scale == "sqrt" else ticks)
    widths = np.zeros(len(shares))
    if view.source is not None:
        widths[view.source] = 2.0
    return {
        "color": np.sqrt(shares) if view.scale == "sqrt" else shares,
        "cmin": 0.0,
        "cmax": 1.0,
        "colorscale": plotly_scale(colour_table(view.colour_map)),
        "line": {"color": CHART_TEXT, "width": widths},
        "pattern": {"shape": ["/" if above else "" for above in beyond.tolist()], "fillmode": "overlay"},
        "colorbar": {
            "thickness": 10,
            "outlinewidth": 0,
            "tickvals": ticks,
            "ticktext": [
                *(f"{value:.3g}" for value in values[:-1]),
                f"{'≥ ' if beyond.any() else ''}{values[-1]:.3g}",
            ],
        },
        "showscale": True,
    }


def plotly_scale(table: NDArray[np.uint8]) -> list[list[object]]:
    levels = np.rint(np.linspace(0, 255, SCALE_STEPS)).astype(int)
    return [[level / 255, "rgb({}, {}, {})".format(*table[level])] for level in levels.tolist()]


def literal(text: str) -> str:
    """Text that Plotly shows as it is: it would read tags such as ``<b>`` and entities in it."""
    return html.escape(text, quote=False)
