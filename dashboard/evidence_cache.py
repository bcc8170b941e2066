"""Caches of the Evidence views: forward passes with their graphs, embeddings of examples, and explanations.

As in ``dashboard.cached``: shared by all sessions, keyed by digests and plain choices, read only. One forward pass of
an input serves every target and every method of one pass; what ignores the target is kept under no target, so that
another class computes neither again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.estimate import Estimate, MachineRate, ModelSize
from dashboard import cached
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_jobs import Job, Progress, Report
from dashboard.long_runs import (
    INLINE_SECONDS,
    TURN_SECONDS,
    Run,
    Turns,
    answer,
    budgeted,
    part_of_a_run,
    patiently,
    session_budget,
)
from dashboard.long_runs import jobs as jobs

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.evidence.explanation import Explanation
    from analysis.evidence.passes import ForwardPass
    from analysis.evidence.targets import Target

Options = tuple[tuple[str, Any], ...]


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
        MemoryBudgetError: if its graph would not fit what is free.
        Pending: while it runs behind the page.
    """
    return Subject(traced.key, traced.shared, traced, passed(traced.key, _traced=traced))


def passed(key: str, _traced: Traced) -> ForwardPass:
    """One forward pass with its graph, which holds every activation and so is kept by that size."""
    model, inputs = _traced.model, _traced.inputs

    from analysis.evidence.passes import forward_pass, pass_bytes

    def work() -> ForwardPass:
        return forward_pass(model, inputs)

    estimate = cached.input_estimate(_traced.shared, inputs, _with_gradients())
    with budgeted(session_budget()):
        kept = pass_bytes(model, inputs.kept_tokens)
    run = Run(
        key=("graph", key),
        what=f"One forward pass over {inputs.kept_tokens:,} positions that keeps its graph",
        kind="graph",
        estimate=replace(
            estimate,
            seconds=_seconds(estimate, "forward pass"),
            memory_bytes=estimate.memory_bytes - _bytes(estimate, "graph") + kept,
        ),
        instead="choose a smaller picture size" if inputs.grid is not None else "choose a shorter text",
        size=kept,
    )
    return answer(run, work, lock=_traced.shared.lock)


def embedding(key: str, pooling: str, _shared: SharedModel, _inputs: Any) -> Tensor:
    """(M,) the embedding of an example for a concept or a likeness."""

    def work() -> Tensor:
        from analysis.evidence.explanation import kept_positions
        from analysis.evidence.passes import plain_outputs

        outputs = plain_outputs(_shared.model, _inputs.tensors, kept_positions(_inputs))
        return outputs.embedding(pooling)[0].cpu()  # type: ignore[arg-type]

    estimate = cached.input_estimate(_shared, _inputs)
    run = Run(("embedding", key, pooling), "The embedding of an example", "embedding", estimate)
    return answer(run, work, lock=_shared.lock)


def _with_gradients() -> Callable[[ModelSize, int, MachineRate], Estimate]:
    """How a forward pass with its graph and a backward pass are estimated in this session."""
    from analysis.estimate import gradient_estimate
    from analysis.evidence.passes import GRAPH_BUDGETS
    from attn_core.budget import budget_bytes

    budget = session_budget() or budget_bytes()
    return partial(gradient_estimate, graph_budget=GRAPH_BUDGETS * budget)


def _seconds(estimate: Estimate, part: str) -> float:
    return next((seconds for name, seconds, _ in estimate.parts if name == part), estimate.seconds)


def _bytes(estimate: Estimate, part: str) -> int:
    return next((taken for name, _, taken in estimate.parts if name == part), 0)


def method_estimate(chosen: Subject) -> Estimate:
    """What a method of one pass takes at most: a backward pass, and two passes over the weights of every layer."""
    from analysis.estimate import model_size, pass_estimate, shapes_of

    size = model_size(chosen.shared.model)
    shapes = shapes_of(layer.map for layers in chosen.run.layers.values() for layer in layers)

    def make(rate: MachineRate) -> Estimate:
        passes = _with_gradients()(size, chosen.traced.inputs.kept_tokens, rate)
        over = pass_estimate("rows", shapes, rate)
        seconds = _seconds(passes, "backward pass") + 2.0 * over.seconds
        return Estimate(seconds, passes.memory_bytes)

    return cached.estimated(make, str(chosen.shared.model.device))


def takes_long(chosen: Subject) -> bool:
    """Whether methods of one pass are to run behind the page too."""
    return method_estimate(chosen).seconds > INLINE_SECONDS


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


def in_turns(
    shared: SharedModel, work: Callable[[Progress], Any], *, weights: int = 0
) -> Callable[[Progress], Any]:
    """Work that holds the model, within the session's budget, and lets others have it between two of its passes.

    Inside a pass it can be stopped, but gives nothing away: a method may hold locks of its own there.

    Args:
        weights: of work that holds none, those that it goes through (``attn_core.watching``): it then gives way
            inside its passes too, and tells from them how far it is. 0: neither.
    """
    if weights:
        return partial(_by_weights, shared, work, session_budget(), weights)
    budget = session_budget()

    def alternating(progress: Progress) -> Any:
        from attn_core.watching import watching

        check = progress.check if isinstance(progress, Report) else lambda: None

        def told(done: float) -> None:
            shared.lock.release()
            try:
                time.sleep(TURN_SECONDS)
                progress(done)  # may wait for other jobs
            finally:
                shared.lock.acquire()

        patiently(shared.lock, check)
        try:
            with part_of_a_run(), budgeted(budget), watching(lambda _: check()):
                return work(told)
        finally:
            shared.lock.release()

    return alternating


def _by_weights(
    shared: SharedModel,
    work: Callable[[Progress], Any],
    budget: int | None,
    weights: int,
    progress: Progress,
) -> Any:
    with part_of_a_run(), budgeted(budget), Turns(shared.lock, progress, weights).held():
        return work(lambda _: None)
