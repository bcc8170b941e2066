"""The left column: which model, and which input. Chosen once, shared by all views of a page.

Widgets hold nothing: each is set from the selection before it is made and writes into it when the user changes it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from html import escape
from typing import Literal

import streamlit as st

from analysis.estimate import available_memory, bytes_in_words
from analysis.processor import multiplies_bfloat16
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES, sample_picture_bytes
from analysis.trained import OFFERED, has_preview
from dashboard import cached, selection
from dashboard.frame import heading, literal, note
from dashboard.model_root import PREFIX, folder_choices
from dashboard.reading_choice import reading_choice
from dashboard.selection import (
    MEMORY_CHOICES,
    ImageChoices,
    ModelChoice,
    PictureInput,
    TextChoices,
    TextInput,
    bound,
    bound_choice,
    choose,
    choose_memory,
    current,
    model_name_problem,
    revision_problem,
)
from dashboard.text_files import MEGABYTES, read_text_file

Modality = Literal["text", "image"]

PICTURE_TYPES = ("png", "jpg", "jpeg", "webp", "gif", "tif", "tiff")
PICTURE_MEGABYTES = 25
SIDES = (224, 336, 448)
TYPED_CHARACTERS = 200_000
"""Longest text in the text box; a longer one comes as a file."""

_OTHER = "other"
_OWN = "own"
_ADDING = "{}_model_adding"
_PICTURES = "picture_files"
"""Session key of the uploaded pictures, by digest: (name, bytes) of the chosen one and of the one before it."""


def show(page: str) -> None:
    """The sidebar of a page."""
    with st.sidebar:
        if page == "text":
            _model_picker("text", current().text.model)
            _text_input(current().text)
            _numbers("text", current().text.model)
            _memory()
        elif page == "image":
            _model_picker("image", current().image.model)
            _picture_input(current().image)
            _numbers("image", current().image.model)
            _memory()
        elif page == "lab":
            from dashboard import lab_sidebar  # here, because no other page needs it

            lab_sidebar.show()
        elif page == "scale":
            heading("Scale")
            note(
                "What one layer of attention takes as the sequence grows, each way of computing it side by side."
            )
            note("Measured on this machine while you watch, on random vectors.")
        else:
            heading("Models")
            note("What is bundled, what is loaded, and whether looking inside changes a model's answers.")


# Model -------------------------------------------------------------------------------------------------------------


def _model_picker(modality: Modality, chosen: ModelChoice) -> None:
    heading("Model")
    titles = {model.name: model.title for model in OFFERED if model.modality == modality}
    titles |= {name: f"{name.removeprefix(PREFIX)} (folder)" for name in folder_choices()}
    if not chosen.asked:
        titles.setdefault(chosen.name, chosen.name)
    titles[_OTHER] = "Other model…"
    adding = _ADDING.format(modality)
    value = _OTHER if st.session_state.get(adding) or chosen.asked else chosen.name
    key = f"{modality}_model"
    st.selectbox(
        "Model",
        list(titles),
        **bound_choice(key, value, list(titles)),
        format_func=lambda name: titles.get(name, name),
        on_change=partial(_model_picked, modality, key),
        label_visibility="collapsed",
    )
    if value == _OTHER and not chosen.asked:
        _other_model(modality)
    elif chosen.revision and not chosen.asked:
        note(f"revision {chosen.revision}")


def _model_picked(modality: Modality, key: str) -> None:
    name = st.session_state[key]
    st.session_state[_ADDING.format(modality)] = name == _OTHER
    if name != _OTHER:
        choose(modality, model=ModelChoice(name))


def _other_model(modality: Modality) -> None:
    with st.form(f"{modality}_other_model", border=False):
        st.text_input(
            "Model id", key=f"{modality}_other_name", placeholder="organisation/model", max_chars=120
        )
        st.text_input(
            "Revision", key=f"{modality}_other_revision", placeholder="main, a tag or a commit", max_chars=100
        )
        st.form_submit_button("Load model", on_click=partial(_other_given, modality), width="stretch")
    problem = st.session_state.get(f"{modality}_other_problem")
    if problem:
        st.error(literal(problem))
    note("From the Hugging Face Hub; only safetensors weights and the library's own code are loaded.")


def _other_given(modality: Modality) -> None:
    name = st.session_state[f"{modality}_other_name"].strip()
    revision = st.session_state[f"{modality}_other_revision"].strip() or None
    problem = "Write a model's id first." if not name else model_name_problem(name)
    if problem is None and revision is not None:
        problem = revision_problem(revision)
    st.session_state[f"{modality}_other_problem"] = problem
    if problem is None:
        st.session_state[_ADDING.format(modality)] = False
        choose(modality, model=ModelChoice(name, revision))


# Text --------------------------------------------------------------------------------------------------------------


def _text_input(choices: TextChoices) -> None:
    chosen = choices.input
    pair = chosen.pair is not None
    words = _words(choices.model)
    heading("Text")
    st.segmented_control(
        "One text or two",
        ["one", "pair"],
        **bound("text_count", "pair" if pair else "one", default="default"),
        format_func=words.counts.__getitem__,
        on_change=_count_picked,
        required=True,
        label_visibility="collapsed",
        width="stretch",
    )
    _text_samples(chosen, pair)
    hint = next(
        (sample.note for sample in TEXT_SAMPLES if chosen.kind == "sample" and sample.id == chosen.name), ""
    )
    if hint:
        note(hint)
    if chosen.kind == "upload":
        _uploaded_text(chosen)
    else:
        _text_box(words.first if pair else words.only, "text_a", chosen.text, height=110 if pair else 130)
    if pair:
        _text_box(words.second, "text_b", chosen.pair or "", height=110)
    with st.expander("Text from a file"):
        st.file_uploader(
            f"A .txt or .md file, up to {MEGABYTES} MB",
            type=["txt", "md"],
            key="text_file",
            max_upload_size=MEGABYTES,
            on_change=_text_uploaded,
        )
    problem = st.session_state.get("text_file_problem")
    if problem:
        st.error(literal(problem))
    reading_choice(choices)


@dataclass(frozen=True)
class Words:
    """What the texts are called."""

    counts: Mapping[str, str]
    only: str
    first: str
    second: str


SENTENCES = Words({"one": "One sentence", "pair": "Sentence pair"}, "Sentence", "Sentence A", "Sentence B")
SOURCE_AND_TARGET = Words(
    {"one": "Source alone", "pair": "With target"},
    "Source text",
    "Source text",
    "Target text, read by the decoder",
)


def _words(model: ModelChoice) -> Words:
    shared = cached.model_if_ready(*model.request)
    return SOURCE_AND_TARGET if shared is not None and shared.model.is_encoder_decoder else SENTENCES


def _text_samples(chosen: TextInput, pair: bool) -> None:
    titles = {sample.id: sample.title for sample in TEXT_SAMPLES if (sample.pair is not None) == pair}
    titles[_OWN] = "Own text"
    value = chosen.name if chosen.kind == "sample" and chosen.name in titles else _OWN
    st.selectbox(
        "Sample",
        list(titles),
        **bound_choice("text_sample", value, list(titles)),
        format_func=lambda name: titles.get(name, name),
        on_change=_text_sample_picked,
        label_visibility="collapsed",
    )


def _text_box(label: str, key: str, text: str, *, height: int) -> None:
    st.text_area(
        label,
        **bound(key, text),
        height=height,
        max_chars=TYPED_CHARACTERS,
        on_change=_typed,
        placeholder="Type a sentence; Ctrl+Enter shows it",
    )


def _uploaded_text(chosen: TextInput) -> None:
    excerpt = chosen.text[:300] + ("…" if len(chosen.text) > 300 else "")
    st.html(f'<div class="as-file">{escape(chosen.name)} · {len(chosen.text):,} characters</div>')
    st.html(f'<div class="as-excerpt">{escape(excerpt)}</div>')
    st.button(
        "Type instead",
        key="text_type_instead",
        on_click=partial(choose, "text", input=TextInput("", chosen.pair)),
    )


def _typed() -> None:
    st.session_state["text_file_problem"] = None
    chosen = current().text.input
    text = chosen.text if chosen.kind == "upload" else st.session_state["text_a"]
    pair = st.session_state["text_b"] if chosen.pair is not None else None
    kind: Literal["typed", "upload"] = "upload" if chosen.kind == "upload" else "typed"
    choose("text", input=TextInput(text, pair, kind, chosen.name if kind == "upload" else ""))


def _text_sample_picked() -> None:
    st.session_state["text_file_problem"] = None
    name = st.session_state["text_sample"]
    chosen = current().text.input
    sample = next((sample for sample in TEXT_SAMPLES if sample.id == name), None)
    if sample is not None:
        choose("text", input=TextInput(sample.text, sample.pair, "sample", sample.id))
    else:
        choose("text", input=replace(chosen, kind="typed", name=""))


def _count_picked() -> None:
    """Go to a pair or back, to what was shown there before; else to the first sample of that kind."""
    chosen = current().text.input
    pair = st.session_state["text_count"] == "pair"
    if pair == (chosen.pair is not None):
        return
    st.session_state["text_before_pair" if pair else "text_before_one"] = chosen
    before = st.session_state.get("text_before_one" if pair else "text_before_pair")
    if before is None and chosen.kind == "sample":
        sample = next(sample for sample in TEXT_SAMPLES if (sample.pair is not None) == pair)
        before = TextInput(sample.text, sample.pair, "sample", sample.id)
    choose("text", input=before or replace(chosen, pair="" if pair else None, kind="typed"))


def _text_uploaded() -> None:
    file = st.session_state["text_file"]
    st.session_state["text_file_problem"] = None
    if file is None:
        return
    try:
        read = read_text_file(file.getvalue())
    except ValueError as error:
        st.session_state["text_file_problem"] = str(error)
        return
    if read.note:
        selection.tell(f"{file.name}: {read.note}.")
    choose("text", input=TextInput(read.text, current().text.input.pair, "upload", file.name))


# Picture -----------------------------------------------------------------------------------------------------------


def picture_bytes(chosen: PictureInput) -> tuple[str, str, bytes]:
    """(digest, name, bytes) of the chosen picture file."""
    if chosen.kind == "sample":
        data = sample_picture_bytes(chosen.name)
        return blake2b(data, digest_size=16).hexdigest(), chosen.name, data
    name, data = st.session_state[_PICTURES][chosen.digest]
    return chosen.digest, name, data


def _picture_input(choices: ImageChoices) -> None:
    chosen = choices.input
    heading("Picture")
    _thumbnail_styles(chosen)
    with st.container(key="as_gallery"):
        for start in range(0, len(PICTURE_SAMPLES), 3):
            for column, sample in zip(
                st.columns(3, gap="small"), PICTURE_SAMPLES[start : start + 3], strict=False
            ):
                column.button(
                    literal(sample.title),
                    key=f"image_sample_{sample.id}",
                    on_click=partial(_picture_sample_picked, sample.id),
                    help=f"{literal(sample.title)} · {literal(sample.credit)} · {literal(sample.licence)}",
                    width="stretch",
                )
    _picture_words(chosen)
    st.file_uploader(
        f"Your own picture, up to {PICTURE_MEGABYTES} MB",
        type=list(PICTURE_TYPES),
        key="image_file",
        max_upload_size=PICTURE_MEGABYTES,
        on_change=_picture_uploaded,
    )
    problem = st.session_state.get("image_file_problem")
    if problem:
        st.error(literal(problem))
    _resolution(choices)


def _picture_words(chosen: PictureInput) -> None:
    if chosen.kind == "sample":
        sample = next(sample for sample in PICTURE_SAMPLES if sample.id == chosen.name)
        note(f"{sample.title} · {sample.credit} · {sample.licence}")
    else:
        note(f"Your picture {chosen.name}")


def _resolution(choices: ImageChoices) -> None:
    shared = cached.model_if_ready(*choices.model.request)
    if not (choices.model.bundled if shared is None else shared.model.flexible_image_size):
        _one_size_note(shared)
        return
    heading(
        "Resolution, pixels",
        "Short side that the model sees, or the picture's own size; more pixels are more and smaller patches.",
    )
    chosen = choices.input.side or SIDES[0]
    sides = (
        SIDES if chosen in (*SIDES, "own") else (SIDES[0], SIDES[-1], chosen)
    )  # more do not fit side by side
    st.segmented_control(
        "Resolution",
        [*sides, "own"],
        **bound("image_side", chosen, default="default"),
        format_func=lambda side: "Own" if side == "own" else str(side),
        on_change=_side_picked,
        required=True,
        label_visibility="collapsed",
        width="stretch",
    )
    if shared is not None:
        _size_note(choices.input, shared)


def _one_size_note(shared: cached.SharedModel | None) -> None:
    """Why there is nothing to choose."""
    size = None if shared is None or shared.model.modality != "image" else shared.model.image_size
    if size is not None:
        heading("Resolution")
        note(
            f"{size[1]} × {size[0]} px: the library interpolates no position embeddings of this model, so it takes "
            "this size alone."
        )


def _size_note(chosen: PictureInput, shared: cached.SharedModel) -> None:
    """What the picture's own size, or one that a link asks for, comes to and costs."""
    from analysis.images import PictureError
    from analysis.inputs import LONGEST_OWN_SIDE, grid_at
    from attn_core.errors import UnsupportedModelError

    digest, name, data = picture_bytes(chosen)
    try:
        picture = cached.picture(digest, name, _data=data)
        asked = "own" if chosen.side in (*SIDES, None) else chosen.side
        grid = grid_at(shared.model, picture, asked)
    except (PictureError, UnsupportedModelError, ValueError):  # told where the picture is shown
        return
    height, width = picture.pixels.shape[:2]
    if asked != "own":
        what = f"Short side of {asked:,}"
    elif max(height, width) <= LONGEST_OWN_SIDE:
        what = "Own size"
    else:
        what = f"Own size of {width:,} × {height:,}, reduced"
    patches = grid.rows * grid.columns
    cost = cached.forward_words(shared, grid.prefix_tokens + patches)
    note(f"{what}: {grid.width:,} × {grid.height:,} px, {patches:,} patches, {cost}")


def _side_picked() -> None:
    choose("image", input=replace(current().image.input, side=st.session_state["image_side"]))


def _picture_sample_picked(name: str) -> None:
    st.session_state["image_file_problem"] = None
    choose("image", input=PictureInput(name=name, side=current().image.input.side))


def _picture_uploaded() -> None:
    file = st.session_state["image_file"]
    st.session_state["image_file_problem"] = None
    if file is None:
        return
    from analysis.images import PictureError  # here, because the first page does without Pillow

    chosen, data = current().image.input, file.getvalue()
    digest = blake2b(data, digest_size=16).hexdigest()
    try:
        cached.picture(digest, file.name, _data=data)
    except PictureError as error:  # what was shown stays
        st.session_state["image_file_problem"] = str(error)
        return
    kept = st.session_state.get(_PICTURES, {})
    before = {chosen.digest: kept[chosen.digest]} if chosen.digest in kept else {}
    st.session_state[_PICTURES] = {**before, digest: (file.name, data)}
    choose("image", input=PictureInput("upload", file.name, digest, chosen.side))


def _thumbnail_styles(chosen: PictureInput) -> None:
    """Each sample's button shows its picture."""
    rules = []
    for name, data in cached.example().thumbnails.items():
        encoded = base64.b64encode(data).decode("ascii")
        rules.append(
            f".st-key-image_sample_{name} button{{background-image:url(data:image/jpeg;base64,{encoded})}}"
        )
    if chosen.kind == "sample":
        rules.append(
            f".st-key-image_sample_{chosen.name} button{{outline:2px solid var(--st-primary-color)}}"
        )
    st.html(f"<style>{''.join(rules)}</style>")


# Numbers and memory ------------------------------------------------------------------------------------------------


def _numbers(modality: Modality, chosen: ModelChoice) -> None:
    """Whether the model computes as it takes it, or in bfloat16 where the processor is quick at that."""
    shared = cached.model_if_ready(*chosen.request)
    if chosen.numbers == "auto" and (shared is None or not _gains_by_preview(shared)):
        return
    heading(
        "Numbers",
        "This processor has instructions for bfloat16, which save up to half of the time (less above some thousand "
        "positions). What is seen is nearly the same: a weight can differ by about 0.1, and some 2 % of a query's "
        "weight lies elsewhere.",
    )
    key = f"{modality}_numbers"
    words = {"auto": "Exact", "bfloat16": "Fast preview"}
    st.segmented_control(
        "Numbers",
        list(words),
        **bound(key, chosen.numbers, default="default"),
        format_func=lambda numbers: words[numbers],
        on_change=partial(_numbers_picked, modality, key),
        required=True,
        label_visibility="collapsed",
        width="stretch",
    )
    if chosen.numbers == "bfloat16":
        note("bfloat16: to look around. Take figures from exact numbers.")


def _gains_by_preview(shared: cached.SharedModel) -> bool:
    model = shared.model
    return (
        has_preview(model.name)
        and model.seam
        and str(model.device) == "cpu"
        and str(model.dtype) == "torch.float32"
        and multiplies_bfloat16()
    )


def _numbers_picked(modality: Modality, key: str) -> None:
    choose(modality, model=replace(getattr(current(), modality).model, numbers=st.session_state[key]))


def _memory() -> None:
    """What one answer may take, and what that means."""
    chosen = current().memory_mib
    heading(
        "Memory for one answer",
        "A map of weights has one number for each pair of positions. One that is larger than this is never written "
        "out: it is read in tiles, to the same numbers.",
    )
    free = available_memory()
    sizes = sorted({*(size for size in MEMORY_CHOICES if size * 2**20 <= free.size / 2), chosen})
    st.selectbox(
        "Memory for one answer",
        sizes,
        **bound_choice("memory", chosen, sizes),
        format_func=lambda size: f"{size:,} MiB" if size < 1024 else f"{size // 1024} GiB",
        on_change=lambda: choose_memory(st.session_state["memory"]),
        label_visibility="collapsed",
    )
    positions = math.isqrt(chosen * 2**20 // 4)
    note(
        f"The map of one head is whole up to {positions:,} positions, in tiles above. "
        f"{bytes_in_words(free.size)} are free" + (f": {free.note}." if free.note else ".")
    )
