"""How a section of the Lab puts its figures on the page."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from analysis.figure_lab import CurveSheet, MatrixSheet
from dashboard import lab_charts
from dashboard.components.lab_views import MatrixCell, matrix_sheet
from dashboard.lab_payload import matrix_sheet_payload


def show_matrices(
    view: MatrixSheet, *, key: str, on_select: Callable[[MatrixCell], None] | None = None
) -> None:
    """A sheet of small heat maps.

    Args:
        key: of the component, such as "lab_formula_matrices".
        on_select: called with the matrix, row and column that the user picked.
    """
    matrix_sheet(matrix_sheet_payload(view), key=key, on_select=on_select)


def show_curves(view: CurveSheet, *, key: str, columns: int = 0) -> None:
    """Panels of curves.

    Args:
        columns: how many panels stand in one row; 0 = all.
    """
    st.plotly_chart(
        lab_charts.curve_sheet_chart(view, columns=columns),
        key=key,
        theme=None,
        config={"displayModeBar": False},
        alt=": ".join(filter(None, (view.title, ", ".join(panel.title for panel in view.panels)))),
    )
