"""Evidence for and against a class or a concept over the picture, by several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import EvidenceMaps, EvidencePanel
from analysis.samples import PICTURE_SAMPLES, sample_picture_bytes
from dashboard import cached, evidence_cache, figures
from dashboard.components import evidence_maps, evidence_state
from dashboard.evidence_choices import MOST_EXAMPLES
from dashboard.evidence_payload import evidence_maps_payload
from dashboard.frame import literal, waiting_view
from dashboard.selection import ImageChoices, bound, choose, choose_evidence, current
from dashboard.sidebar import PICTURE_MEGABYTES, PICTURE_TYPES
from dashboard.sources import ImageSource
from dashboard.views import evidence_targets, evidence_tools, evidence_trust

if TYPE_CHECKING:
    from analysis.evidence.targets import Target

KEY = "image_evidence_maps"
EXAMPLES = "image_evidence_uploads"
"""Uploaded examples of this session: name and bytes by digest."""


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """What is explained."""
    traced = source.traced
    if traced is None:
        return
    asked = evidence_targets.fitted("image", choices.evidence, traced)
    prediction = cached.prediction(traced)
    if prediction is not None:
        offered = evidence_targets.embeds(traced.model)
        evidence_targets.class_tools("image", asked, prediction, likeness=offered)
    if prediction is None or asked.likeness:
        _example_tools(choices)


def show(source: ImageSource, choices: ImageChoices) -> EvidenceMaps | None:
    """Draw the view; returns the record of what is on the screen, None while there is nothing."""
    traced = source.traced
    if traced is None:
        waiting_view(evidence_tools.WAITING)
        return None
    choices = current().image
    pills = st.container(key="image_evidence_pills")
    with evidence_tools.computing("image", traced):
        subject = evidence_cache.subject(traced)
        methods = evidence_tools.chosen_methods(choices.evidence, subject)
        with pills:
            options = evidence_tools.method_tools("image", choices.evidence, methods, subject)
        targets = explained(choices, subject)
        found = evidence_tools.answers(subject, methods, targets, options)
        trust = evidence_trust.examine("image", subject, found.ready, targets)
    if not methods:
        waiting_view("Choose a method above.")
        return None
    evidence_tools.progress("image", found.jobs)
    view = None
    if found.ready:
        maps = [answer.explanation.to_grid().numpy() for answer in found.ready]
        panels = evidence_tools.panels(found.ready, maps, left_out=_left_out(source), measured=trust.measured)
        title = evidence_targets.title_of(targets, subject)
        view = record(source, choices, np.stack(maps), panels, title)
        _draw(source, view, targets)
        evidence_trust.show("image", trust)
    elif found.jobs:
        waiting_view("The first map appears as soon as its method is done.")
    evidence_tools.tell_refusals(found.refused)
    evidence_targets.target_notes(targets)
    return view


def record(
    source: ImageSource, choices: ImageChoices, maps: Any, panels: tuple[EvidencePanel, ...], title: str
) -> EvidenceMaps:
    """The record of what is on the screen."""
    return EvidenceMaps(
        picture=source.picture,
        maps=maps,
        panels=panels,
        title=title,
        positive=choices.evidence.positive,
        marked=choices.patch,
        opacity=choices.evidence.opacity,
        smooth=choices.smooth,
        grey=choices.evidence.grey,
    )


def _draw(source: ImageSource, view: EvidenceMaps, targets: Sequence[Target]) -> None:
    chosen = (
        "evidence",
        tuple(target.key for target in targets),
        view.title,
        tuple((panel.method, panel.target, panel.facts, panel.warning) for panel in view.panels),
        current().image.evidence.options,
        view.positive,
        view.marked,
        view.opacity,
        view.smooth,
        view.grey,
    )
    payload = cached.payload(source.key, chosen, lambda: evidence_maps_payload(view))
    header, _ = figures.read_header(payload)
    evidence_maps(payload, key=KEY, on_change=partial(_said, header))


def _said(header: Mapping[str, Any]) -> None:
    said = evidence_state(header, key=KEY)
    if "marked" in said:
        choose("image", patch=None if said["marked"] is None else (said["marked"][0], said["marked"][1]))
    if "smooth" in said:
        choose("image", smooth=said["smooth"])
    changed = {name: said[name] for name in ("positive", "grey", "opacity") if name in said}
    if changed:
        choose_evidence("image", **changed)


def _left_out(source: ImageSource) -> str:
    count = source.prefix_tokens
    return "" if not count else "CLS" if count == 1 else f"CLS and {count - 1} further tokens"


# Targets ------------------------------------------------------------------------------------------------------------


def explained(choices: ImageChoices, subject: evidence_cache.Subject) -> tuple[Target, ...]:
    """What the page explains: classes, or a likeness."""
    prediction = cached.prediction(subject.traced)
    if prediction is not None and not choices.evidence.likeness:
        return evidence_targets.class_targets(choices.evidence, prediction)
    evidence_targets.likeness_note(subject.traced, "picture")
    return _likeness(examples_of(choices), choices, subject)


def examples_of(choices: ImageChoices) -> tuple[str, ...]:
    """The chosen examples that are there; another sample where none is chosen, so that there is a target."""
    uploads = st.session_state.get(EXAMPLES, {})
    known = [sample.id for sample in PICTURE_SAMPLES]
    kept = tuple(e for e in choices.evidence.examples if e in known or e in uploads)
    return kept or (next(name for name in known if name != choices.input.name),)


def _likeness(
    examples: Sequence[str], choices: ImageChoices, subject: evidence_cache.Subject
) -> tuple[Target, ...]:
    """Likeness to one example, or a concept from several."""
    from analysis.evidence.targets import default_pooling
    from analysis.inputs import encode_image

    model, embeddings, names = subject.shared.model, [], []
    pooling = default_pooling(model)
    for example in examples:
        name, data = _example(example)
        digest = blake2b(data, digest_size=16).hexdigest()
        side = choices.input.side if model.flexible_image_size else None
        inputs = encode_image(model, cached.picture(digest, name, _data=data), side=side)
        key = cached.digest(model.identity, inputs.digest, str(side))
        embeddings.append(evidence_cache.embedding(key, pooling, _shared=subject.shared, _inputs=inputs))
        names.append(name)
    target = evidence_targets.likeness_target(
        embeddings, pooling, name=names[0], examples="examples", cosine=choices.evidence.cosine
    )
    return (target,)


def _example(example: str) -> tuple[str, bytes]:
    """Name and bytes of an example."""
    sample = next((sample for sample in PICTURE_SAMPLES if sample.id == example), None)
    if sample is not None:
        return sample.title, sample_picture_bytes(example)
    name, data = st.session_state[EXAMPLES][example]
    return name, data


def _example_tools(choices: ImageChoices) -> None:
    """The example that likeness is to, or the several that make a concept."""
    uploads: Mapping[str, tuple[str, bytes]] = st.session_state.get(EXAMPLES, {})
    titles = {sample.id: sample.title for sample in PICTURE_SAMPLES}
    titles |= {digest: name for digest, (name, _) in uploads.items()}
    key = "image_evidence_examples"
    st.multiselect(
        "Examples",
        list(titles),
        **bound(key, list(examples_of(choices)), default="default"),
        on_change=lambda: choose_evidence("image", examples=tuple(st.session_state[key])),
        format_func=lambda name: titles[name],
        max_selections=MOST_EXAMPLES,
        label_visibility="collapsed",
        placeholder="Examples",
        width=330,
        help="One example: how alike the picture is to it. Several: a concept, the mean of their embeddings",
    )
    if len(examples_of(choices)) > 1:
        evidence_targets.measure_box("image", choices.evidence)
    with st.popover("Your own examples", key="image_evidence_upload", help="Pictures that make a concept"):
        st.file_uploader(
            f"Pictures, up to {PICTURE_MEGABYTES} MB each",
            type=list(PICTURE_TYPES),
            accept_multiple_files=True,
            key="image_evidence_files",
            max_upload_size=PICTURE_MEGABYTES,
            on_change=_uploaded,
        )
        problem = st.session_state.get("image_evidence_files_problem")
        if problem:
            st.error(literal(problem))


def _uploaded() -> None:
    """Keep the uploaded examples and choose them."""
    from analysis.images import PictureError

    kept, problems = {}, []
    for file in (st.session_state["image_evidence_files"] or [])[:MOST_EXAMPLES]:
        data = file.getvalue()
        digest = blake2b(data, digest_size=16).hexdigest()
        try:
            cached.picture(digest, file.name, _data=data)
        except PictureError as error:
            problems.append(f"{file.name}: {error}")
            continue
        kept[digest] = (file.name, data)
    st.session_state[EXAMPLES] = kept
    st.session_state["image_evidence_files_problem"] = " ".join(problems)
    choose_evidence("image", examples=tuple(kept))
