"""The Plotly chart of a sheet of curves: every number once, gaps, intervals, axes as in files, and text as it is."""

from __future__ import annotations

import dataclasses
import html
import json
import math

import numpy as np
import pytest

from analysis.figure_data import HEAD_COLOURS
from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from analysis.visible import visible_text
from analysis.visible_lab import across_ends, across_ticks, drawn_points, up_ends, up_ticks
from dashboard.charts import CHART_FONT, CHART_TEXT
from dashboard.lab_charts import curve_sheet_chart
from tests.sample_figures import HOSTILE, curve_sheet

CLEAR = "rgba(0, 0, 0, 0)"


def chart():
    return curve_sheet_chart(curve_sheet())


def series(figure, name):
    """The trace of a curve that tells its points."""
    (found,) = [trace for trace in figure.data if trace.name == name and trace.customdata is not None]
    return found


def bands_of(figure):
    return [trace for trace in figure.data if trace.type == "scatter" and trace.fill == "toself"]


def one_panel(*curves, **changes):
    panel = CurvePanel(**{"title": "t", "x_title": "x", "y_title": "y", "curves": curves, **changes})
    return CurveSheet((panel,))


def test_a_chart_is_ours_in_both_themes_and_can_be_sent():
    figure = chart()
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == CLEAR
    assert (figure.layout.font.color, figure.layout.font.family) == (CHART_TEXT, CHART_FONT)
    json.loads(figure.to_json())
    for trace in figure.data:
        told = trace.marker.color or trace.fillcolor or trace.line.color
        assert told is not None, "no colour of a theme"


def test_every_point_that_can_be_drawn_stands_at_its_place():
    figure, view = chart(), curve_sheet()
    panel = view.panels[0]
    names = ("measured &lt;here&gt;", "theory d<sub>k</sub>", "scaled")
    for curve, name in zip(panel.curves, names, strict=True):
        trace, kept = series(figure, name), drawn_points(curve, panel)
        np.testing.assert_array_equal(trace.x, curve.x)
        np.testing.assert_array_equal(np.isfinite(trace.y), kept)
        np.testing.assert_array_equal(np.asarray(trace.y)[kept], curve.y[kept])
        assert trace.connectgaps is False
    measured = series(figure, "measured &lt;here&gt;")
    assert np.flatnonzero(np.isnan(measured.y)).tolist() == [2, 7], "no value, and 0 on a logarithmic axis"


def test_points_tell_exact_numbers_and_names():
    figure = chart()
    measured = series(figure, "measured &lt;here&gt;")
    assert list(measured.customdata[0]) == [
        "measured &lt;here&gt;",
        "d<sub>k</sub> 1",
        "1.1",
        " (0.825 to 1.375)",
    ]
    assert measured.customdata[2][3] == "", "no interval where there is no value"
    bars = series(figure, "=multi-head")
    escaped = [html.escape(visible_text(label), quote=False) for label in HOSTILE[:3]]
    assert [entry[1] for entry in bars.customdata] == escaped
    exact = np.float32(0.1)
    told = series(curve_sheet_chart(one_panel(Curve("c", np.array([-0.5]), np.array([exact])))), "c")
    assert list(told.customdata[0][1:3]) == ["x −0.5", "0.1"]


def test_no_name_is_read_as_markup_or_as_a_template():
    for trace in chart().data:
        assert "%{x}" not in (trace.hovertemplate or "")
    assert series(chart(), "%{x} grouped").customdata[0][0] == "%{x} grouped"
    assert "\\u003chere" not in chart().to_json(), "how Plotly writes <here>"
    assert "&lt;here" in chart().to_json()
    ticks = chart().layout.xaxis2.ticktext
    assert ticks[0] == "&lt;!--#exec"


def test_lines_have_bands_and_points_have_whiskers():
    figure, view = chart(), curve_sheet()
    bands = bands_of(figure)
    assert len(bands) == 2, "one for each run of points with an interval"
    measured = view.panels[0].curves[0]
    np.testing.assert_array_equal(bands[0].x, [1, 2, 2, 1])
    np.testing.assert_array_equal(bands[0].y, [*measured.high[:2], *measured.low[1::-1]])
    assert all(band.hoverinfo == "skip" and band.showlegend is False for band in bands)
    scaled = series(figure, "scaled")
    np.testing.assert_array_equal(scaled.error_y.array, np.ones(8))
    np.testing.assert_array_equal(scaled.error_y.arrayminus, np.full(8, 0.5))


def test_a_band_that_reaches_0_ends_at_a_logarithmic_axis():
    y = np.array([1.0, 2.0])
    view = one_panel(Curve("c", y, y, np.array([0.0, 1.0]), y * 2), log_y=True)
    (band,) = bands_of(curve_sheet_chart(view))
    assert min(band.y) == up_ends(view.panels[0])[0] > 0


def test_axes_are_those_of_files():
    figure, view = chart(), curve_sheet()
    for panel, x, y in (
        (view.panels[0], figure.layout.xaxis, figure.layout.yaxis),
        (view.panels[1], figure.layout.xaxis2, figure.layout.yaxis2),
    ):
        for axis, log, ends, ticks in (
            (x, panel.log_x, across_ends(panel), across_ticks(panel)),
            (y, panel.log_y, up_ends(panel), up_ticks(panel)),
        ):
            assert axis.type == ("log" if log else "linear")
            wanted = [math.log10(end) for end in ends] if log else ends
            np.testing.assert_allclose(axis.range, wanted)
            assert list(axis.tickvals) == [place for place, _ in ticks]
    assert figure.layout.xaxis.title.text == "d<sub>k</sub>"
    assert figure.layout.yaxis2.title.text == "MiB"


def test_bars_stand_beside_each_other_about_their_place():
    first, second = (series(chart(), name) for name in ("=multi-head", "%{x} grouped"))
    np.testing.assert_allclose((np.array(first.x) + np.array(second.x)) / 2, [0, 1, 2])
    assert second.x[0] - first.x[0] == pytest.approx(first.width) == 0.4
    assert np.isnan(second.y[1])


def test_a_curve_stands_in_the_legend_once_with_one_colour():
    x = np.arange(2.0)
    same, other = Curve("c", x, x, x, x, hue=4), Curve("d", x, x, hue=5)
    panels = (
        CurvePanel("", "", "", (same, other)),
        CurvePanel("", "", "", (other, same)),
        CurvePanel("", "", "", (Curve("c", x, x, hue=6),)),
    )
    figure = curve_sheet_chart(CurveSheet(panels))
    shown = [(trace.name, trace.line.color) for trace in figure.data if trace.showlegend]
    assert shown == [("c", HEAD_COLOURS[4]), ("d", HEAD_COLOURS[5]), ("c", HEAD_COLOURS[6])]
    groups = {trace.legendgroup for trace in figure.data if trace.name == "c"}
    assert len(groups) == 2
    assert figure.layout.showlegend is True
    assert curve_sheet_chart(one_panel(same)).layout.showlegend is False


def test_the_chosen_place_is_marked():
    (line,) = chart().layout.shapes
    assert (line.x0, line.x1, line.xref, line.yref) == (16.0, 16.0, "x", "y domain")
    assert line.line.color == CHART_TEXT


def test_panels_stand_in_as_many_columns_as_asked():
    view = curve_sheet()
    panels = dataclasses.replace(view, panels=(view.panels[1],) * 3)
    beside, below = curve_sheet_chart(panels), curve_sheet_chart(panels, columns=2)
    assert beside.layout.yaxis3.domain == beside.layout.yaxis.domain
    assert below.layout.yaxis3.domain[1] < below.layout.yaxis.domain[0]
    assert below.layout.height > beside.layout.height
    assert curve_sheet_chart(panels, columns=9).layout.xaxis3.domain == beside.layout.xaxis3.domain
    with pytest.raises(
        ValueError, match="curve_sheet_chart: columns must be at least 0 but is -1; use 0 for all"
    ):
        curve_sheet_chart(panels, columns=-1)
    with pytest.raises(ValueError, match="curve_sheet_chart: panels must be at least one"):
        curve_sheet_chart(CurveSheet(()))
