"""Surveys of heads, shared by all sessions: statistics over an input or a corpus, distances, syntax, importance.

What takes many passes runs as a job behind the page (``dashboard.evidence_jobs``); a survey that was stopped keeps
what it has. Keys are digests of the model and of the inputs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from analysis.samples import sample_corpus
from dashboard import cached
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_cache import in_turns, jobs
from dashboard.evidence_jobs import Job, Progress

if TYPE_CHECKING:
    from analysis.heads.clusters import HeadDistances
    from analysis.heads.survey import HeadTable, Survey, Surveyor
    from analysis.heads.syntax import SyntaxCounter, SyntaxCounts
    from analysis.heads.treebank import ParsedSentence
    from analysis.hf.attention import Kind
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

KEPT = 12
"""Surveys whose numbers are kept."""

DISTANCE_INPUTS = 40
"""Inputs that distances between heads are taken over: they take heads² numbers a row."""

DISTANCE_ROWS = 64
"""Queries of an input that they are taken over, where there are more."""

SYNTAX_SENTENCES = 64
"""Sentences of each half of a treebank that are counted before the other half gets its turn."""

MakeInputs = Callable[["LoadedModel"], "Sequence[Inputs]"]


@dataclass
class _Kept:
    """What computations have so far, by key; the oldest is dropped."""

    found: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: Hashable, value: Any) -> None:
        with self.lock:
            self.found[key] = value
            self.found.move_to_end(key)
            while len(self.found) > KEPT:
                self.found.popitem(last=False)

    def get(self, key: Hashable) -> Any:
        with self.lock:
            return self.found.get(key)


@st.cache_resource(show_spinner=False)
def _kept() -> _Kept:
    return _Kept()


@dataclass(frozen=True)
class Running:
    """A computation over many inputs.

    Attributes:
        job: how far it is.
        result: what there is so far, None while there is nothing.
    """

    job: Job
    result: Any


@st.cache_resource(max_entries=8, show_spinner=False)
def of_input(key: str, _traced: Traced) -> Survey:
    """Statistics over the one input of a page; which of its tokens is rare is told by the sample corpus.

    Raises:
        UnsupportedModelError: as ``survey_inputs``.
    """
    from analysis.heads.survey import survey_inputs

    counts = None if _traced.inputs.grid else _sample_counts(*_traced.shared.request, _shared=_traced.shared)
    with _traced.shared.forward() as model:
        return survey_inputs(model, [_traced.inputs], frequencies=counts)


@st.cache_resource(max_entries=4, show_spinner=False)
def _sample_counts(name: str, revision: str | None, _shared: SharedModel) -> Mapping[str, int]:
    """How often each piece of a tokenizer comes in the sample corpus: one text alone tells no rare token."""
    from analysis.heads.positions import piece_counts

    inputs = text_inputs(sample_corpus())(_shared.model)
    return piece_counts([each.tokens or () for each in inputs])


def over(shared: SharedModel, key: Hashable, make: MakeInputs) -> Running:
    """Statistics over a corpus.

    Args:
        key: of the corpus and all that changes its inputs.
        make: the inputs; called once, on the job's thread.
    """
    from analysis.heads.survey import Surveyor, survey_inputs

    whole = ("heads", *shared.request, key)

    def work(progress: Progress) -> Survey:
        surveyor = Surveyor()
        _kept().put(whole, surveyor)
        return survey_inputs(shared.model, make(shared.model), surveyor=surveyor, progress=progress)

    job = jobs().request(whole, in_turns(shared, work))
    if job.state == "ready":
        return Running(job, job.answer)
    surveyor: Surveyor | None = _kept().get(whole)
    return Running(job, surveyor.survey() if surveyor is not None and surveyor.inputs else None)


def inputs_so_far(shared: SharedModel, key: Hashable) -> int:
    """How many inputs a survey has."""
    surveyor: Surveyor | None = _kept().get(("heads", *shared.request, key))
    return 0 if surveyor is None else surveyor.inputs


@st.cache_resource(max_entries=4, show_spinner=False)
def resampled(key: str, inputs: int, samples: int, _table: HeadTable) -> Mapping[str, NDArray[np.float64]]:
    """Values of every statistic over inputs that are drawn again, as ``HeadTable.resampled``.

    Args:
        key: of model, corpus and kind of attention; ``inputs``: how many of the corpus there are so far.
    """
    return _table.resampled(list(_table.totals), samples=samples)


def distances(shared: SharedModel, key: Hashable, kind: Kind, make: MakeInputs) -> Running:
    """Distances between heads over the first ``DISTANCE_INPUTS`` inputs of a corpus."""
    from analysis.heads.clusters import head_distances
    from analysis.trace import trace

    whole = ("distances", *shared.request, key, kind)

    def work(progress: Progress) -> HeadDistances:
        inputs = make(shared.model)[:DISTANCE_INPUTS]
        found: HeadDistances | None = None
        for index, each in enumerate(inputs):
            maps = trace(shared.model, each).maps(kind)
            alike = tuple(layer for layer in maps if layer.keys == maps[0].keys)
            own = head_distances(alike, most_rows=DISTANCE_ROWS)
            found = own if found is None else found.merged(own)
            _kept().put(whole, found)
            progress((index + 1) / len(inputs))
        assert found is not None, "a corpus holds at least one text"
        return found

    job = jobs().request(whole, in_turns(shared, work))
    return Running(job, job.answer if job.state == "ready" else _kept().get(whole))


def syntax(shared: SharedModel, key: Hashable, sentences: Sequence[ParsedSentence]) -> Running:
    """How often each head follows each dependency relation, on two halves of a treebank; both grow together."""
    from analysis.heads.syntax import SyntaxCounter, split_sentences, syntax_over

    whole = ("syntax", *shared.request, key)

    def work(progress: Progress) -> tuple[SyntaxCounts, SyntaxCounts]:
        halves = split_sentences(sentences)
        counters = SyntaxCounter(), SyntaxCounter()
        done = 0

        def told(share: float) -> None:
            progress((done + share * len(part)) / len(sentences))

        for start in range(0, max(map(len, halves)), SYNTAX_SENTENCES):
            for half, counter in zip(halves, counters, strict=True):
                part = half[start : start + SYNTAX_SENTENCES]
                if part:
                    syntax_over(shared.model, part, counter=counter, progress=told)
                    done += len(part)
            _kept().put(whole, _both(counters))
        return _both(counters)

    job = jobs().request(whole, in_turns(shared, work))
    return Running(job, job.answer if job.state == "ready" else _kept().get(whole))


def _both(counters: tuple[SyntaxCounter, SyntaxCounter]) -> tuple[SyntaxCounts, SyntaxCounts]:
    first, second = (counter.counts for counter in counters)
    assert first is not None, "each half holds a sentence"
    assert second is not None, "each half holds a sentence"
    return first, second


def ablation(traced: Traced, target: Any, how: Literal["uniform", "zero"]) -> Running:
    """What changes of a target without each head."""
    from analysis.heads.importance import ablation_effects

    key = ("ablation", traced.key, target.key, how)

    def work(progress: Progress) -> Any:
        return ablation_effects(
            traced.shared.model,
            traced.inputs,
            target,
            how=how,
            progress=progress,  # type: ignore[arg-type]
        )

    job = jobs().request(key, in_turns(traced.shared, work))
    return Running(job, job.answer if job.state == "ready" else None)


@st.cache_resource(max_entries=16, show_spinner=False)
def gradient(key: str, target: tuple[object, ...], _run: Any, _target: Any) -> Any:
    """What a small change of each head would do to a target."""
    from analysis.heads.importance import gradient_importance

    return gradient_importance(_run, _target)


def text_inputs(texts: Sequence[str]) -> MakeInputs:
    """Inputs of a corpus of texts; a decoder reads the text itself."""

    def make(model: LoadedModel) -> Sequence[Inputs]:
        from analysis.inputs import encode_text

        most = min(model.max_tokens or cached.TOKEN_LIMIT, cached.TOKEN_LIMIT)
        target = {"target": ""} if model.is_encoder_decoder else {}
        return [
            encode_text(model, text, max_tokens=most, **({"target": text} if target else {}))
            for text in texts
        ]

    return make


def picture_inputs(files: Sequence[tuple[str, bytes]], side: int | None) -> MakeInputs:
    """Inputs of pictures (name, file), each at its own shape."""

    def make(model: LoadedModel) -> Sequence[Inputs]:
        from analysis.images import read_picture
        from analysis.inputs import encode_image

        chosen = side if model.flexible_image_size else None
        return [encode_image(model, read_picture(data, name=name), side=chosen) for name, data in files]

    return make
