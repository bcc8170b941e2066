"""Models that were trained to attend otherwise: what Wiegreffe & Pinter 2019 asked, measured on our classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure_data import TradeOff, TradeOffGroup, TradeOffPoint
from dashboard import check_charts
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.frame import heading, note, notes, small_table
from dashboard.views.adversarial_source import Board

if TYPE_CHECKING:
    from analysis.adversarial.measured import Estimate, Kind, Measurements, TrainedModel
    from attn_core.models.classifier import Scoring

GUIDE_WORDS: Mapping[Kind, str] = {
    "guide_uniform": "uniform",
    "guide_learned": "learnt by itself",
    "guide_base": "the classifier's",
    "guide_adversary": "an adversary's",
}

SCORING_WORDS: Mapping[Scoring, str] = {
    "additive": "additive attention",
    "scaled_dot": "scaled dot attention",
}


def show(board: Board, choices: AdversarialChoices) -> TradeOff:
    """Draw the part; returns the record of what is on the screen. Nothing is computed on the page."""
    from analysis.adversarial.measured import wiegreffe_pinter

    measured, scoring = wiegreffe_pinter(), _scoring(board)
    told = []
    if not measured.of("adversary", scoring):
        scoring = "additive"
        told.append("Measured for the classifier with additive attention.")
    told += [f"{name.capitalize()}: {words}." for name, words in measured.protocol.items()]
    view = TradeOff(
        _points(measured, scoring), f"test sentences of SST, {SCORING_WORDS[scoring]}", tuple(told)
    )
    heading(
        "Can a model be trained to attend otherwise?",
        "Wiegreffe & Pinter 2019, section 4: distance of attention against distance of predictions",
    )
    st.plotly_chart(
        check_charts.trade_off_chart(view),
        key="text_adversarial_trade_off",
        theme=None,
        config={"displayModeBar": False},
        alt="Distance of attention against distance of predictions of models that were trained otherwise",
    )
    note(
        "Each point is a model trained from the start. An adversary is rewarded for attention unlike the "
        "classifier's while it predicts the same. Attention explains little where they stand far up at the left."
    )
    rows = [_row("this classifier", model) for model in measured.of("base", scoring)]
    rows += [
        _row(f"attention held uniform, seed {model.seed}", model) for model in measured.of("uniform", scoring)
    ]
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
        _row(_guide_words(words, model), model)[:3]
        for kind, words in GUIDE_WORDS.items()
        for model in measured.of(kind, scoring)
    ]
    small_table(("Weights of the words", "Test accuracy", "F1"), guides)
    notes(view.notes)
    return view


def _scoring(board: Board) -> Scoring:
    scores = board.traced.model.module.scores
    return "scaled_dot" if type(scores).__name__ == "ScaledDotScores" else "additive"


def _guide_words(words: str, model: TrainedModel) -> str:
    of = "" if model.trade_off is None else f", λ = {model.trade_off:g}"
    return f"{words}{of}, seed {model.seed}"


def _points(measured: Measurements, scoring: Scoring) -> tuple[TradeOffPoint, ...]:
    found = []
    groups: tuple[TradeOffGroup, ...] = ("adversary", "seed", "uniform")
    for group in groups:
        for model in measured.of(group, scoring):
            if model.tvd is None or model.jsd is None:
                continue
            words = {
                "adversary": f"adversary, λ = {model.trade_off or 0:g}",
                "seed": f"seed {model.seed}",
                "uniform": "attention held uniform",
            }
            found.append(
                TradeOffPoint(
                    name=words[group],
                    group=group,
                    tvd=model.tvd.value,
                    jsd=model.jsd.value,
                    tvd_interval=(model.tvd.low, model.tvd.high),
                    jsd_interval=(model.jsd.low, model.jsd.high),
                    label=f"{model.trade_off:g}" if group == "adversary" else "",
                )
            )
    return tuple(found)


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
