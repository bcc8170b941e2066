"""Caches of the Evidence views: forward passes with their graphs, embeddings of examples, and explanations.

As in ``dashboard.cached``: shared by all sessions, keyed by digests and plain choices, read only. One forward pass of
an input serves every target and every method of one pass; what ignores the target is kept under no target, so that
another class computes neither again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.cached import SharedModel, Traced
from dashboard.evidence_jobs import Job, Jobs, Progress

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.evidence.explanation import Explanation
    from analysis.evidence.passes import ForwardPass
    from analysis.evidence.targets import Target

Options = tuple[tuple[str, Any], ...]

_TURN_SECONDS = 0.002
"""How long a job of many passes leaves the model to others between two of its own."""


@dataclass(frozen=True)
class Subject:
    """What is explained: one input of one model, and its forward pass with the graph.

    Attributes:
        key: that of the trace (model, revision, input, side).
    """

    key: str
    shared: SharedModel
    traced: Traced
    run: ForwardPass


def subject(traced: Traced) -> Subject:
    """The subject of a traced input.

    Raises:
        UnsupportedModelError: if the model's attention cannot be followed back (windows, bands, unknown embeddings).
        TimeoutError: if the model stays busy.
    """
    return Subject(traced.key, traced.shared, traced, passed(traced.key, _traced=traced))


@st.cache_resource(max_entries=2, show_spinner=False)
def passed(key: str, _traced: Traced) -> ForwardPass:
    """One forward pass with its graph; two are kept, because a graph holds every activation."""
    from analysis.evidence.passes import forward_pass

    with _traced.shared.forward() as model:
        return forward_pass(model, _traced.inputs)


@st.cache_resource(max_entries=24, show_spinner=False)
def embedding(key: str, pooling: str, _shared: SharedModel, _inputs: Any) -> Tensor:
    """(M,) the embedding of an example for a concept or a likeness."""
    from analysis.evidence.explanation import kept_positions
    from analysis.evidence.passes import plain_outputs

    with _shared.forward() as model:
        outputs = plain_outputs(model, _inputs.tensors, kept_positions(_inputs))
    found: Tensor = outputs.embedding(pooling)[0].cpu()  # type: ignore[arg-type]
    return found


@st.cache_resource(max_entries=128, show_spinner=False)
def explained(
    key: str,
    method: str,
    target: tuple[object, ...],
    options: Options,
    _run: ForwardPass,
    _target: Target | None,
) -> Explanation:
    """What a method of one pass says; ``target`` is () where it asks for none.

    Raises:
        UnsupportedModelError, ValueError, MemoryBudgetError: as the method.
    """
    from analysis.evidence.methods import explain

    return explain(method, _run, _target, **dict(options))


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """The explanations of many passes of this server."""
    return Jobs()


def job_key(chosen: Subject, method: str, target: Target | None, options: Options = ()) -> Hashable:
    """Under which key a job of many passes is kept."""
    return chosen.key, method, () if target is None else target.key, options


def requested(chosen: Subject, method: str, target: Target | None, options: Options = ()) -> Job:
    """The job of an explanation of many passes, started where nobody has asked before."""

    def work(progress: Callable[[float], None]) -> Explanation:
        from analysis.evidence.methods import explain

        return explain(method, chosen.run, target, progress=progress, **dict(options))

    return jobs().request(job_key(chosen, method, target, options), in_turns(chosen.shared, work))


def measured(chosen: Subject, what: tuple[Hashable, ...], work: Callable[[Progress], Any]) -> Job:
    """The job of a measurement of the subject, started where nobody has asked before.

    Args:
        what: tells it apart from all others of this subject.
        work: (progress) → answer; it runs the model.
    """
    return jobs().request(measurement_key(chosen, what), in_turns(chosen.shared, work))


def measurement_key(chosen: Subject, what: tuple[Hashable, ...]) -> Hashable:
    """Under which key a measurement is kept."""
    return chosen.key, "measured", *what


def in_turns(shared: SharedModel, work: Callable[[Progress], Any]) -> Callable[[Progress], Any]:
    """Work that holds the model, and lets others have it between two of its passes."""

    def alternating(progress: Progress) -> Any:
        def told(done: float) -> None:
            shared.lock.release()
            try:
                time.sleep(_TURN_SECONDS)
                progress(done)  # may wait for other jobs
            finally:
                shared.lock.acquire()

        with shared.forward():
            return work(told)

    return alternating
