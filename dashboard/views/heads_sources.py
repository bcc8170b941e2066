"""What the Heads view is over: the page's own input, the sample corpus, or files of the user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Literal

import streamlit as st

from analysis.corpus import LINES, read_corpus
from analysis.samples import PICTURE_SAMPLES, sample_corpus, sample_picture_bytes
from dashboard import cached, heads_cache
from dashboard.frame import choice, literal, note
from dashboard.heads_choices import HeadsChoices, Source
from dashboard.selection import PictureSide, bound, choose_patterns, current
from dashboard.text_files import read_text_file

Page = Literal["text", "image"]

WORDS: Mapping[Page, Mapping[Source, str]] = {
    "text": {"input": "Over this text", "sample": "Over the sample corpus", "file": "Over texts of yours"},
    "image": {"input": "Over this picture", "sample": "Over the samples", "file": "Over pictures of yours"},
}
MEGABYTES = 1
PASTED_CHARACTERS = 200_000
MOST_PICTURES = 200
PICTURE_MEGABYTES, ALL_MEGABYTES = 25, 200


@dataclass(frozen=True)
class Material:
    """Inputs to take statistics over.

    Attributes:
        key: digest of all that they are made from.
        make: the inputs of a model.
        count: how many there are.
        title: such as "120 sentences of the sample corpus".
        one: it is one input, which is no evidence of what a head is for.
        notes: what was left out.
        positions: of each of several pictures.
        independent: how many of overlapping windows may count as independent; None where inputs share nothing.
        tokens: of a text whose windows hold them more than once; None where each is held once.
    """

    key: str
    make: heads_cache.MakeInputs
    count: int
    title: str
    one: bool = False
    notes: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    independent: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Uploaded:
    """A corpus that was read from a file; kept in the session, so that leaving the page loses nothing."""

    digest: str
    name: str
    columns: Mapping[str, tuple[str, ...]]
    column: str
    notes: tuple[str, ...]


def source_choice(page: Page, choices: HeadsChoices) -> None:
    """Which of the three."""
    key = f"{page}_heads_source"
    choice(
        "Over",
        list(WORDS[page]),
        choices.source,
        key=key,
        on_change=lambda: choose_patterns(page, source=st.session_state[key]),
        words=lambda source: WORDS[page][source],
        width=210,
        help="One input shows what heads do there; over many it is seen what they are for",
    )


def material(page: Page, choices: HeadsChoices, traced: cached.Traced) -> Material | None:
    """What is chosen; None while a file is waited for, whose control is drawn here."""
    if choices.source == "input":
        return _own_input(page, traced)
    side = current().image.input.side
    if choices.source == "sample" and page == "text":
        texts = sample_corpus()
        return Material(
            "sample",
            heads_cache.text_inputs(texts),
            len(texts),
            f"{len(texts)} sentences of the sample corpus",
        )
    if choices.source == "sample":
        files = [(sample.title, sample_picture_bytes(sample.id)) for sample in PICTURE_SAMPLES]
        made = heads_cache.picture_inputs(files, side)
        title, positions = f"{len(files)} sample photographs", _positions(traced, "sample", files, side)
        return Material(f"sample {side}", made, len(files), title, positions=positions)
    return _texts_of_file() if page == "text" else _pictures_of_files(side, traced)


def _positions(
    traced: cached.Traced, key: str, files: Sequence[tuple[str, bytes]], side: PictureSide
) -> tuple[int, ...]:
    model = traced.model
    whole = cached.digest(model.identity, key)
    return heads_cache.picture_positions(
        whole, side, traced.inputs.kept_tokens, _shared=traced.shared, _files=files
    )


def _own_input(page: Page, traced: cached.Traced) -> Material:
    """The page's own input; each window of a document is an input of its own."""
    title, reading = "this text" if page == "text" else "this picture", traced.inputs.reading
    if reading is None:
        return Material(traced.key, lambda _: iter((traced.inputs,)), 1, title, one=True)
    from analysis.heads.survey import independent_windows

    windows = reading.windows
    overlapping = "overlapping " if reading.overlap else ""
    return Material(
        traced.key,
        lambda _: iter(windows),
        len(windows),
        f"{title} in {len(windows)} {overlapping}windows",
        one=True,
        independent=independent_windows(reading),
        tokens=traced.inputs.kept_tokens,
    )


def _texts_of_file() -> Material | None:
    key, kept = "text_heads_file", "text_heads_corpus"
    with st.container(horizontal=True, vertical_alignment="bottom", key="text_heads_upload"):
        st.file_uploader(
            f"Texts: one a line (.txt), or a table with a header line (.csv, .tsv), up to {MEGABYTES} MB",
            type=["txt", "csv", "tsv"],
            key=key,
            max_upload_size=MEGABYTES,
            on_change=partial(_read_texts, key, kept),
            width=520,
        )
        with st.popover("Paste texts", key="text_heads_paste_place"):
            st.text_area(
                "Texts, one a line",
                key="text_heads_paste",
                height=220,
                width=520,
                max_chars=PASTED_CHARACTERS,
                on_change=partial(_pasted, "text_heads_paste", kept),
            )
        found: Uploaded | None = st.session_state.get(kept)
        if found is not None and len(found.columns) > 1:
            names = list(found.columns)
            column_key = "text_heads_column"
            st.selectbox(
                "Column",
                names,
                **bound(column_key, found.column, default="index", start=names.index(found.column)),
                on_change=partial(_column_picked, column_key, kept),
                width=220,
            )
    problem = st.session_state.get(f"{kept}_problem")
    if problem:
        st.error(literal(problem))
    if found is None:
        return None
    texts = found.columns[found.column]
    column = "" if found.column == LINES else f", column {found.column}"
    return Material(
        f"{found.digest} {found.column}",
        heads_cache.text_inputs(texts),
        len(texts),
        f"{len(texts):,} texts of {found.name}{column}",
        one=len(texts) == 1,
        notes=found.notes,
    )


def _read_texts(key: str, kept: str) -> None:
    file = st.session_state[key]
    st.session_state[f"{kept}_problem"] = None
    if file is None:
        return
    data: bytes = file.getvalue()
    try:
        read = read_text_file(data)
        corpus = read_corpus(read.text, table=not file.name.lower().endswith(".txt"))
    except ValueError as error:
        st.session_state[f"{kept}_problem"] = f"{file.name}: {error}"
        return
    notes = (f"{file.name}: {read.note}.", *corpus.notes) if read.note else corpus.notes
    digest = cached.digest(file.name, json.dumps(dict(corpus.columns)))
    st.session_state[kept] = Uploaded(digest, file.name, corpus.columns, corpus.likely, notes)


def _pasted(key: str, kept: str) -> None:
    text: str = st.session_state[key]
    st.session_state[f"{kept}_problem"] = None
    if not text.strip():
        return
    corpus = read_corpus(text, table=False)
    digest = cached.digest("pasted", text)
    st.session_state[kept] = Uploaded(digest, "what you pasted", corpus.columns, LINES, corpus.notes)


def _column_picked(key: str, kept: str) -> None:
    st.session_state[kept] = replace(st.session_state[kept], column=st.session_state[key])


def _pictures_of_files(side: PictureSide, traced: cached.Traced) -> Material | None:
    key, kept = "image_heads_files", "image_heads_pictures"
    st.file_uploader(
        f"Pictures, up to {MOST_PICTURES} of {PICTURE_MEGABYTES} MB, {ALL_MEGABYTES} MB in all",
        type=["png", "jpg", "jpeg", "webp", "gif", "tif", "tiff"],
        key=key,
        accept_multiple_files=True,
        max_upload_size=PICTURE_MEGABYTES,
        on_change=partial(_read_pictures, key, kept),
    )
    files: Sequence[tuple[str, bytes]] = st.session_state.get(kept, ())
    problems: Sequence[str] = st.session_state.get(f"{kept}_problems", ())
    for problem in problems[:5]:
        note(problem)
    if len(problems) > 5:
        note(f"{len(problems) - 5} more files could not be read.")
    if not files:
        return None
    digest = st.session_state[f"{kept}_digest"]
    made = heads_cache.picture_inputs(files, side)
    title, positions = f"{len(files)} pictures of yours", _positions(traced, digest, files, side)
    return Material(f"{digest} {side}", made, len(files), title, one=len(files) == 1, positions=positions)


def _read_pictures(key: str, kept: str) -> None:
    from analysis.images import PictureError, read_picture

    good: list[tuple[str, bytes]] = []
    problems: list[str] = []
    size = 0
    for file in st.session_state[key] or ():
        data = file.getvalue()
        if len(good) == MOST_PICTURES or size + len(data) > ALL_MEGABYTES * 2**20:
            limits = f"{MOST_PICTURES} pictures and {ALL_MEGABYTES} MB"
            problems.append(f"The first {len(good)} pictures are taken; the limits are {limits}.")
            break
        try:
            read_picture(data, name=file.name)
        except PictureError as error:
            problems.append(f"{file.name}: {error}")
            continue
        good.append((file.name, data))
        size += len(data)
    st.session_state[kept] = tuple(good)
    digests = (blake2b(data, digest_size=16).hexdigest() for _, data in good)
    st.session_state[f"{kept}_digest"] = cached.digest(*digests)
    st.session_state[f"{kept}_problems"] = tuple(problems)
