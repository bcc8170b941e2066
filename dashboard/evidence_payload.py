"""Evidence records packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.export import panel_name, safe_name
from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords
from analysis.visible_evidence import PALE, evidence_colours
from dashboard.figures import display_copy, input_digest, needs_sharp_copy, pack, sharp_copy, token_entries


def evidence_maps_payload(view: EvidenceMaps) -> bytes:
    """What the ``evidence_maps`` component draws.

    Raises:
        ValueError: if maps and panels do not belong together, or the picture is not RGB bytes.
    """
    if view.maps.ndim != 3 or not view.panels or len(view.panels) != len(view.maps):
        raise ValueError(
            f"evidence_maps_payload: maps must be (panels, rows, columns) with a panel each but is {view.maps.shape} "
            f"with {len(view.panels)} panels; give as many."
        )
    if view.picture.dtype != np.uint8 or view.picture.ndim != 3 or view.picture.shape[2] != 3:
        raise ValueError(
            f"evidence_maps_payload: picture must be (height, width, 3) uint8 but is {view.picture.shape} "
            f"{view.picture.dtype}; convert it to RGB."
        )
    digest = hashlib.blake2b(np.ascontiguousarray(view.picture).tobytes(), digest_size=8)
    digest.update(repr(view.maps.shape[1:]).encode("ascii"))
    header = {
        "kind": "evidence_maps",
        "title": view.title,
        "grid": [int(size) for size in view.maps.shape[1:]],
        "picture_size": [int(size) for size in view.picture.shape[:2]],
        "input": digest.hexdigest(),
        "pale": PALE,
        "cards": _cards(view.panels),
        "state": {
            "marked": None if view.marked is None else [int(index) for index in view.marked],
            "positive": view.positive,
            "opacity": float(view.opacity),
            "smooth": view.smooth,
            "grey": view.grey,
        },
    }
    arrays: dict[str, NDArray[Any]] = {
        "scores": np.asarray(view.maps, dtype=np.float32),
        "picture": display_copy(view.picture),
        "signed": evidence_colours(True),
        "unsigned": evidence_colours(False),
    }
    if needs_sharp_copy(view.picture):
        arrays["sharp"] = sharp_copy(view.picture)
    return pack(header, arrays)


def evidence_words_payload(view: EvidenceWords) -> bytes:
    """What the ``evidence_words`` component draws.

    Raises:
        ValueError: if scores, labels and panels do not belong together.
    """
    if not view.panels or view.scores.shape != (len(view.panels), len(view.tokens)):
        raise ValueError(
            f"evidence_words_payload: scores must be ({len(view.panels)}, {len(view.tokens)}), a row a panel and a "
            f"column a label, but is {view.scores.shape}."
        )
    header = {
        "kind": "evidence_words",
        "title": view.title,
        "tokens": token_entries(view.tokens),
        "input": input_digest(view.tokens),
        "direction": view.direction,
        "unit": view.unit,
        "cards": _cards(view.panels),
        "state": {"marked": None if view.marked is None else int(view.marked), "positive": view.positive},
    }
    arrays: dict[str, NDArray[Any]] = {
        "scores": np.asarray(view.scores, dtype=np.float32),
        "signed": evidence_colours(True),
        "unsigned": evidence_colours(False),
    }
    return pack(header, arrays)


def _cards(panels: Sequence[EvidencePanel]) -> list[dict[str, object]]:
    """One card a method, in order, each with its panels (one a target) by their place among the maps.

    ``file`` is the stem of the file that the browser makes of a map.
    """
    cards: list[dict[str, object]] = []
    for index, panel in enumerate(panels):
        file = f"attnscope_{safe_name(panel_name(panel))}"
        entry = {"index": index, **asdict(panel), "limit": float(panel.limit), "file": file}
        last = cards[-1] if cards else None
        if last is not None and last["method"] == panel.method:
            found = last["panels"]
            assert isinstance(found, list)
            found.append(entry)
        else:
            cards.append({"method": panel.method, "panels": [entry]})
    return cards
