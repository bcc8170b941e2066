"""Plotly charts of checks: every number is in them once, text is shown as it is, and what is missing is said."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.figure_data import CheckedNumber, TradeOff, TradeOffPoint
from analysis.visible_checks import (
    AGREEMENT_COLOURS,
    FEW_POINTS,
    LARGEST_JSD,
    attention_bins,
    bandwidth,
    change_limit,
    histogram,
    input_groups,
    jsd_edges,
    tau_edges,
)
from analysis.visible_evidence import AGAINST, FOR
from dashboard.charts import CHART_FONT, CHART_TEXT
from dashboard.check_charts import (
    agreement_chart,
    head_effects_chart,
    jsd_histogram_chart,
    jsd_scatter_chart,
    permutation_chart,
    permutations_of_one_chart,
    trade_off_chart,
)
from tests.sample_figures import HOSTILE, checked_set, head_effects

SET_CHARTS = (permutation_chart, jsd_scatter_chart, jsd_histogram_chart, agreement_chart)
CLEAR = "rgba(0, 0, 0, 0)"

POINTS = (
    TradeOffPoint("<b>λ = 0.0001</b>", "adversary", 0.01, 0.1, (0.005, 0.02), (0.08, 0.15), "λ = <1e-4>"),
    TradeOffPoint("λ = 0.01", "adversary", 0.15, 0.66, (0.1, 0.2), None, "λ = 1e-2"),
    TradeOffPoint("seed 1", "seed", 0.03, 0.05),
    TradeOffPoint("\ud800 seed 2", "seed", 0.04, 0.06),
    TradeOffPoint("uniform", "uniform", 0.1, 0.3, (0.05, 0.13), (0.25, 0.36)),
)


def every_chart():
    view = checked_set()
    charts = {chart.__name__: chart(view) for chart in SET_CHARTS}
    charts["permutations_of_one_chart"] = permutations_of_one_chart(np.array([0.1, 0.2, 0.4]), 0.01)
    charts["head_effects_chart"] = head_effects_chart(head_effects())
    charts["trade_off_chart"] = trade_off_chart(TradeOff(POINTS))
    return charts


def traces(figure, kind):
    return [trace for trace in figure.data if trace.type == kind]


def words_of(figure):
    """Every text that Plotly would read tags in."""
    found = []

    def gather(value, key=""):
        if isinstance(value, dict):
            for name, entry in value.items():
                gather(entry, name)
        elif isinstance(value, list):
            for entry in value:
                gather(entry, key)
        elif isinstance(value, str) and key in (
            "text",
            "ticktext",
            "name",
            "hovertext",
            "customdata",
            "title",
        ):
            found.append(value)

    gather(json.loads(figure.to_json()))
    return found


@pytest.mark.parametrize("name", every_chart())
def test_charts_are_ours_in_both_themes_and_can_be_sent(name):
    figure = every_chart()[name]
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == CLEAR
    assert (figure.layout.font.color, figure.layout.font.family) == (CHART_TEXT, CHART_FONT)
    json.loads(figure.to_json())
    for trace in figure.data:
        if trace.type in ("bar", "violin") or (trace.type == "scatter" and "markers" in (trace.mode or "")):
            marker = trace.marker
            assert marker.color is not None or marker.line.color is not None, "no colour of a theme"
        if trace.type == "heatmap":
            assert trace.colorscale is not None


@pytest.mark.parametrize("name", every_chart())
def test_no_text_is_read_as_markup(name):
    allowed = ("<b>", "</b>", "<br>")  # ours, around numbers and between lines
    for text in words_of(every_chart()[name]):
        bare = text
        for tag in allowed if name != "trade_off_chart" else ():
            bare = bare.replace(tag, "")
        assert "<" not in bare
        text.encode()  # no lone surrogates


def test_users_texts_are_escaped_whole():
    view = checked_set()
    names = [text for trace in jsd_scatter_chart(view).data for text in trace.text or ()]
    assert "&lt;/script&gt;&lt;img src=x onerror=window.hit=1&gt; 2" in names
    legend = {trace.name for trace in jsd_scatter_chart(view).data}
    assert {"=negative", "positive &lt;b&gt;"} <= legend
    adversaries = trade_off_chart(TradeOff(POINTS)).data[0]
    assert adversaries.hovertext[0] == "&lt;b&gt;λ = 0.0001&lt;/b&gt;"
    assert adversaries.text[0] == "λ = &lt;1e-4&gt;"


# A set of inputs ----------------------------------------------------------------------------------------------------


def members_of(trace):
    return np.asarray(trace.customdata)[:, 0].astype(int)


@given(count=st.integers(1, 30), classes=st.integers(1, 6), seed=st.integers(0, 999))
@settings(max_examples=25)
def test_every_input_lies_in_one_violin_of_its_range_and_class(count, classes, seed):
    draw = np.random.default_rng(seed)
    view = checked_set(count, predicted=draw.integers(0, classes, count), labels=tuple("abcdef"), marked=None)
    changes = view.number("permutation").copy()
    changes[draw.random(count) < 0.2] = np.nan
    view = replaced(view, "permutation", changes)
    violins = traces(permutation_chart(view), "violin")
    drawn = [index for violin in violins for index in members_of(violin)]
    assert sorted(drawn) == np.flatnonzero(np.isfinite(changes)).tolist()
    groups, bins = input_groups(view), attention_bins(view)
    for violin in violins:
        members = members_of(violin)
        (place,) = set(np.rint(np.asarray(violin.y)).astype(int))
        assert set(bins[members]) == {place}
        (group,) = [group for group in groups if group.colour == violin.line.color]
        assert group.members[members].all()
        np.testing.assert_array_equal(np.asarray(violin.x, dtype=np.float32), changes[members])
        exact = changes[members].astype(np.float64)
        assert violin.bandwidth == pytest.approx(bandwidth(exact, change_limit(view)))
        assert violin.spanmode == "hard"
    lanes = {float(violin.y[0]) for violin in violins}
    assert len(lanes) == len(violins), "no two lie on each other"


def replaced(view, key, values):
    numbers = tuple(
        dataclasses.replace(number, values=values) if number.key == key else number for number in view.numbers
    )
    return dataclasses.replace(view, numbers=numbers)


def test_violins_tell_their_counts_and_ring_the_marked_input():
    view = checked_set()
    figure = permutation_chart(view)
    counts = np.bincount(attention_bins(view), minlength=4)
    ticks = figure.layout.yaxis.ticktext
    assert [int(tick.rsplit(" ", 1)[1]) for tick in ticks] == counts.tolist()
    assert ticks[3].startswith("[0.75, 1]<br>")
    (ring,) = traces(figure, "scatter")
    assert ring.name == "input 20"
    assert np.float32(ring.x[0]) == view.number("permutation")[20]
    (violin,) = [violin for violin in traces(figure, "violin") if 20 in members_of(violin)]
    assert ring.y[0] == violin.y[0]
    assert [violin.showlegend for violin in traces(figure, "violin")].count(True) == 2
    assert violin.points == "all"
    many = checked_set(FEW_POINTS + 20)
    assert {violin.points for violin in traces(permutation_chart(many), "violin")} == {False}


def test_each_input_stands_below_its_own_bound():
    view = checked_set()
    figure = jsd_scatter_chart(view)
    stems, bounds, *groups, ring = figure.data
    known = np.isfinite(view.number("jsd"))
    np.testing.assert_array_equal(np.asarray(bounds.y, np.float32), view.number("jsd_bound")[known])
    lines = np.asarray(stems.y, np.float32).reshape(-1, 3)
    np.testing.assert_array_equal(lines[:, 0], view.number("jsd")[known])
    np.testing.assert_array_equal(lines[:, 1], view.number("jsd_bound")[known])
    assert np.isnan(lines[:, 2]).all()
    drawn = np.concatenate([members_of(group) for group in groups])
    assert sorted(drawn) == np.flatnonzero(known).tolist(), "the input without a number is left out"
    for group in groups:
        members = members_of(group)
        np.testing.assert_array_equal(np.asarray(group.y, np.float32), view.number("jsd")[members])
        np.testing.assert_array_equal(np.asarray(group.x, np.float32), view.number("max_attention")[members])
        np.testing.assert_array_equal(
            np.asarray(group.customdata)[:, 1].astype(np.float32), view.number("jsd_bound")[members]
        )
    assert (np.float32(ring.x[0]), np.float32(ring.y[0])) == (
        view.number("max_attention")[20],
        view.number("jsd")[20],
    )
    assert figure.layout.shapes[0].y0 == LARGEST_JSD
    assert figure.layout.annotations[0].text == "ln 2"
    assert len(jsd_scatter_chart(dataclasses.replace(view, marked=39)).data) == 4, "the marked one has no JSD"
    assert len(jsd_scatter_chart(checked_set(FEW_POINTS + 20, marked=None)).data) == 2


def test_histograms_count_every_input_once():
    view = checked_set()
    bars = traces(jsd_histogram_chart(view), "bar")
    counts = np.sum([bar.y for bar in bars], axis=0)
    assert counts.tolist() == histogram(view.number("jsd"), jsd_edges()).tolist()
    assert counts.sum() == 39
    assert [bar.marker.color for bar in bars] == [group.colour for group in input_groups(view)]
    place = int(np.argmax(bars[0].y))
    low, high = jsd_edges()[place : place + 2]
    assert bars[0].customdata[place] == f"{low:.3g} to {high:.3g} nats: <b>{bars[0].y[place]}</b> inputs"
    assert "1</b> input" in "".join(bars[0].customdata)


def test_agreement_has_a_histogram_a_mean_and_the_share_of_significant_ones():
    view = checked_set()
    figure = agreement_chart(view)
    gradient, without = traces(figure, "bar")
    assert np.asarray(gradient.y).tolist() == histogram(view.number("tau_gradient"), tau_edges()).tolist()
    assert (gradient.marker.color, without.marker.color) == tuple(AGREEMENT_COLOURS.values())
    means = [line.x[0] for line in traces(figure, "scatter")]
    assert means[0] == pytest.approx(np.nanmean(view.number("tau_gradient").astype(np.float64)))
    share = (view.number("p_leave_one_out") < 0.05).mean()
    assert figure.layout.annotations[1].text.endswith(
        f"{share:.0%} significant (p < 0.05)".replace("<", "&lt;")
    )
    assert "xaxis3" not in figure.layout
    single = replaced(view, "tau_gradient", np.full(40, np.nan, np.float32))
    assert len(traces(agreement_chart(single), "bar")) == 1


@pytest.mark.parametrize("chart", SET_CHARTS)
def test_what_was_not_measured_is_said(chart):
    for view in (
        checked_set(2, numbers=()),
        dataclasses.replace(
            checked_set(2),
            numbers=tuple(
                CheckedNumber(number.key, number.title, np.full(2, np.nan))
                for number in checked_set(2).numbers
            ),
        ),
    ):
        figure = chart(view)
        assert figure.data == ()
        (note,) = figure.layout.annotations
        assert note.text.endswith(("not measured.", "looked for."))
        assert figure.layout.xaxis.visible is False


@pytest.mark.parametrize("chart", SET_CHARTS)
def test_one_input_is_drawn_and_parts_that_do_not_fit_are_refused(chart):
    whole = tuple(
        CheckedNumber(number.key, number.title, np.full(1, 0.5)) for number in checked_set(1).numbers
    )
    assert len(chart(checked_set(1, numbers=whole)).data) > 0
    with pytest.raises(ValueError, match=f"{chart.__name__}: predicted must be"):
        chart(checked_set(2, predicted=np.zeros(3, dtype=int)))


# One input ----------------------------------------------------------------------------------------------------------


@given(
    changes=st.lists(st.floats(0.0, 1.0) | st.just(float("nan")), min_size=1, max_size=30),
    epsilon=st.floats(0.0, 0.5),
)
@settings(max_examples=40)
def test_permutations_of_one_input_are_all_counted(changes, epsilon):
    figure = permutations_of_one_chart(np.array(changes), epsilon)
    known = [change for change in changes if not math.isnan(change)]
    if not known:
        assert figure.layout.annotations[0].text == "No permutation was tried."
        return
    (bars,), (ticks,) = traces(figure, "bar"), traces(figure, "scatter")
    assert sum(bars.y) == len(known)
    assert list(ticks.x) == known
    lines = [shape.x0 for shape in figure.layout.shapes]
    assert lines == [pytest.approx(np.median(known)), epsilon]
    within = sum(change <= epsilon for change in known) / len(known)
    texts = [note.text for note in figure.layout.annotations]
    assert texts == [f"median {np.median(known):.3g}", f"ε = {epsilon:.3g}, {within:.0%} within"]
    assert max([*known, epsilon]) <= figure.layout.xaxis.range[1]
    shifts = [note.yshift for note in figure.layout.annotations]
    assert shifts[0] != shifts[1], "the words never lie on each other"


def test_thousands_of_permutations_have_no_ticks():
    figure = permutations_of_one_chart(np.linspace(0, 1, 5000), 0.01)
    assert [trace.type for trace in figure.data] == ["bar"]


# Edited heads -------------------------------------------------------------------------------------------------------


def test_cells_and_points_tell_layer_and_head():
    view = head_effects()
    figure = head_effects_chart(view)
    cells, lacking = traces(figure, "heatmap")
    np.testing.assert_array_equal(np.asarray(cells.z, np.float32), view.heads[1])
    assert np.asarray(cells.customdata)[4, 7].tolist() == [4, 7]
    assert np.argwhere(np.isfinite(np.asarray(lacking.z, float))).tolist() == [[2, 9], [2, 10], [2, 11]]
    assert cells.zmin == -cells.zmax
    assert cells.zmax == pytest.approx(np.nanmax(np.abs(view.heads[1])))
    (points,) = traces(figure, "scatter")
    assert np.asarray(points.customdata).tolist() == [
        [layer, head] for layer in range(6) for head in range(12)
    ]
    assert (list(points.x[:13]), list(points.y[:13])) == ([*range(12), 0], [0] * 12 + [1])
    assert {points.marker.opacity, points.selected.marker.opacity, points.unselected.marker.opacity} == {0}
    assert points.text[2 * 12 + 9] == "no number"
    exact = float(points.text[0].replace("−", "-"))
    assert exact == pytest.approx(float(view.heads[1, 0, 0]), rel=1e-5)
    (frame,) = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (10.5, 11.5, 4.5, 5.5)


def test_colours_of_changes_are_clear_at_zero_and_signed():
    (scale,) = {
        trace.colorscale for trace in traces(head_effects_chart(head_effects(shown=0)), "heatmap")[:1]
    }
    colours = [colour for _, colour in scale]
    middle = colours[len(colours) // 2]
    assert float(middle.rstrip(")").split(",")[-1]) < 0.03
    assert colours[0] == "rgba({}, {}, {}, 1.000)".format(*AGAINST)
    assert colours[-1] == "rgba({}, {}, {}, 1.000)".format(*FOR)


def test_layers_and_all_of_them_are_bars():
    view = head_effects(shown=2, marked=None)
    figure = head_effects_chart(view)
    (bars,) = traces(figure, "bar")
    np.testing.assert_array_equal(np.asarray(bars.x, np.float32), [*view.layers[2], view.whole[2]])
    assert bars.text[4] == bars.text[6] == "no number"
    assert bars.customdata[6][0] == "all heads of all layers"
    assert bars.customdata[3][0] == "all heads of layer 3"
    assert [bars.marker.color[place] for place in range(4)] == [
        "rgb({}, {}, {})".format(*(FOR if value >= 0 else AGAINST)) for value in view.layers[2, :4]
    ]
    assert figure.layout.yaxis.ticktext[-1] == "all layers"
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "layer 0 is on top"
    assert not [shape for shape in figure.layout.shapes if shape.type == "rect"]


def test_nothing_but_missing_numbers_is_drawn_and_parts_that_do_not_fit_are_refused():
    nothing = head_effects(
        edits=("e",), heads=np.full((1, 2, 3), np.nan), layers=np.full((1, 2), np.nan), whole=np.full(1, np.nan),
        shown=0, marked=None,
    )  # fmt: skip
    cells, _ = traces(head_effects_chart(nothing), "heatmap")
    assert (cells.zmin, cells.zmax) == (-1, 1)
    with pytest.raises(ValueError, match="head_effects_chart: edits must be 3 titles"):
        head_effects_chart(head_effects(edits=("one",)))


# Trained adversaries ------------------------------------------------------------------------------------------------


def test_models_stand_at_their_distances_with_their_intervals():
    adversaries, seeds, uniform = trade_off_chart(TradeOff(POINTS)).data
    assert (list(adversaries.x), list(adversaries.y)) == ([0.01, 0.15], [0.1, 0.66])
    assert adversaries.mode == "lines+markers+text"
    assert (seeds.mode, uniform.mode) == ("markers", "markers")
    assert list(adversaries.error_x.array) == pytest.approx([0.01, 0.05])
    assert list(adversaries.error_x.arrayminus) == pytest.approx([0.005, 0.05])
    assert list(adversaries.error_y.array) == pytest.approx([0.05, 0.0])
    assert seeds.error_x.array is None
    assert adversaries.customdata[0][0] == " (0.005 to 0.02)"
    assert adversaries.customdata[1][1] == ""
    assert len({trace.marker.symbol for trace in (adversaries, seeds, uniform)}) == 3
    figure = trade_off_chart(TradeOff(POINTS))
    assert figure.layout.xaxis.range[1] > 0.2
    assert figure.layout.annotations[0].text == "ln 2"


def test_one_model_or_none_is_drawn():
    (only,) = trade_off_chart(TradeOff((TradeOffPoint("a", "adversary", 0.0, 0.0),))).data
    assert only.mode == "markers"
    assert trade_off_chart(TradeOff(())).layout.annotations[0].text == "No trained model was compared."


@given(st.sampled_from(HOSTILE) | st.text(st.characters(codec=None), max_size=30))
@settings(max_examples=40)
def test_any_name_is_shown_as_it_is(text):
    (trace,) = trade_off_chart(TradeOff((TradeOffPoint(text, "seed", 0.1, 0.1, label=text),))).data
    assert "<" not in trace.hovertext[0]
    assert "<" not in trace.text[0]
    trace.hovertext[0].encode()
    view = checked_set(
        1, names=(text,), labels=(text, "b", "c"), predicted=np.zeros(1, dtype=int), marked=None
    )
    (violin,) = permutation_chart(view).data
    assert "<" not in violin.text[0] + violin.name
