"""Plotly charts of checks of attention: sets of inputs, permutations, edited heads, trained adversaries.

They follow the same rules as exported figures (``analysis.visible_checks``); each raises ``ValueError`` for a
record whose parts do not belong together. Points carry ``customdata``, first the index of the input or the layer and
head, so that a click on one can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import (
    HEAD_COLOURS,
    CheckedSet,
    Floats,
    HeadEffects,
    TradeOff,
    TradeOffGroup,
    TradeOffPoint,
)
from analysis.visible import short_label, visible_text
from analysis.visible_checks import (
    AGREEMENT_COLOURS,
    ATTENTION_BINS,
    FEW_POINTS,
    LARGEST_JSD,
    TRADE_OFF_GROUPS,
    agreement_words,
    agreements,
    attention_bins,
    bandwidth,
    bin_title,
    change_limit,
    check_checked_set,
    check_head_effects,
    check_trade_off,
    count_limit,
    effect_limits,
    histogram,
    input_groups,
    jsd_edges,
    permutation_title,
    tau_edges,
    trade_off_end,
)
from analysis.visible_evidence import AGAINST, FOR, evidence_colours
from dashboard.charts import CHART_TEXT, GRID, PLAIN, SCALE_STEPS, blank_chart, literal, plain_axis

if TYPE_CHECKING:
    from dashboard.charts import Chart

MOST_TICKS = 1000
"""Most permutations with a tick of their own below their histogram."""

SYMBOLS = ("circle", "square", "triangle-up", "diamond")
"""Of the groups in turn, so that colour never tells alone."""

NAME_CHARACTERS = 80
"""How much of an input's text its tooltip repeats."""

LEGEND_CHARACTERS = 24
"""Names of classes are cut there in a legend."""

BINS = len(ATTENTION_BINS)

LEGEND_ABOVE: dict[str, Any] = {
    "legend_orientation": "h",
    "legend_traceorder": "normal",
    "legend_x": 0,
    "legend_y": 1.02,
    "legend_yanchor": "bottom",
}

PanelKey = Literal["max_attention", "permutation", "jsd", "jsd_bound"]


# A set of inputs ----------------------------------------------------------------------------------------------------


SHAPED = 3
"""Inputs from which a violin has an outline; fewer have a mark each."""


def permutation_chart(view: CheckedSet) -> Chart:
    """What permuting the weights changes: a violin for each range of the largest weight and predicted class."""
    check_checked_set(view, "permutation_chart")
    figure = blank_chart()
    changes, largest = _number(view, "permutation"), _number(view, "max_attention")
    bins, groups, end = attention_bins(view), input_groups(view), change_limit(view)
    known = np.isfinite(changes) & (bins >= 0)
    if not known.any():
        return _empty(figure, "Permutations were not measured.")
    band = 0.86 / len(groups)
    for order, group in enumerate(groups):
        drawn = [np.flatnonzero(known & (bins == place) & group.members) for place in range(BINS)]
        first = next((place for place, members in enumerate(drawn) if members.size), None)
        for place, members in enumerate(drawn):
            if not members.size:
                continue
            figure.add_violin(
                x=changes[members],
                y=np.full(members.size, place + 0.43 - band * (order + 0.5)),
                name=_text(short_label(group.name, LEGEND_CHARACTERS)),
                legendgroup=str(order),
                showlegend=place == first,
                bandwidth=bandwidth(changes[members], end),
                width=band,
                text=_names(view, members),
                customdata=np.stack([members.astype(np.float64), largest[members]], axis=1),
                **_violin_style(
                    group.colour, SYMBOLS[order], few=known.sum() <= FEW_POINTS, shape=members.size >= SHAPED
                ),
            )
            if view.marked is not None and view.marked in members:
                _ring(figure, view, changes[view.marked], place + 0.43 - band * (order + 0.5))
    counts = np.bincount(bins[known], minlength=BINS).tolist()
    return figure.update_layout(
        **PLAIN,
        **LEGEND_ABOVE,
        width=540,
        height=400,
        xaxis={**plain_axis(_text(permutation_title(view))), "range": [-0.01 * end, end]},
        yaxis={
            **plain_axis("largest weight"),
            "range": [-0.5, BINS - 0.5],
            "showgrid": False,
            "zeroline": False,
            "tickmode": "array",
            "tickvals": list(range(BINS)),
            "ticktext": [f"{bin_title(place)}<br>n = {count}" for place, count in enumerate(counts)],
        },
    )


def _violin_style(colour: str, symbol: str, *, few: bool, shape: bool) -> dict[str, Any]:
    """A lying violin with its median and quartiles, of few inputs also with a mark for each.

    Args:
        shape: there are enough inputs for an outline and a box.
    """
    style: dict[str, Any] = {
        "orientation": "h",
        "line": {"color": colour, "width": 1.2 if shape else 0},
        "fillcolor": _pale(colour),
        "spanmode": "hard",
        "scalemode": "width",
        "points": "all" if few else False,
        "pointpos": 0,
        "jitter": 0.3,
        "marker": {"color": colour, "size": 5, "symbol": symbol},
        "box": {"visible": shape, "width": 0.22, "fillcolor": "rgba(0, 0, 0, 0)"},
        "hoveron": "points" if few else "violins",
    }
    if few:
        style["hovertemplate"] = (
            "input %{customdata[0]:d} “%{text}”<br>median <b>%{x:.6~g}</b><br>"
            "largest weight %{customdata[1]:.6~g}<extra></extra>"
        )
    return style


def _ring(figure: Chart, view: CheckedSet, across: float, up: float) -> None:
    """A ring about the marked input."""
    figure.add_scatter(
        x=[across],
        y=[up],
        mode="markers",
        name=f"input {view.marked}",
        marker={"symbol": "circle-open", "size": 17, "color": CHART_TEXT, "line": {"width": 2}},
        hoverinfo="skip",
        legendrank=2000,  # last
    )


def jsd_scatter_chart(view: CheckedSet) -> Chart:
    """The largest divergence within ε against the largest weight, below ln 2 and each input's own bound."""
    check_checked_set(view, "jsd_scatter_chart")
    figure = blank_chart()
    largest, jsd, bounds = (_number(view, key) for key in ("max_attention", "jsd", "jsd_bound"))
    known = np.isfinite(largest) & np.isfinite(jsd)
    if not known.any():
        return _empty(figure, "No other weights were looked for.")
    bounded = np.flatnonzero(known & np.isfinite(bounds))
    if bounded.size and known.sum() <= FEW_POINTS:
        gaps = np.full(len(bounded), np.nan)
        stems = np.stack([jsd[bounded], bounds[bounded], gaps], axis=1).ravel()
        quiet: dict[str, Any] = {"hoverinfo": "skip", "legendgroup": "bound"}
        figure.add_scatter(
            x=np.repeat(largest[bounded], 3),
            y=stems,
            mode="lines",
            line={"color": GRID, "width": 1},
            showlegend=False,
            **quiet,
        )
        figure.add_scatter(
            x=largest[bounded],
            y=bounds[bounded],
            mode="markers",
            name="most that its weights allow",
            marker={"symbol": "line-ew", "size": 7, "line": {"width": 1.3, "color": CHART_TEXT}},
            **quiet,
        )
    for order, group in enumerate(input_groups(view)):
        members = np.flatnonzero(known & group.members)
        told = np.stack([members.astype(np.float64), bounds[members]], axis=1)
        figure.add_scatter(
            x=largest[members],
            y=jsd[members],
            mode="markers",
            name=_text(short_label(group.name, LEGEND_CHARACTERS)),
            marker={
                "color": group.colour,
                "symbol": SYMBOLS[order],
                "size": 8,
                "opacity": 0.85,
                "line": {"width": 0.5, "color": CHART_TEXT},
            },
            text=_names(view, members),
            customdata=told,
            hovertemplate=(
                "input %{customdata[0]:d} “%{text}”<br>ε-max JSD <b>%{y:.6~g}</b> nats, at most "
                "%{customdata[1]:.6~g}<br>largest weight %{x:.6~g}<extra></extra>"
            ),
        )
    if view.marked is not None and known[view.marked]:
        _ring(figure, view, largest[view.marked], jsd[view.marked])
    _ln2(figure, upright=False)
    return figure.update_layout(
        **PLAIN,
        **LEGEND_ABOVE,
        width=540,
        height=400,
        xaxis={**plain_axis("largest weight"), "range": [-0.02, 1.02]},
        yaxis={**plain_axis(_epsilon_max(view)), "range": [-0.02, 0.76]},
    )


def jsd_histogram_chart(view: CheckedSet) -> Chart:
    """How many inputs have which largest divergence within ε, stacked by predicted class."""
    check_checked_set(view, "jsd_histogram_chart")
    figure, jsd, edges = blank_chart(), _number(view, "jsd"), jsd_edges()
    if not np.isfinite(jsd).any():
        return _empty(figure, "No other weights were looked for.")
    total = np.zeros(len(edges) - 1, dtype=np.int64)
    for group in input_groups(view):
        counts = histogram(jsd[group.members], edges)
        name = _text(short_label(group.name, LEGEND_CHARACTERS))
        _add_bars(figure, edges, counts, group.colour, name, " nats")
        total += counts
    _ln2(figure, upright=True)
    return figure.update_layout(
        **PLAIN,
        **LEGEND_ABOVE,
        width=540,
        height=320,
        barmode="stack",
        bargap=0.04,
        xaxis={**plain_axis(_epsilon_max(view)), "range": [0, 1.04 * LARGEST_JSD]},
        yaxis=_counts_axis(total),
    )


def agreement_chart(view: CheckedSet) -> Chart:
    """Histograms of the rank correlation of attention with gradients and with leave-one-out, one below the other."""
    check_checked_set(view, "agreement_chart")
    found = agreements(view)
    if not found:
        return _empty(blank_chart(), "Agreement with other measures was not measured.")
    titles = [f"{literal(each.title)}<br>{literal(agreement_words(each))}" for each in found]
    figure = blank_chart(
        rows=len(found), cols=1, shared_xaxes=True, vertical_spacing=0.24, subplot_titles=titles
    )
    edges = tau_edges()
    for row, agreement in enumerate(found, start=1):
        counts = histogram(agreement.values, edges)
        colour = AGREEMENT_COLOURS[agreement.key]
        _add_bars(figure, edges, counts, colour, agreement.title, "", row=row, col=1)
        end, _ = count_limit(counts)
        figure.add_scatter(
            x=[agreement.mean, agreement.mean],
            y=[0, end],
            mode="lines",
            line={"color": CHART_TEXT, "width": 2},
            hovertemplate=f"mean τ <b>{agreement.mean:.6g}</b><extra></extra>",
            row=row,
            col=1,
        )
        figure.update_yaxes(**_counts_axis(counts), row=row, col=1)
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, range=[-1.02, 1.02], automargin=True)
    figure.update_xaxes(**plain_axis("Kendall τ with attention"), row=len(found), col=1)
    figure.update_annotations(font={"size": 12, "color": CHART_TEXT})
    height = 130 + 165 * len(found)
    return figure.update_layout(**PLAIN, width=540, height=height, bargap=0.04, showlegend=False)


# One input ----------------------------------------------------------------------------------------------------------


def permutations_of_one_chart(changes: Floats, epsilon: float, *, name: str = "TVD") -> Chart:
    """How far permutations of one input's weights change the output, with their median and ε.

    Args:
        changes: (S,) change of the answer under each permutation; ``name``: what it is called.
        epsilon: change up to which the prediction counts as the same.
    """
    figure = blank_chart()
    exact = np.asarray(changes, dtype=np.float64)
    known = exact[np.isfinite(exact)]
    if not known.size:
        return _empty(figure, "No permutation was tried.")
    end = 1.05 * max(float(known.max()), epsilon) or 1.0
    edges = np.linspace(0.0, end, 31)
    counts = histogram(known, edges)
    _add_bars(figure, edges, counts, HEAD_COLOURS[0], "permutations", "", one="permutation")
    top, _ = count_limit(counts)
    if known.size <= MOST_TICKS:
        figure.add_scatter(
            x=known,
            y=np.full(known.size, -0.05 * top),
            mode="markers",
            marker={"symbol": "line-ns", "size": 7, "line": {"width": 1, "color": HEAD_COLOURS[0]}},
            hovertemplate=f"{_text(name)} <b>%{{x:.6~g}}</b><extra></extra>",
        )
    median, within = float(np.median(known)), float((known <= epsilon).mean())
    lines = (
        (median, f"median {median:.3g}", "solid"),
        (epsilon, f"ε = {epsilon:.3g}, {within:.0%} within", "dot"),
    )
    for order, (value, text, dash) in enumerate(lines):
        figure.add_vline(x=value, line={"color": CHART_TEXT, "width": 1.6, "dash": dash})
        figure.add_annotation(
            x=value,
            y=1,
            yref="paper",
            yshift=-15 * order,
            yanchor="top",
            xanchor="left" if value <= end / 2 else "right",
            text=text,
            showarrow=False,
            font={"size": 11, "color": CHART_TEXT},
        )
    return figure.update_layout(
        **PLAIN,
        width=540,
        height=260,
        bargap=0.03,
        showlegend=False,
        xaxis={**plain_axis(_text(f"{name} of a permutation")), "range": [-0.01 * end, end]},
        yaxis={**_counts_axis(counts, "permutations"), "range": [-0.1 * top, 1.3 * top]},
    )


# Edited heads -------------------------------------------------------------------------------------------------------


def head_effects_chart(view: HeadEffects) -> Chart:
    """Layers down and heads across; beside them each layer with all of its heads edited, below these all layers.

    Cells take no selection in Plotly, so a clear point lies on each head; its ``customdata`` is (layer, head).
    """
    check_head_effects(view, "head_effects_chart")
    layers, heads = view.heads.shape[1:]
    figure = blank_chart(
        cols=2, rows=1, column_widths=[0.78, 0.22], horizontal_spacing=0.02, shared_yaxes=True
    )
    _add_heads(figure, view)
    below = layers + 0.25
    _add_layers(figure, view, [*range(layers), below])
    if view.marked is not None:
        layer, head = view.marked
        edge = {"color": CHART_TEXT, "width": 3}
        figure.add_shape(
            type="rect", line=edge, x0=head - 0.5, x1=head + 0.5, y0=layer - 0.5, y1=layer + 0.5, row=1, col=1
        )
    plain: dict[str, Any] = {"showgrid": False, "zeroline": False, "automargin": True}
    figure.update_xaxes(**plain, side="top", title={"font": {"size": 11}, "standoff": 4})
    across = {"title_text": "head", "dtick": max(1, heads // 24), "range": [-0.5, heads - 0.5]}
    figure.update_xaxes(**across, row=1, col=1)
    end = 1.9 * effect_limits(view)[1]
    beside = {"title_text": "all heads of a layer", "showticklabels": False, "range": [-end, end]}
    figure.update_xaxes(**beside, zeroline=True, zerolinecolor=CHART_TEXT, row=1, col=2)
    named = range(0, layers, max(1, layers // 24))
    ticks = [*(f"layer {layer}" for layer in named), "all layers"]
    figure.update_yaxes(**plain, range=[below + 0.5, -0.5], tickvals=[*named, below], ticktext=ticks)
    height = min(120 + max(24 * (layers + 1), 150), 800)
    return figure.update_layout(
        **PLAIN, width=min(900, 330 + 44 * heads), height=height, showlegend=False, bargap=0.25
    )


def _add_heads(figure: Chart, view: HeadEffects) -> None:
    """Cells of changes, red where the target rises, grey where there is no number, and a clear point on each."""
    values = np.asarray(view.heads[view.shown], dtype=np.float64)
    limit, place = effect_limits(view)[0], {"row": 1, "col": 1}
    layer, head = np.indices(values.shape)
    told = np.stack([layer, head], axis=-1)  # (L, H, 2)
    cells: dict[str, Any] = {"customdata": told, "hoverinfo": "skip", "xgap": 1, "ygap": 1}
    title = {"text": "change", "font": {"size": 11}}
    figure.add_heatmap(
        z=values,
        colorscale=_signed_scale(),
        zmin=-limit,
        zmax=limit,
        colorbar={"thickness": 10, "outlinewidth": 0, "title": title},
        **cells,
        **place,
    )
    lacking = ~np.isfinite(values)
    if lacking.any():
        grey = "rgba(127, 134, 143, 0.45)"
        known = np.where(lacking, 0.0, np.nan)
        figure.add_heatmap(z=known, colorscale=[[0, grey], [1, grey]], showscale=False, **cells, **place)
    clear = {"marker": {"opacity": 0}}
    figure.add_scatter(
        x=head.ravel(),
        y=layer.ravel(),
        mode="markers",
        customdata=told.reshape(-1, 2),
        marker={"opacity": 0, "size": 14, "color": CHART_TEXT},
        selected=clear,
        unselected=clear,
        text=[_change_text(value) for value in values.ravel()],
        hovertemplate="layer %{customdata[0]} · head %{customdata[1]}<br><b>%{text}</b><extra></extra>",
        **place,
    )


def _add_layers(figure: Chart, view: HeadEffects, places: Sequence[float]) -> None:
    """A bar for each whole layer and one for all layers, with their numbers."""
    values = np.append(view.layers[view.shown], view.whole[view.shown]).astype(np.float64)
    names = [*(f"all heads of layer {layer}" for layer in range(len(values) - 1)), "all heads of all layers"]
    figure.add_bar(
        x=values,
        y=list(places),
        orientation="h",
        marker={"color": ["rgb({}, {}, {})".format(*(FOR if value >= 0 else AGAINST)) for value in values]},
        marker_line={"width": 0},
        text=[_change_text(value, digits=2) for value in values],
        textposition="outside",
        textfont={"size": 10, "color": CHART_TEXT},
        cliponaxis=False,
        customdata=[[name, _change_text(value)] for name, value in zip(names, values, strict=True)],
        hovertemplate="%{customdata[0]}<br><b>%{customdata[1]}</b><extra></extra>",
        row=1,
        col=2,
    )


def _change_text(value: float, *, digits: int = 6) -> str:
    return f"{value:+.{digits}g}".replace("-", "−") if np.isfinite(value) else "no number"


def _signed_scale() -> list[list[object]]:
    """Colours of a signed change, clear at 0, for Plotly."""
    table = evidence_colours(True)
    levels = np.rint(np.linspace(0, 255, 2 * SCALE_STEPS + 1)).astype(int).tolist()
    return [
        [level / 255, "rgba({}, {}, {}, {:.3f})".format(*table[level, :3], table[level, 3] / 255)]
        for level in levels
    ]


# Trained adversaries ------------------------------------------------------------------------------------------------


def trade_off_chart(view: TradeOff) -> Chart:
    """How far attention can move (up) for how much change of the predictions (across).

    Adversaries are joined in the order given, one λ after the other. A point high above the others seeds at a change
    like theirs is attention that a model can learn and that still predicts alike.
    """
    check_trade_off(view, "trade_off_chart")
    figure, points = blank_chart(), view.points
    if not points:
        return _empty(figure, "No trained model was compared.")
    for group in get_args(TradeOffGroup):
        members = [point for point in points if point.group == group]
        if not members:
            continue
        title, colour, symbol = TRADE_OFF_GROUPS[group]
        labels = [_text(point.label) for point in members]
        joined = "lines+" if group == "adversary" and len(members) > 1 else ""
        figure.add_scatter(
            x=[point.tvd for point in members],
            y=[point.jsd for point in members],
            mode=f"{joined}markers{'+text' if any(labels) else ''}",
            name=title,
            line={"color": colour, "dash": "dot", "width": 1.5},
            marker={
                "color": colour,
                "symbol": "triangle-up" if symbol == "triangle" else symbol,
                "size": 10,
                "line": {"width": 0.5, "color": CHART_TEXT},
            },
            error_x=_error_bars(
                [point.tvd for point in members], [point.tvd_interval for point in members], colour
            ),
            error_y=_error_bars(
                [point.jsd for point in members], [point.jsd_interval for point in members], colour
            ),
            text=labels,
            textposition="bottom right",
            textfont={"size": 11, "color": CHART_TEXT},
            customdata=[_intervals_in_words(point) for point in members],
            hovertext=[_text(point.name) for point in members],
            hovertemplate=(
                "%{hovertext}<br>TVD of predictions <b>%{x:.6~g}</b>%{customdata[0]}<br>"
                "JSD of attention <b>%{y:.6~g}</b> nats%{customdata[1]}<extra></extra>"
            ),
        )
    _ln2(figure, upright=False)
    end = trade_off_end(view)
    return figure.update_layout(
        **PLAIN,
        **LEGEND_ABOVE,
        width=620,
        height=420,
        xaxis={**plain_axis("TVD of predictions from the base model"), "range": [-0.02 * end, end]},
        yaxis={**plain_axis("JSD of attention from the base model (nats)"), "range": [-0.02, 0.76]},
    )


def _error_bars(
    values: Sequence[float], intervals: Sequence[tuple[float, float] | None], colour: str
) -> dict[str, Any] | None:
    if not any(intervals):
        return None
    both = [(value, value) if each is None else each for value, each in zip(values, intervals, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(high - value, 0.0) for value, (_, high) in zip(values, both, strict=True)],
        "arrayminus": [max(value - low, 0.0) for value, (low, _) in zip(values, both, strict=True)],
        "color": colour,
        "thickness": 1,
        "width": 3,
    }


def _intervals_in_words(point: TradeOffPoint) -> list[str]:
    return [
        "" if interval is None else f" ({interval[0]:.4g} to {interval[1]:.4g})"
        for interval in (point.tvd_interval, point.jsd_interval)
    ]


# Helpers ------------------------------------------------------------------------------------------------------------


def _number(view: CheckedSet, key: PanelKey) -> NDArray[np.float64]:
    """(n,) a number of every input; NaN where it was not measured."""
    values = view.number(key)
    return np.full(len(view.names), np.nan) if values is None else np.asarray(values, dtype=np.float64)


def _text(text: str) -> str:
    """A user's text as Plotly can show it."""
    return literal(visible_text(text))


def _names(view: CheckedSet, members: NDArray[np.intp]) -> list[str]:
    return [literal(short_label(view.names[index], NAME_CHARACTERS)) for index in members.tolist()]


def _epsilon_max(view: CheckedSet) -> str:
    return f"ε-max JSD (nats), ε = {view.epsilon:.3g}"


def _counts_axis(counts: NDArray[np.int64], title: str = "inputs") -> dict[str, Any]:
    """An axis of whole numbers."""
    end, ticks = count_limit(counts)
    return {**plain_axis(title), "range": [0, end], "tickmode": "array", "tickvals": list(ticks)}


def _add_bars(
    figure: Chart,
    edges: NDArray[np.float64],
    counts: NDArray[np.int64],
    colour: str,
    name: str,
    unit: str,
    *,
    one: str = "input",
    **place: int,
) -> None:
    """A bar between each two edges, told with its ends and its count."""
    told = [
        f"{low:.3g} to {high:.3g}{unit}: <b>{count}</b> {one}{'' if count == 1 else 's'}"
        for low, high, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    ]
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts,
        width=np.diff(edges) * 0.94,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=told,
        hovertemplate=f"{name}<br>%{{customdata}}<extra></extra>",
        **place,
    )


def _ln2(figure: Chart, *, upright: bool) -> None:
    """A dotted line at the largest divergence that there is."""
    line = {"color": CHART_TEXT, "width": 1.4, "dash": "dash"}
    note = {"text": "ln 2", "font": {"size": 11, "color": CHART_TEXT}}
    if upright:
        figure.add_vline(x=LARGEST_JSD, line=line, annotation=note, annotation_position="top left")
    else:
        figure.add_hline(y=LARGEST_JSD, line=line, annotation=note, annotation_position="top right")


def _empty(figure: Chart, words: str) -> Chart:
    """A chart without numbers, which says so."""
    bare = {"visible": False}
    figure.add_annotation(
        text=words, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"color": CHART_TEXT}
    )
    return figure.update_layout(**PLAIN, width=540, height=160, xaxis=bare, yaxis=bare)


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.25)"
