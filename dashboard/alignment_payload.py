"""Translations as they come about, packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.visible import visible_text
from dashboard.colour_maps import colour_table
from dashboard.figures import pack
from dashboard.frame import signed_number

if TYPE_CHECKING:
    from analysis.translation import StepByStep


def alignment_payload(found: Mapping[str, StepByStep], *, step: int) -> bytes:
    """What the ``alignment`` component draws.

    Args:
        found: scoring → its translation of one sentence.
        step: of the decoder that is shown first; past the end it is the whole translation.
    """
    from analysis.lab.alignment import SCORING_TITLES, shown_word

    panels: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {"lut": colour_table("viridis")}
    for index, (scoring, steps) in enumerate(found.items()):
        weights = steps.alignment
        if weights is not None:
            arrays[f"weights_{index}"] = np.ascontiguousarray(weights.numpy(), dtype=np.float32)
        total = float(np.sum(np.log([each.probability for each in steps.steps])))
        panels.append(
            {
                "title": SCORING_TITLES[scoring],
                "about": _ABOUT[scoring],
                "source": [
                    {"text": visible_text(word), "unknown": place in steps.unknown}
                    for place, word in enumerate(steps.source)
                ],
                "target": [{"text": visible_text(shown_word(each.word))} for each in steps.steps],
                "guesses": [
                    [[visible_text(shown_word(one.word)), one.probability] for one in each.candidates]
                    for each in steps.steps
                ],
                "whole": f"“{visible_text(steps.text)}” · log-probability {signed_number(total)}",
                "nothing": "Every word is made from the last state of the encoder and the words before it.",
            }
        )
    digest = hashlib.blake2b(
        repr([(panel["source"], panel["target"]) for panel in panels]).encode("utf-8", "replace")
    )
    header = {
        "kind": "alignment",
        "panels": panels,
        "input": digest.hexdigest()[:16],
        "state": {"step": int(step)},
    }
    return pack(header, arrays)


_ABOUT: Mapping[str, str] = {
    "additive": "v · tanh(W s + U h), Bahdanau et al. 2014",
    "dot": "s · h, Luong et al. 2015",
    "general": "s · W h, Luong et al. 2015",
    "none": "one vector for the whole sentence, Cho et al. 2014",
}
