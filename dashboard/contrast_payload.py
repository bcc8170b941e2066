"""A contrast of attention distributions packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import AttentionContrast
from analysis.visible import visible_text
from analysis.visible_checks import within_epsilon
from analysis.visible_contrast import (
    BY_HAND,
    CANDIDATE_COLOUR,
    OBSERVED_COLOUR,
    are_probabilities,
    check_contrast,
    prefix_names,
)
from analysis.visible_evidence import evidence_colours
from dashboard.figures import display_copy, input_digest, pack, token_entries


def attention_contrast_payload(view: AttentionContrast) -> bytes:
    """What the ``attention_contrast`` component draws.

    Raises:
        ValueError: if parts of the contrast do not belong together (``analysis.visible_contrast.check_contrast``).
    """
    check_contrast(view, "attention_contrast_payload")
    numbers = zip(view.names, view.jsd.tolist(), view.change.tolist(), within_epsilon(view), strict=True)
    header: dict[str, Any] = {
        "kind": "attention_contrast",
        "title": visible_text(view.title),
        "positions": int(view.weights.shape[1]),
        "tokens": token_entries(view.tokens),
        "grid": None if view.grid is None else [int(size) for size in view.grid],
        "prefix": list(prefix_names(view.prefix)),
        "direction": view.direction,
        "rows": int(view.rows),
        "candidates": [
            {
                "name": visible_text(name),
                "jsd": max(float(jsd), 0.0),
                "change": max(float(change), 0.0),
                "same": bool(same),
            }
            for name, jsd, change, same in numbers
        ],
        "hand": view.names.index(BY_HAND) if BY_HAND in view.names else None,
        "labels": [visible_text(label) for label in view.labels],
        "probabilities": are_probabilities(view),
        "jsd_bound": float(view.jsd_bound),
        "change_name": visible_text(view.change_name),
        "change_bound": None if view.change_bound is None else float(view.change_bound),
        "epsilon": float(view.epsilon),
        "verdict": [visible_text(sentence) for sentence in view.verdict],
        "held": visible_text(view.held),
        "editable": bool(view.editable),
        "colours": [OBSERVED_COLOUR, CANDIDATE_COLOUR],
        "input": contrast_digest(view),
        "state": {"shown": int(view.shown)},
    }
    arrays: dict[str, NDArray[Any]] = {
        "weights": np.asarray(view.weights, dtype=np.float32).clip(min=0.0),
        "outputs": np.asarray(view.outputs, dtype=np.float32),
        "shades": evidence_colours(False),  # attention is not for or against anything
    }
    if view.decoder is not None:
        arrays["decoder"] = np.asarray(view.decoder, dtype=np.float32)
    if view.picture is not None:
        header["picture_size"] = [int(size) for size in view.picture.shape[:2]]
        arrays["picture"] = display_copy(view.picture)
    return pack(header, arrays)


def contrast_digest(view: AttentionContrast) -> str:
    """Short fingerprint of what a position means here and whose attention it is.

    An answer about other tokens, another picture or another head is not taken; the candidates may change.
    """
    meaning = repr((input_digest(view.tokens), view.grid, view.prefix, view.rows, view.title, view.source))
    digest = hashlib.blake2b(meaning.encode("utf-8", "backslashreplace"), digest_size=8)
    if view.picture is not None:
        digest.update(np.ascontiguousarray(view.picture).tobytes())
    return digest.hexdigest()
