"""Looks at the heads beside their grid: a ranking, a scatter, clusters, a summary of the layers; and thresholds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import HeadGrid, HeadStatistic
from dashboard import charts
from dashboard.frame import choice, heading, note
from dashboard.heads_choices import HIGHEST, LOWEST, HeadsChoices
from dashboard.selection import bound, choose, choose_patterns, current
from dashboard.views.heads_sources import Page

if TYPE_CHECKING:
    from analysis.heads.clusters import HeadDistances
    from analysis.heads.patterns import HeadClasses

SCORE = HeadStatistic("score", "Score of the class", "share", np.zeros((0, 0), dtype=np.float32))


# Thresholds ---------------------------------------------------------------------------------------------------------


def thresholds(page: Page, choices: HeadsChoices, classes: HeadClasses) -> None:
    """A popover with the rules: what each class is told by, from where, and its threshold, which can be moved."""
    from analysis.heads.patterns import PATTERNS

    rules = [PATTERNS[key] for key in classes.keys if key in PATTERNS]
    moved = dict(choices.thresholds)
    words = f"Rules ({len(moved)} moved)" if moved else "Rules"
    with st.popover(words, icon=":material/tune:", key=f"{page}_heads_thresholds"):
        for rule in rules:
            key = f"{page}_heads_threshold_{rule.key}"
            with st.container(horizontal=True, vertical_alignment="center", key=f"{key}_row"):
                with st.container(width=390):
                    heading(rule.title, rule.meaning)
                    note(f"{rule.meaning} Told by {rule.formula}. Source: {rule.source}.")
                st.slider(
                    f"Threshold of {rule.title}",
                    LOWEST,
                    HIGHEST,
                    step=0.01,
                    **bound(key, round(moved.get(rule.key, rule.threshold), 2)),
                    on_change=partial(_moved, page, rule.key, rule.threshold, key),
                    label_visibility="collapsed",
                    width=170,
                )
        if moved:
            st.button(
                "Reset",
                key=f"{page}_heads_thresholds_reset",
                on_click=partial(choose_patterns, page, thresholds=()),
            )


def _moved(page: Page, rule: str, start: float, key: str) -> None:
    value = round(float(st.session_state[key]), 2)
    choices: HeadsChoices = getattr(current(), page).patterns
    choose_patterns(page, thresholds=choices.moved(rule, None if value == start else value).thresholds)


# Ranking ------------------------------------------------------------------------------------------------------------


def numbers_of(grid: HeadGrid) -> dict[str, HeadStatistic]:
    """The statistics of a grid by key, the class's score among them."""
    found = {each.key: each for each in grid.numbers}
    return {**found, "score": HeadStatistic(SCORE.key, SCORE.title, SCORE.unit, grid.scores)}


def class_in_words(grid: HeadGrid, layer: int, head: int) -> str:
    """ "Positional (previous)"."""
    title, variant = grid.classes[int(grid.best[layer, head])], grid.variants[layer][head]
    return f"{title} ({variant})" if variant else title


def ranking(page: Page, choices: HeadsChoices, grid: HeadGrid) -> None:
    """All heads by one statistic, the largest first; a row that is picked opens its head in the grid."""
    import pandas as pd

    numbers = numbers_of(grid)
    chosen = numbers[choices.statistic if choices.statistic in numbers else next(iter(numbers))]
    _number_choice(page, "statistic", "Ranked by", numbers, chosen.key)
    heads = grid.best.shape[1]
    order = np.argsort(-np.nan_to_num(chosen.values, nan=-np.inf), axis=None, kind="stable")
    places = [(int(index) // heads, int(index) % heads) for index in order]
    unit = f"{chosen.title} ({chosen.unit})"
    columns: dict[str, list[Any]] = {
        "layer": [layer for layer, _ in places],
        "head": [head for _, head in places],
        unit: [float(chosen.values[place]) for place in places],
    }
    if chosen.low is not None and chosen.high is not None:
        columns["from"] = [float(chosen.low[place]) for place in places]
        columns["to"] = [float(chosen.high[place]) for place in places]
    columns["class"] = [class_in_words(grid, *place) for place in places]
    columns["score"] = [float(grid.scores[place]) for place in places]
    table = pd.DataFrame(columns)
    key = f"{page}_heads_ranking"

    def picked() -> None:
        rows = st.session_state[key]["selection"]["rows"]
        if rows:
            layer, head = places[rows[0]]
            choose(page, layer=layer, heads=(head,))

    st.dataframe(
        table,
        key=key,
        hide_index=True,
        height=520,
        width=760,
        on_select=picked,
        selection_mode="single-row",
        column_config={
            "class": st.column_config.TextColumn(width=170),
            **{
                name: st.column_config.NumberColumn(format="%.4g")
                for name in (unit, "from", "to", "score")
                if name in table
            },
        },
    )
    if chosen.low is not None:
        note("from, to: 95 % interval over the inputs (bootstrap).")


def _number_choice(page: Page, name: str, label: str, numbers: dict[str, HeadStatistic], value: str) -> None:
    key = f"{page}_heads_{name}"
    choice(
        label,
        list(numbers),
        value,
        key=key,
        on_change=lambda: choose_patterns(page, **{name: st.session_state[key]}),
        words=lambda number: f"{label}: {numbers[number].title[:1].lower()}{numbers[number].title[1:]}",
        width=300,
    )


# Scatter ------------------------------------------------------------------------------------------------------------


def scatter(page: Page, choices: HeadsChoices, grid: HeadGrid) -> None:
    """Heads as points of two statistics; the size is their importance where it is measured."""
    numbers = numbers_of(grid)
    across = choices.across if choices.across in numbers else "entropy"
    distance = next((key for key in ("distance", "pixels", "max_weight") if key in numbers), "score")
    down = choices.down if choices.down in numbers else distance
    with st.container(horizontal=True, key=f"{page}_heads_axes"):
        _number_choice(page, "across", "Across", numbers, across)
        _number_choice(page, "down", "Up", numbers, down)
    size = numbers.get("importance")
    _plot(
        charts.heads_scatter(grid, numbers[across], numbers[down], size),
        f"{page}_heads_scatter",
        f"Heads by {numbers[across].title} and {numbers[down].title}",
    )
    note(
        "Size: importance."
        if size is not None
        else "Choose an importance above, and points are as large as it is."
    )


def _plot(figure: Any, key: str, alt: str) -> None:
    st.plotly_chart(figure, key=key, theme=None, width="content", config={"displaylogo": False}, alt=alt)


# Layers -------------------------------------------------------------------------------------------------------------


def layers(page: Page, grid: HeadGrid) -> None:
    """How many heads of each class a layer has, and where its heads stand by what matters."""
    numbers = numbers_of(grid)
    of_text, of_pictures = ("distance", "entropy", "first"), ("pixels", "classifier", "content")
    names = [name for name in (of_pictures if "pixels" in numbers else of_text) if name in numbers]
    with st.container(horizontal=True, gap="medium", key=f"{page}_heads_layers_row"):
        _plot(charts.heads_by_layer(grid), f"{page}_heads_layers", "Classes of heads in each layer")
        for name in names:
            title = f"{numbers[name].title} of every head by layer"
            _plot(charts.statistic_by_layer(grid, numbers[name]), f"{page}_heads_layers_{name}", title)


# Clusters -----------------------------------------------------------------------------------------------------------


def clusters(page: Page, choices: HeadsChoices, grid: HeadGrid, distances: HeadDistances) -> None:
    """Heads near each other that look at the same, in the plane and as a sorted matrix."""
    from analysis.heads.clusters import embed, head_order

    mean = distances.mean
    embedding, order = embed(mean), head_order(mean)
    key = f"{page}_heads_colour"
    choice(
        "Colour",
        ("class", "layer"),
        choices.colour,
        key=key,
        on_change=lambda: choose_patterns(page, colour=st.session_state[key]),
        words=lambda colour: f"Colour by {colour}",
        width=170,
    )
    with st.container(horizontal=True, key=f"{page}_heads_clusters"):
        _plot(
            charts.heads_plane(grid, distances.heads, embedding.points, by_layer=choices.colour == "layer"),
            f"{page}_heads_plane",
            "Heads in the plane",
        )
        _plot(
            charts.heads_distances(grid, distances.heads, mean, order),
            f"{page}_heads_matrix",
            "Distances of heads",
        )
    note(
        f"Jensen–Shannon divergence of every two heads, mean over {distances.rows:,} rows of {distances.texts:,} "
        f"inputs (0 alike, ln 2 = 0.69 nothing in common); plane by multidimensional scaling, stress "
        f"{embedding.relative_stress:.2f} (0 is perfect, above 0.2 poor; Clark et al. 2019, section 6)."
    )
