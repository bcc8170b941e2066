"""The table of evidence for every predicted word: its blob, its mount, and what is believed of a browser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import EvidenceWords
from analysis.visible_evidence import evidence_colours
from dashboard.components.mount import Callback, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import input_digest, pack, read_header, token_entries


def evidence_table_payload(view: EvidenceWords) -> bytes:
    """What the ``evidence_table`` component draws.

    Raises:
        ValueError: if scores, labels and panels do not belong together.
    """
    shape = len(view.predicted), len(view.tokens)
    if not view.predicted or view.scores.shape != shape or len(view.panels) != shape[0]:
        raise ValueError(
            f"evidence_table_payload: scores must be {shape}, a row and a panel a predicted word and a column a "
            f"token, but is {view.scores.shape} with {len(view.panels)} panels."
        )
    first = view.panels[0]
    header = {
        "kind": "evidence_table",
        "title": view.title,
        "tokens": token_entries(view.tokens),
        "predicted": token_entries(view.predicted),
        "probabilities": [] if view.probabilities is None else [float(share) for share in view.probabilities],
        "input": input_digest(view.tokens, view.predicted),
        "panel": {**asdict(first), "limit": float(first.limit)},
        "state": {"marked": None if view.marked is None else int(view.marked), "positive": view.positive},
    }
    arrays: dict[str, NDArray[Any]] = {
        "scores": np.asarray(view.scores, dtype=np.float32),
        "colours": evidence_colours(first.signed),
    }
    return pack(header, arrays)


def evidence_table(payload: bytes, *, key: str, on_change: Callback | None = None) -> dict[str, Any]:
    """The table; it scrolls inside its frame where there are many words.

    Args:
        payload: of ``evidence_table_payload``.
        key: of the mount.
        on_change: called before the next run when the user chose a word or changed the drawing; read
            ``table_state`` there.
    Returns:
        once the user has chosen them: ``marked`` (index of a predicted word) or None, ``positive``.
    """
    header, _ = read_header(payload)
    said = table_state(header, key=key)
    sent = without_echo(payload, {**header["state"], **said} if said else None, key=key)
    events = dict.fromkeys(("word", "view"), on_change)
    return checked_table(mount("evidence_table", sent, key=key, height="content", callbacks=events), header)


def table_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    import streamlit as st

    return checked_table(st.session_state.get(key), header)


def checked_table(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a table said that fit the blob; a chosen word only of the same input.

    Args:
        said: what came from the browser: ``word`` {``at``, ``input``}, ``view`` {``positive``}.
        header: of the blob (``predicted``, ``input``).
    """
    state: dict[str, Any] = {}
    if not isinstance(said, Mapping):
        return state
    word, view = said.get("word"), said.get("view")
    if isinstance(word, Mapping) and "at" in word and word.get("input") == header["input"]:
        at = word["at"]
        if at is None or is_index(at, len(header["predicted"])):
            state["marked"] = at
    if isinstance(view, Mapping) and isinstance(view.get("positive"), bool):
        state["positive"] = view["positive"]
    return state
