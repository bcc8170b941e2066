"""Plotly charts: colours are ours, text is shown as it is."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.figure_data import TokenLabel, TokenScores
from dashboard.charts import token_scores_chart
from dashboard.colour_maps import colour_table


def scores(texts: tuple[str, ...], **options: object) -> TokenScores:
    values = np.linspace(0.5, 0.0, len(texts), dtype=np.float32)
    return TokenScores(values, tuple(TokenLabel(text, text) for text in texts), **options)  # type: ignore[arg-type]


def test_bars_stand_for_the_exact_scores_in_explicit_colours() -> None:
    view = scores(("a", "b", "c"), colour_map="magma", source=1)
    (bars,) = token_scores_chart(view).data
    np.testing.assert_array_equal(bars.y, view.scores)
    assert list(bars.marker.color) == [1.0, 0.5, 0.0]
    assert (bars.marker.cmin, bars.marker.cmax) == (0.0, 1.0)
    ends = [bars.marker.colorscale[place][1] for place in (0, -1)]
    assert ends == ["rgb({}, {}, {})".format(*colour_table("magma")[level]) for level in (0, 255)]
    assert list(bars.marker.line.width) == [0.0, 2.0, 0.0]
    assert [float(text) for text in bars.marker.colorbar.ticktext] == [0.0, 0.125, 0.25, 0.375, 0.5]


def test_the_square_root_scale_colours_bars_as_the_text() -> None:
    (bars,) = token_scores_chart(scores(("a", "b", "c"), scale="sqrt")).data
    assert bars.marker.color[1] == pytest.approx(np.sqrt(0.5))
    assert float(bars.marker.colorbar.ticktext[2]) == 0.125


def test_the_background_is_transparent() -> None:
    layout = token_scores_chart(scores(("a",))).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0, 0, 0, 0)"


def test_tokens_are_not_read_as_markup() -> None:
    hostile = ("<b>x</b>", "a<b<c", "&lt;", "</script><img src=x onerror=alert(1)>")
    figure = token_scores_chart(scores(hostile, unit="<i>u</i>"))
    shown = [
        *figure.layout.xaxis.ticktext,
        *figure.data[0].customdata.ravel(),
        figure.layout.yaxis.title.text,
    ]
    assert not any("<" in str(text) for text in shown)
    assert figure.layout.xaxis.ticktext[:3] == ("&lt;b&gt;x&lt;/b&gt;", "a&lt;b&lt;c", "&amp;lt;")


def test_long_texts_are_numbered_and_right_to_left_ones_run_to_the_left() -> None:
    figure = token_scores_chart(scores(tuple(f"t{index}" for index in range(300)), direction="rtl"))
    assert figure.layout.xaxis.ticktext is None
    assert figure.layout.xaxis.range[0] > figure.layout.xaxis.range[1]


def test_equal_scores_do_not_break_the_scale() -> None:
    view = TokenScores(np.zeros(2, dtype=np.float32), (TokenLabel("a", "a"), TokenLabel("b", "b")))
    assert np.isfinite(token_scores_chart(view).data[0].marker.color).all()


def test_bars_above_the_scale_are_cut_and_told_exactly() -> None:
    view = scores(("[CLS]", "b", "c", "[SEP]"), limits=(0.0, 0.2))
    figure = token_scores_chart(view)
    (bars,) = figure.data
    np.testing.assert_allclose(bars.y, [0.2, 0.2, 1 / 6, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(bars.customdata[:, 2].astype(np.float32), view.scores)
    assert "customdata[2]" in bars.hovertemplate
    assert list(bars.marker.pattern.shape) == ["/", "/", "", ""]
    assert [note.text for note in figure.layout.annotations] == ["0.5 ↑", "0.333 ↑"]
    assert bars.marker.colorbar.ticktext[-1] == "≥ 0.2"
    assert figure.layout.yaxis.range[1] > 0.2
    plain = token_scores_chart(scores(("a", "b")))
    assert (plain.layout.yaxis.range, plain.layout.annotations) == (None, ())
    assert plain.data[0].marker.colorbar.ticktext[-1] == "0.5"
