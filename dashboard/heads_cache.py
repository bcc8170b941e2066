"""Surveys of heads, shared by all sessions: statistics over an input or a corpus, distances, syntax, importance.

What takes many passes runs as a job behind the page (``dashboard.evidence_jobs``); a survey that was stopped keeps
what it has. Keys are digests of the model and of the inputs.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from analysis.estimate import Estimate, MachineRate, ModelSize, forward_estimate, model_size, survey_estimate
from analysis.samples import sample_corpus
from dashboard import cached, long_runs
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_cache import Subject, in_turns, jobs, method_estimate
from dashboard.evidence_jobs import Job, Progress
from dashboard.selection import PictureSide
from dashboard.warmup import ModelRequest

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
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

PICTURES_TOGETHER, POSITIONS_TOGETHER = 8, 8192
"""Pictures that are held at a time, and their positions: pixels take much more room than what is kept of them."""

MakeInputs = Callable[["LoadedModel"], "Iterator[Inputs | ValueError]"]
"""The inputs of a model one by one, or why one of them cannot be taken."""


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
def kept() -> _Kept:
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


def of_input(key: str, _traced: Traced) -> Survey:
    """Statistics over the one input of a page; which of its tokens is rare is told by the sample corpus.

    Raises:
        UnsupportedModelError: as ``survey_inputs``.
        Pending: while it runs behind the page.
    """
    model, inputs = _traced.model, _traced.inputs

    def work() -> Survey:
        from analysis.heads.survey import survey_inputs
        from analysis.reading import windows_of

        counts = None if inputs.grid else _sample_counts(_traced.shared.request, _shared=_traced.shared)
        return survey_inputs(model, windows_of(inputs), frequencies=counts)

    run = long_runs.Run(
        key=("survey", key),
        what=f"The statistics of every head over {inputs.kept_tokens:,} positions",
        kind="survey",
        estimate=cached.input_estimate(_traced.shared, inputs, survey_estimate),
    )
    return long_runs.answer(run, work, lock=_traced.shared.lock)


@st.cache_resource(max_entries=4, show_spinner=False)
def _sample_counts(request: ModelRequest, _shared: SharedModel) -> Mapping[str, int]:
    """How often each piece of a tokenizer comes in the sample corpus: one text alone tells no rare token."""
    from analysis.heads.positions import piece_counts

    inputs = inputs_taken(text_inputs(sample_corpus())(_shared.model), [], lambda: None)
    return piece_counts([each.tokens or () for each in inputs])


def over(
    shared: SharedModel, key: Hashable, make: MakeInputs, count: int, *, positions: Sequence[int] = ()
) -> Running:
    """Statistics over a corpus; an input that the model cannot take is left out and told.

    Args:
        key: of the corpus and all that changes its inputs.
        make: the inputs; called once, on the job's thread.
        count: how many there are.
        positions: of each input, where they are known before: what takes long then waits for the reader to start it.
    Raises:
        Pending: while it waits.
    """
    from analysis.heads.survey import Surveyor, survey_inputs

    whole = ("heads", *shared.request, key)

    def work(progress: Progress) -> Survey:
        surveyor = Surveyor()
        kept().put(whole, surveyor)
        refused: list[ValueError] = []
        taken = inputs_taken(make(shared.model), refused, lambda: progress(surveyor.inputs / count))
        if shared.model.modality == "image":
            for part in _parts(taken):
                survey_inputs(shared.model, part, surveyor=surveyor)
                progress(min(surveyor.inputs / count, 1.0))
        else:
            texts = list(taken)
            if texts:
                survey_inputs(shared.model, texts, surveyor=surveyor, progress=progress)
        if not surveyor.inputs and refused:
            raise refused[0]
        if refused:
            surveyor.tell(f"{len(refused):,} of {count:,} inputs could not be taken; the first: {refused[0]}")
        return surveyor.survey()

    what = f"The statistics of every head over {count:,} pictures"
    job = _begun(shared, whole, work, what, _estimate_over(shared, positions, survey_estimate))
    if job.state == "ready":
        return Running(job, job.answer)
    surveyor: Surveyor | None = kept().get(whole)
    return Running(job, surveyor.survey() if surveyor is not None and surveyor.inputs else None)


def inputs_taken(
    made: Iterator[Inputs | ValueError], refused: list[ValueError], pause: Callable[[], None]
) -> Iterator[Inputs]:
    """Inputs that can be taken; others have the model between two of them, and the job can be stopped."""
    for index, each in enumerate(made):
        if index % 16 == 15:
            pause()
        if isinstance(each, ValueError):
            refused.append(each)
        else:
            yield each


def _parts(inputs: Iterator[Inputs]) -> Iterator[list[Inputs]]:
    """A few pictures at a time, large ones alone."""
    part: list[Inputs] = []
    for each in inputs:
        together = sum(other.kept_tokens for other in part) + each.kept_tokens
        if part and (len(part) == PICTURES_TOGETHER or together > POSITIONS_TOGETHER):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def _estimate_over(
    shared: SharedModel,
    positions: Sequence[int],
    kind: Callable[[ModelSize, int, MachineRate], Estimate],
) -> Estimate | None:
    """Of inputs one after the other; None where their sizes are not known."""
    if not positions:
        return None
    size = model_size(shared.model)

    def make(rate: MachineRate) -> Estimate:
        each = [kind(size, count, rate) for count in positions]
        return Estimate(
            sum(one.seconds for one in each),
            max(one.memory_bytes for one in each),
            sum(one.weights for one in each),
        )

    return cached.estimated(make, str(shared.model.device))


def _begun(
    shared: SharedModel,
    key: Hashable,
    work: Callable[[Progress], Any],
    what: str,
    estimate: Estimate | None,
) -> Job:
    """The job of this key; one that takes long waits for the reader to start it.

    Raises:
        Pending: while it waits.
    """
    if estimate is None:
        return jobs().request(key, in_turns(shared, work))
    # work on pictures holds no lock of its own, so that it may give way inside a pass, which can take minutes
    begin = partial(
        jobs().request, key, in_turns(shared, work, weights=estimate.weights), seconds=estimate.seconds
    )
    offered = long_runs.to_offer(long_runs.Run(key, what, "survey", estimate), begin)
    if offered is not None:
        raise long_runs.instead_of_the_view(offered)
    return begin()


def inputs_so_far(shared: SharedModel, key: Hashable) -> int:
    """How many inputs a survey has."""
    surveyor: Surveyor | None = kept().get(("heads", *shared.request, key))
    return 0 if surveyor is None else surveyor.inputs


@st.cache_resource(max_entries=4, show_spinner=False)
def resampled(
    key: str, inputs: int, draws: int, samples: int, _table: HeadTable
) -> Mapping[str, NDArray[np.float64]]:
    """Values of every statistic over inputs that are drawn again, as ``HeadTable.resampled``.

    Args:
        key: of model, corpus and kind of attention; ``inputs``: how many of the corpus there are so far.
        draws: inputs of a sample.
    """
    return _table.resampled(list(_table.totals), samples=samples, draws=draws)


def distances(
    shared: SharedModel,
    key: Hashable,
    kind: Kind,
    make: MakeInputs,
    count: int,
    *,
    positions: Sequence[int] = (),
) -> Running:
    """Distances between heads over the first ``DISTANCE_INPUTS`` of ``count`` inputs of a corpus.

    Args:
        positions: as in ``over``.
    Raises:
        Pending: as ``over``.
    """
    from analysis.heads.clusters import head_distances
    from analysis.trace import trace

    whole = ("distances", *shared.request, key, kind)

    def work(progress: Progress) -> HeadDistances:
        found: HeadDistances | None = None
        refused: list[ValueError] = []
        most = min(count, DISTANCE_INPUTS)
        pause = lambda: progress(0.0 if found is None else found.texts / most)  # noqa: E731
        taken = itertools.islice(inputs_taken(make(shared.model), refused, pause), most)
        for index, each in enumerate(taken):
            maps = trace(shared.model, each).maps(kind)
            alike = tuple(layer for layer in maps if layer.keys == maps[0].keys)
            own = head_distances(alike, most_rows=DISTANCE_ROWS)
            found = own if found is None else found.merged(own)
            kept().put(whole, found)
            progress((index + 1) / most)
        if found is None:
            raise refused[0]
        return found

    most = positions[:DISTANCE_INPUTS]
    what = f"Distances between heads over {len(most):,} pictures"
    job = _begun(shared, whole, work, what, _estimate_over(shared, most, forward_estimate))
    return Running(job, job.answer if job.state == "ready" else kept().get(whole))


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
            kept().put(whole, _both(counters))
        return _both(counters)

    job = jobs().request(whole, in_turns(shared, work))
    return Running(job, job.answer if job.state == "ready" else kept().get(whole))


def _both(counters: tuple[SyntaxCounter, SyntaxCounter]) -> tuple[SyntaxCounts, SyntaxCounts]:
    first, second = (counter.counts for counter in counters)
    assert first is not None, "each half holds a sentence"
    assert second is not None, "each half holds a sentence"
    return first, second


def ablation(traced: Traced, target: Any, how: Literal["uniform", "zero"]) -> Running | long_runs.Offered:
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

    run = every_head(traced, key, "The target without each head")
    begin = partial(jobs().request, key, in_turns(traced.shared, work))
    offered = long_runs.to_offer(run, begin)
    if offered is not None:
        return offered
    job = begin()
    return Running(job, job.answer if job.state == "ready" else None)


def every_head(traced: Traced, key: Hashable, what: str) -> long_runs.Run:
    """A pass for each head of the model, as told before it is started."""

    def make(size: ModelSize, tokens: int, rate: MachineRate) -> Estimate:
        once = forward_estimate(size, tokens, rate)
        return replace(once, seconds=size.layers * size.heads * once.seconds)

    estimate = cached.input_estimate(traced.shared, traced.inputs, make)
    return long_runs.Run(key, f"{what}, a forward pass each", "every head", estimate)


def gradient(chosen: Subject, target: Target) -> Any:
    """What a small change of each head would do to a target.

    Raises:
        Pending: while it runs behind the page.
    """
    from analysis.heads.importance import gradient_importance

    key = ("head gradients", chosen.key, target.key)
    estimate = method_estimate(chosen, "attention_gradcam")  # which asks for all gradients and little more
    run = long_runs.Run(key, "A gradient at every head", "head gradients", estimate, keeps_turn=True)
    return long_runs.answer(run, lambda: gradient_importance(chosen.run, target), lock=chosen.shared.lock)


def text_inputs(texts: Sequence[str]) -> MakeInputs:
    """Inputs of a corpus of texts; a decoder reads the text itself."""

    def make(model: LoadedModel) -> Iterator[Inputs | ValueError]:
        from analysis.inputs import encode_text

        most = min(model.max_tokens or cached.TOKEN_LIMIT, cached.TOKEN_LIMIT)
        for text in texts:
            target = text if model.is_encoder_decoder else None
            yield _or_refusal(lambda: encode_text(model, text, max_tokens=most, target=target))  # noqa: B023

    return make


@st.cache_data(max_entries=8, show_spinner=False)
def picture_positions(
    key: str, side: PictureSide, usual: int, _shared: SharedModel, _files: Sequence[tuple[str, bytes]]
) -> tuple[int, ...]:
    """Positions of each picture, told from the files' headers.

    Args:
        key: of model and files.
        usual: where the model has one size, or a file cannot be told.
    """
    from PIL import Image

    from analysis.images import Picture
    from analysis.inputs import SHORTER_SIDE, grid_at

    model, found = _shared.model, list[int]()
    for name, data in _files:
        try:
            with Image.open(io.BytesIO(data)) as opened:
                width, height = opened.size
            pixels = np.broadcast_to(np.uint8(0), (height, width, 3))  # its size alone is asked for
            grid = grid_at(model, Picture(pixels, name, ""), SHORTER_SIDE if side is None else side)
            found.append(grid.prefix_tokens + grid.rows * grid.columns)
        except (OSError, ValueError):
            found.append(usual)
    return tuple(found)


def picture_inputs(files: Sequence[tuple[str, bytes]], side: PictureSide) -> MakeInputs:
    """Inputs of pictures (name, file), each at its own shape."""

    def make(model: LoadedModel) -> Iterator[Inputs | ValueError]:
        from analysis.images import read_picture
        from analysis.inputs import encode_image

        chosen = side if model.flexible_image_size else None
        for name, data in files:
            yield _or_refusal(lambda: encode_image(model, read_picture(data, name=name), side=chosen))  # noqa: B023

    return make


def _or_refusal(encode: Callable[[], Inputs]) -> Inputs | ValueError:
    try:
        return encode()
    except ValueError as error:
        return error
