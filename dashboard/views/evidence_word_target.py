"""What a masked or causal language model predicts as a target: a position of the text, and a word there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from analysis.visible import short_label, visible_text
from dashboard import evidence_cache
from dashboard.evidence_choices import EvidenceChoices
from dashboard.frame import choice
from dashboard.prediction_line import percent
from dashboard.selection import bound, choose_evidence

if TYPE_CHECKING:
    from analysis.evidence.targets import Target

OFFERED_WORDS = 12
"""Most probable words at a position that are offered, beside the one that stands there."""


@dataclass(frozen=True)
class Place:
    """A position whose word is predicted.

    Attributes:
        position: of the logits.
        words: what a reader sees.
        actual: token that the text has there, or None where the text ends.
    """

    position: int
    words: str
    actual: int | None


def predicts_words(chosen: evidence_cache.Subject) -> bool:
    """Whether the model predicts a word at every position."""
    from analysis.evidence.targets import offered_targets

    offers = {offer.kind: offer.refusal for offer in offered_targets(chosen.traced.model)}
    logits = chosen.run.outputs.logits
    return not offers["token_log_probability"] and logits is not None and logits.ndim == 3


def word_target(choices: EvidenceChoices, chosen: evidence_cache.Subject) -> Target:
    """The chosen word at the chosen position; the likeliest at the first masked or the last one where none is."""
    from analysis.evidence.targets import token_log_probability

    _, place, _, token = _chosen(choices, chosen)
    return token_log_probability(place.position, token, f"“{_text(chosen, token)}” {place.words}")


def _chosen(
    choices: EvidenceChoices, chosen: evidence_cache.Subject
) -> tuple[tuple[Place, ...], Place, dict[int, str], int]:
    """All places, the chosen one, the words that it offers, and the chosen one of these."""
    found = places(chosen)
    fallback = _first_place(chosen, found)
    place = next((place for place in found if place.position == choices.position), fallback)
    offers = _offers(chosen, place)
    token = choices.token if choices.token in offers else next(iter(offers))
    return found, place, offers, token


def word_tools(choices: EvidenceChoices, chosen: evidence_cache.Subject) -> None:
    """The two select boxes."""
    found, place, offers, token = _chosen(choices, chosen)

    def placed() -> None:
        choose_evidence("text", position=st.session_state["text_evidence_position"], token=None)

    def worded() -> None:
        choose_evidence("text", token=st.session_state["text_evidence_word"])

    names = {place.position: place.words for place in found}
    with st.container(horizontal=True, key="text_evidence_word_row"):
        if has_table(chosen):
            _table_choice(choices)
        if not (has_table(chosen) and choices.every_word):
            choice(
                "Position",
                list(names),
                place.position,
                key="text_evidence_position",
                on_change=placed,
                words=names.__getitem__,
                width=230,
                help="Where the model predicts a word",
            )
            choice(
                "Predicted word",
                list(offers),
                token,
                key="text_evidence_word",
                on_change=worded,
                words=offers.__getitem__,
                width=260,
                help="The word whose log-probability is explained",
            )


def has_table(chosen: evidence_cache.Subject) -> bool:
    """Whether the words of the text are predicted one after the other, so that all of them make a table."""
    return chosen.traced.model.is_causal or chosen.traced.model.is_encoder_decoder


def _table_choice(choices: EvidenceChoices) -> None:
    key = "text_evidence_table"
    st.segmented_control(
        "Explained",
        ("One word", "Every word"),
        **bound(key, "Every word" if choices.every_word else "One word", default="default"),
        on_change=lambda: choose_evidence("text", every_word=st.session_state[key] == "Every word"),
        required=True,
        label_visibility="collapsed",
        help="Every word: a table of what each word of the text, as the model predicts it, rests on, by one method",
    )


def places(chosen: evidence_cache.Subject) -> tuple[Place, ...]:
    """Every position at which the model predicts a word: its own in a masked model, the next one in a causal one."""
    model, inputs = chosen.traced.model, chosen.traced.inputs
    decodes = model.is_encoder_decoder
    labels = (inputs.target_tokens if decodes else inputs.tokens) or ()
    ids = inputs.tensors["decoder_input_ids" if decodes else "input_ids"][0].tolist()
    names = [short_label(label.text) for label in labels]
    if model.is_causal or decodes:
        return tuple(
            Place(index, f"after {index} “{names[index]}”", ids[index + 1] if index + 1 < len(ids) else None)
            for index in range(len(ids))
        )
    mask = getattr(model.processor, "mask_token_id", None)
    return tuple(
        Place(index, f"at {index} “{names[index]}”", None if ids[index] == mask else ids[index])
        for index in range(len(ids))
        if not labels[index].special or ids[index] == mask
    )


def _first_place(chosen: evidence_cache.Subject, found: tuple[Place, ...]) -> Place:
    """A masked position, or the last one."""
    if chosen.traced.model.is_causal or chosen.traced.model.is_encoder_decoder:
        return found[-1]
    return next((place for place in found if place.actual is None), found[-1])


def _offers(chosen: evidence_cache.Subject, place: Place) -> dict[int, str]:
    """Tokens to choose from at a position, with their probability: the likeliest, then the one that stands there."""
    logits = chosen.run.outputs.logits
    assert logits is not None
    shares = logits.detach()[0, place.position].float().softmax(-1)
    best = shares.topk(min(OFFERED_WORDS, len(shares))).indices.tolist()
    if place.actual is not None and place.actual not in best:
        best.append(place.actual)
    return {
        token: f"“{_text(chosen, token)}” · {percent(float(shares[token]))}"
        + (" · in the text" if token == place.actual else "")
        for token in best
    }


def _text(chosen: evidence_cache.Subject, token: int) -> str:
    """What a reader sees of a token."""
    processor = chosen.traced.model.processor
    found = processor.decode([token]).strip() if processor is not None else ""
    return visible_text(found) or f"token {token}"
