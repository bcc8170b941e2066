"""Checks of attention, shared by all sessions: rows that may be replaced, searches, permutations, sets, heads.

What takes many passes runs as a job behind the page (``dashboard.evidence_jobs``). Keys are digests of the model and
the inputs, and plain choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.estimate import Estimate, MachineRate, ModelSize, forward_estimate
from dashboard import cached, long_runs
from dashboard.adversarial_choices import Edit, Others, Search
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_cache import in_turns, jobs
from dashboard.evidence_jobs import Job, Progress
from dashboard.heads_cache import MakeInputs, Running, inputs_taken, kept

if TYPE_CHECKING:
    from analysis.adversarial.candidates import Candidates
    from analysis.adversarial.rows import FreeRows, Place
    from analysis.adversarial.sets import CheckedInput
    from analysis.evidence.targets import Target
    from analysis.hf.attention import Kind

QUICK_SECONDS = 1.2
"""How long a page waits for a new job before it shows its progress: most of one text end sooner."""

STEPS = {"projected": 60, "penalty": 500}
"""Of the searches through a transformer; the second is the paper's number."""

CANDIDATES = 5
PERMUTATIONS = 100


def rows(key: str, place: Place | None, others: Others, _traced: Traced) -> FreeRows:
    """The rows of one input that may be replaced.

    Raises:
        ValueError, UnsupportedModelError, MemoryBudgetError: as ``analysis.adversarial.rows.rows_of``.
        Pending: while it runs behind the page.
    """
    model, inputs = _traced.model, _traced.inputs

    def work() -> FreeRows:
        from analysis.adversarial.rows import rows_of

        return rows_of(model, inputs, place, others=others)

    what = f"Two forward passes over {inputs.kept_tokens:,} positions"
    estimate = cached.input_estimate(_traced.shared, inputs, _twice)
    run = long_runs.Run(("adversarial rows", key), what, "rows", estimate)
    return long_runs.answer(run, work, lock=_traced.shared.lock)


def _twice(size: ModelSize, tokens: int, rate: MachineRate) -> Estimate:
    """Two forward passes."""
    once = forward_estimate(size, tokens, rate)
    return replace(once, seconds=2.0 * once.seconds, weights=2 * once.weights)


def compared(key: str, _shared: SharedModel, _rows: FreeRows, _named: Any) -> Candidates:
    """What the model says with each of some attention; ``key`` tells the rows and the candidates."""

    def work() -> Candidates:
        from analysis.adversarial.candidates import compare

        return compare(_rows, _named)

    none = Estimate(0.0, 0)  # a few passes of an input that was let in
    run = long_runs.Run(
        ("adversarial candidates", key), "The answers under other attention", "compared", none
    )
    return long_runs.answer(run, work, lock=_shared.lock)


def searched(
    traced: Traced, what: Hashable, found: FreeRows, *, epsilon: float, search: Search | str
) -> Running:
    """Adversarial attention of one input.

    Args:
        what: place and treatment of the rest, as ``rows`` was asked for.
        search: "exact", where ``exact_refusal`` says nothing, or one of the others.
    """
    from analysis.adversarial.search import exact_search, penalty_search, projected_search

    def work(progress: Progress) -> Any:
        if search == "exact":
            return exact_search(found, epsilon=epsilon)
        method = projected_search if search == "projected" else penalty_search
        steps = STEPS[search]
        return method(found, epsilon=epsilon, candidates=CANDIDATES, steps=steps, progress=progress)

    return _requested(traced.shared, ("adversarial", traced.key, what, epsilon, search), work)


def permuted(traced: Traced, what: Hashable, found: FreeRows) -> Running:
    """Answers under permuted attention."""
    from analysis.adversarial.permutation import permutations

    def work(progress: Progress) -> Any:
        return permutations(found, count=PERMUTATIONS, progress=progress)

    return _requested(traced.shared, ("permutations", traced.key, what), work)


def agreement(traced: Traced, what: Hashable, found: FreeRows) -> Running:
    """Kendall's τ of attention with gradients and leave one out."""
    from analysis.adversarial.sets import one_agreement

    def work(progress: Progress) -> Any:
        return one_agreement(traced.shared.model, traced.inputs, found, progress=progress)

    return _requested(traced.shared, ("agreement", traced.key, what), work)


def effects(
    traced: Traced, target: Target, edit: Edit, kind: Kind, queries: tuple[int, ...] | None
) -> Running:
    """What becomes of a target when heads are edited."""
    from analysis.adversarial.effects import head_effects

    def work(progress: Progress) -> Any:
        return head_effects(
            traced.shared.model, traced.inputs, target, edit, kind=kind, queries=queries, progress=progress
        )

    return _requested(traced.shared, ("effects", traced.key, target.key, edit, kind, queries), work)


def over(shared: SharedModel, key: Hashable, make: MakeInputs, count: int, *, epsilon: float) -> Running:
    """Checks over a set of inputs, as far as they are; one that the model cannot take is left out and told.

    Returns:
        with the result (checked inputs, notes).
    """
    from analysis.adversarial.sets import Settings, check_inputs

    whole = ("checked", *shared.request, key, epsilon)

    def work(progress: Progress) -> tuple[tuple[CheckedInput, ...], tuple[str, ...]]:
        refused: list[ValueError] = []
        found: list[CheckedInput] = []
        taken = inputs_taken(make(shared.model), refused, lambda: None)
        for each in check_inputs(shared.model, taken, settings=Settings(epsilon=epsilon)):
            found.append(each)
            kept().put(whole, tuple(found))
            progress(min(1.0, (len(found) + len(refused)) / count))
        if not found and refused:
            raise refused[0]
        told = (
            (f"{len(refused):,} of {count:,} inputs could not be taken; the first: {refused[0]}",)
            if refused
            else ()
        )
        return tuple(found), told

    running = _requested(shared, whole, work)
    if running.result is None:
        partial = kept().get(whole)
        return Running(running.job, None if not partial else (partial, ()))
    return running


def checked_so_far(shared: SharedModel, key: Hashable, epsilon: float) -> int:
    """How many inputs of a set are checked."""
    return len(kept().get(("checked", *shared.request, key, epsilon)) or ())


def _requested(shared: SharedModel, key: Hashable, work: Callable[[Progress], Any]) -> Running:
    """The job of this key; a new one gets a moment, so that what is quick is shown at once.

    One that waits for its turn gets none: what is before it takes longer.
    """
    job: Job = jobs().request(key, in_turns(shared, work))
    while job.active and time.monotonic() - job.started < QUICK_SECONDS:
        if job.wait(0.1) or job.state == "waiting":
            break
    return Running(job, job.answer if job.state == "ready" else None)
