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
    expected,
    pace,
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


def method_estimate(chosen: Subject, method: str = "relevance", options: Options = ()) -> Estimate:
    """What a method of one pass takes beside the pass; the default is one that takes most.

    Args:
        options: of the method, beside its defaults.
    """
    from analysis.estimate import method_estimate as estimate_of
    from analysis.estimate import model_size, shapes_of
    from analysis.evidence.methods import METHODS

    asked, size = METHODS[method], model_size(chosen.shared.model)
    layer = dict(options).get("layer", -1) % size.layers
    layers = {"none": 0, "layer": size.layers - layer, "all": size.layers}[asked.gradients]
    shapes = shapes_of(layer.map for layers in chosen.run.layers.values() for layer in layers)
    make = partial(
        estimate_of,
        size,
        chosen.traced.inputs.kept_tokens,
        layers=layers,
        walks=asked.walks,
        shapes=shapes,
        by_blocks=chosen.run.chain is not None,
    )
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
    """The job of an explanation, started where nobody has asked before; one of one pass tells how long it takes."""
    from analysis.evidence.methods import METHODS, explain

    key = job_key(chosen, method, target, options)

    def work(progress: Callable[[float], None]) -> Explanation:
        return explain(method, chosen.run, target, progress=progress, **dict(options))

    if METHODS[method].cost == "passes":
        return jobs().request(key, in_turns(chosen.shared, work))
    estimate = method_estimate(chosen, method, options)
    if target is not None and chosen.run.has_gradients(target):
        estimate = replace(estimate, seconds=sum(seconds for _, seconds in estimate.stages[1:]))
    run = Run(key, METHODS[method].title, f"method {method}", estimate, keeps_turn=True)
    behind = partial(_of_one_pass, run, chosen, target, work, session_budget())
    return jobs().request(key, behind, seconds=expected(run.kind, estimate).seconds)


def _of_one_pass(
    run: Run,
    chosen: Subject,
    target: Target | None,
    work: Callable[[Callable[[float], None]], Explanation],
    budget: int | None,
    progress: Progress,
) -> Explanation:
    """Hold the model to the end: the forward pass that all such methods share has a lock of its own."""
    known = target is not None and chosen.run.has_gradients(target)
    estimate = replace(run.estimate, stages=run.estimate.stages[1:]) if known else run.estimate
    turns = Turns(chosen.shared.lock, progress, estimate.share, keeps_turn=True)
    with part_of_a_run(), budgeted(budget), turns.held():
        began = time.monotonic()
        found = work(lambda _: None)
    if not known:
        pace().learn(run.kind, estimated=estimate.seconds, took=time.monotonic() - began)
    return found


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
    turns = Turns(shared.lock, progress, Estimate(1.0, 0, weights).share)
    with part_of_a_run(), budgeted(budget), turns.held():
        return work(lambda _: None)
