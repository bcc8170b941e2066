"""Models that were trained to attend otherwise: what Wiegreffe & Pinter 2019 asked, measured on our classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard import check_charts
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.check_charts import TradeOffPoint
from dashboard.frame import heading, note, small_table
from dashboard.views.adversarial_board import Board

if TYPE_CHECKING:
    from analysis.adversarial.measured import Estimate, TrainedModel

GUIDE_WORDS = {
    "guide_uniform": "uniform",
    "guide_learned": "learnt by itself",
    "guide_base": "the classifier's",
    "guide_adversary": "an adversary's",
}


def show(board: Board, choices: AdversarialChoices) -> None:
    """Draw the part; nothing here is computed on the page, so there is no record."""
    from analysis.adversarial.measured import wiegreffe_pinter

    scoring: Any = "scaled_dot" if board.traced.model.name.endswith("dot") else "additive"
    measured = wiegreffe_pinter()
    base = measured.of("base", scoring) or measured.of("base")
    if not measured.of("adversary", scoring):
        scoring = "additive"
        note("Measured for the classifier with additive attention.")
    heading(
        "Can a model be trained to attend otherwise?",
        "Wiegreffe & Pinter 2019, section 4: distance of attention against distance of predictions",
    )
    points = _points(measured, scoring)
    if points:
        st.plotly_chart(
            check_charts.trade_off_chart(points),
            key="text_adversarial_trade_off",
            theme=None,
            config={"displayModeBar": False},
            alt="Distance of attention against distance of predictions of models that were trained otherwise",
        )
    note(
        "Each point is a model trained from the start. An adversary is rewarded for attention unlike the "
        "classifier's while it predicts the same. Attention explains little where they stand far up at the left."
    )
    rows = [_row("this classifier", model) for model in base[:1]]
    rows += [_row("attention held uniform", model) for model in measured.of("uniform", scoring)]
    rows += [_row(f"seed {model.seed}", model) for model in measured.of("seed", scoring)]
    rows += [
        _row(f"adversary, λ = {model.trade_off:g}", model) for model in measured.of("adversary", scoring)
    ]
    small_table(("Model", "Test accuracy", "F1", "JSD to this one", "TVD to this one"), rows)
    heading(
        "Does the attention help a model without context?",
        "Wiegreffe & Pinter 2019, section 3.3: a classifier of single words, weighted by given attention",
    )
    guides = [
        _row(words, model)[:3]
        for kind, words in GUIDE_WORDS.items()
        for model in measured.of(kind, scoring)  # type: ignore[arg-type]
    ]
    small_table(("Weights of the words", "Test accuracy", "F1"), guides)
    for name, words in measured.protocol.items():
        note(f"{name}: {words}")


def _points(measured: Any, scoring: Any) -> list[TradeOffPoint]:
    found = []
    for kind in ("adversary", "seed", "uniform"):
        for model in measured.of(kind, scoring):
            if model.tvd is None or model.jsd is None:
                continue
            words = {
                "adversary": f"adversary, λ = {model.trade_off or 0:g}",
                "seed": f"seed {model.seed}",
                "uniform": "attention held uniform",
            }
            found.append(
                TradeOffPoint(
                    name=words[kind],
                    group=kind,  # type: ignore[arg-type]
                    tvd=model.tvd.value,
                    jsd=model.jsd.value,
                    tvd_interval=(model.tvd.low, model.tvd.high),
                    jsd_interval=(model.jsd.low, model.jsd.high),
                    label=f"{model.trade_off:g}" if kind == "adversary" else "",
                )
            )
    return found


def _row(name: str, model: TrainedModel) -> tuple[str, ...]:
    return (
        name,
        _percent(model.accuracy),
        f"{model.f1.value:.3f}",
        "–" if model.jsd is None else f"{model.jsd.value:.3f}",
        "–" if model.tvd is None else f"{model.tvd.value:.3f}",
    )


def _percent(found: Estimate) -> str:
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
