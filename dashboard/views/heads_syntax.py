"""Syntactic heads: an annotated treebank, and which head follows which dependency relation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.export import csv_cell
from dashboard import cached, heads_cache
from dashboard.frame import literal, note, small_table, waiting_view
from dashboard.selection import Part
from dashboard.views.heads_sources import Page

if TYPE_CHECKING:
    from analysis.heads.syntax import BestHead, SyntaxCounts

KEPT = "text_heads_treebank"
MEGABYTES = 5
ROWS = 40


def known(page: Page, traced: cached.Traced, part: Part, shape: tuple[int, int]) -> dict[str, Any]:
    """ "syntactic" (L, H) where a treebank has been counted: how far a head's best relation is above its baseline.

    Each head's relation is chosen on one half of the treebank; the figure is the other half's, since of many
    relations the best on the same sentences flatters.
    """
    halves = None if page == "image" else _counted(traced)
    if halves is None:
        return {}
    names = halves[1].heads
    chosen, reported = _gains(halves[0]), _gains(halves[1])
    common = [relation for relation in chosen if relation in reported]
    if not common:
        return {"syntactic": np.zeros(shape)}
    first = np.stack([chosen[relation] for relation in common])  # (relations, heads)
    second = np.stack([reported[relation] for relation in common])
    best = np.take_along_axis(second, first.argmax(0)[None], axis=0)[0]
    found = np.zeros(shape)
    for name, gain in zip(names, best.tolist(), strict=True):
        if name.kind == part and name.layer < shape[0] and name.head < shape[1]:
            found[name.layer, name.head] = max(gain, 0.0)
    return {"syntactic": found}


def _gains(counts: SyntaxCounts) -> dict[tuple[str, str], Any]:
    """(heads,) accuracy above the baseline of each relation and direction that has enough arcs."""
    from analysis.heads.syntax import syntax_scores

    return {
        (scores.relation, scores.direction): scores.accuracy - scores.baseline
        for scores in syntax_scores(counts)
        if scores.enough
    }


def _counted(traced: cached.Traced) -> tuple[SyntaxCounts, SyntaxCounts] | None:
    kept = st.session_state.get(KEPT)
    if kept is None:
        return None
    running = heads_cache.syntax(traced.shared, kept["digest"], kept["sentences"])
    return running.result  # type: ignore[no-any-return]


def show(page: Page, traced: cached.Traced, progress: Callable[..., None]) -> None:
    """Upload, progress, and the table of the best head of each relation.

    Args:
        progress: (title, job, count) → draws how far a job is.
    """
    st.file_uploader(
        f"Treebank in CoNLL-U (.conllu, or packed as .gz), up to {MEGABYTES} MB",
        type=["conllu", "conll", "txt", "gz"],
        key=f"{KEPT}_file",
        max_upload_size=MEGABYTES,
        on_change=_uploaded,
        width=560,
    )
    problem = st.session_state.get(f"{KEPT}_problem")
    if problem:
        st.error(literal(problem))
    kept: Mapping[str, Any] | None = st.session_state.get(KEPT)
    if kept is None:
        note(
            "Universal Dependencies (universaldependencies.org) has treebanks of many languages under free licences. "
            "Half of the sentences choose the best head of each relation, the other half says how good it is."
        )
        return
    running = heads_cache.syntax(traced.shared, kept["digest"], kept["sentences"])
    if running.job.state != "ready":
        progress(f"Dependencies of {len(kept['sentences']):,} sentences", running.job, lambda: 0)
    if running.result is None:
        waiting_view("The table appears here when the first sentences are through.")
        return
    _table(running.result, kept["name"])


def _uploaded() -> None:
    from analysis.heads.treebank import read_treebank

    file = st.session_state[f"{KEPT}_file"]
    st.session_state[f"{KEPT}_problem"] = None
    if file is None:
        return
    data: bytes = file.getvalue()
    try:
        sentences = read_treebank(data)
        if len(sentences) < 2:
            raise ValueError(
                "the treebank must hold two sentences at least: one half chooses, the other reports."
            )
    except ValueError as error:
        st.session_state[f"{KEPT}_problem"] = f"{file.name}: {str(error).removeprefix('read_treebank: ')}"
        return
    digest = cached.digest(file.name, data.hex())
    st.session_state[KEPT] = {"digest": digest, "name": file.name, "sentences": sentences}


def _table(halves: tuple[SyntaxCounts, SyntaxCounts], name: str) -> None:
    from analysis.heads.syntax import best_heads

    found = best_heads(*halves)
    shown = [best for best in found if best.enough][:ROWS]
    header = ("relation", "asks", "best head", "accuracy", "95 %", "best offset", "its accuracy", "arcs", "")
    rows = [_row(best) for best in shown]
    if rows:
        small_table(header, rows)
    few = sorted({best.relation for best in found if not best.enough})
    note(
        f"{name}: heads chosen on {halves[0].sentences:,} sentences, figures from {halves[1].sentences:,} others. "
        "A head beats its baseline by 10 points where “syntactic” stands (Clark et al. 2019, section 4.2; Voita et "
        "al. 2019, section 5.2)."
    )
    if few:
        note(f"Too few arcs to tell: {', '.join(few)}.")
    if halves[0].dropped + halves[1].dropped:
        note(
            f"{halves[0].dropped + halves[1].dropped:,} arcs were left out: a word of theirs has no token of its own."
        )
    st.download_button(
        "Table as CSV",
        data=lambda: _csv(found),
        file_name="attnscope_syntactic-heads.csv",
        mime="text/csv",
        key=f"{KEPT}_csv",
        on_click="ignore",
    )


def _row(best: BestHead) -> Sequence[str]:
    asks = "dependent" if best.direction == "dependent to head" else "head"
    return (
        best.relation,
        asks,
        f"{best.head.layer} · {best.head.head}",
        f"{best.accuracy:.1%}",
        f"{best.low:.0%} to {best.high:.0%}",
        f"{best.offset:+d}".replace("-", "−"),
        f"{best.baseline:.1%}",
        f"{best.arcs:,}",
        "syntactic" if best.syntactic else "",
    )


def _csv(found: Sequence[BestHead]) -> bytes:
    lines = ["relation,direction,kind,layer,head,accuracy,low,high,offset,baseline,arcs,enough,syntactic"]
    for best in found:
        words = (csv_cell(word) for word in (best.relation, best.direction, best.head.kind))
        numbers = (best.accuracy, best.low, best.high)
        lines.append(
            ",".join(words)
            + f",{best.head.layer},{best.head.head},"
            + ",".join(f"{number:.4f}" for number in numbers)
            + f",{best.offset},{best.baseline:.4f},{best.arcs},{best.enough},{best.syntactic}"
        )
    return ("\n".join(lines) + "\n").encode()
