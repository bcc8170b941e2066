"""Checks of attention, shared by all sessions: rows that may be replaced, searches, permutations, sets, heads.

What takes many passes runs as a job behind the page (``dashboard.evidence_jobs``). Keys are digests of the model and
the inputs, and plain choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from analysis.estimate import Estimate, MachineRate, ModelSize, forward_estimate
from dashboard import cached, long_runs
from dashboard.adversarial_choices import Edit, Others, Search
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_cache import in_turns, jobs
from dashboard.evidence_jobs import Job, Progress
from dashboard.heads_cache import MakeInputs, Running, every_head, inputs_taken, kept
from dashboard.long_runs import Offered

if TYPE_CHECKING:
    from analysis.adversarial.candidates import Candidates, Named
    from analysis.adversarial.rows import FreeRows, Place
    from analysis.adversarial.sets import CheckedInput
    from analysis.evidence.targets import Target
    from analysis.hf.attention import Kind

QUICK_SECONDS = 1.2
"""How long a page waits for a new job before it shows its progress: most of one text end sooner."""

STEPS = {"projected": 60, "penalty": 500}
"""Of the searches through a transformer; the second is the paper's number."""

BROUGHT_IN = 130
"""Answers until the starts of a projected search are inside ε, about."""

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

    # The attention; where the rest responds also what enters the edited layer, and whether going on from there
    # gives what two whole passes give.
    passes, words = (1.0, "A forward pass") if others == "fixed" else (3.2, "Four forward passes")
    what = f"{words} over {inputs.kept_tokens:,} positions"
    run = _of_passes(_traced, ("adversarial rows", key), what, "rows", passes)
    return long_runs.answer(run, work, lock=_traced.shared.lock)


def _forward_passes(count: float, size: ModelSize, tokens: int, rate: MachineRate) -> Estimate:
    once = forward_estimate(size, tokens, rate)
    return replace(once, seconds=count * once.seconds, weights=round(count * once.weights))


def _of_passes(traced: Traced, key: Hashable, what: str, kind: str, passes: float) -> long_runs.Run:
    """What runs about as long as so many forward passes."""
    estimate = cached.input_estimate(traced.shared, traced.inputs, partial(_forward_passes, passes))
    return long_runs.Run(key, what, kind, estimate)


def answer_passes(traced: Traced, place: Place | None, others: Others) -> float:
    """Forward passes that one answer takes: the layers from the lowest edited one on, where the rest responds."""
    layers = traced.model.layers or traced.model.decoder_layers
    if others == "fixed" or place is None or place.kind == "cross" or not layers:
        return 1.0
    return (layers - min(place.heads)) / layers


def compared(
    key: str, _traced: Traced, _rows: FreeRows, _named: Sequence[Named], *, passes: float
) -> Candidates:
    """What the model says with each of some attention; ``key`` tells the rows and the candidates.

    Args:
        passes: of one answer (``answer_passes``).
    Raises:
        Pending: while it runs behind the page.
    """

    def work() -> Candidates:
        from analysis.adversarial.candidates import compare

        return compare(_rows, _named)

    what = f"{len(_named) + 1} answers under other attention"
    run = _of_passes(_traced, ("adversarial candidates", key), what, "compared", passes * (len(_named) + 1))
    return long_runs.answer(run, work, lock=_traced.shared.lock)


def searched(
    traced: Traced,
    what: Hashable,
    found: FreeRows,
    *,
    epsilon: float,
    search: Search | str,
    passes: float = 1.0,
) -> Running | Offered:
    """Adversarial attention of one input.

    Args:
        what: place and treatment of the rest, as ``rows`` was asked for.
        search: "exact", where ``exact_refusal`` says nothing, or one of the others.
        passes: of one answer (``answer_passes``).
    """
    from analysis.adversarial.search import exact_search, penalty_search, projected_search

    def work(progress: Progress) -> Any:
        if search == "exact":
            return exact_search(found, epsilon=epsilon)
        method = projected_search if search == "projected" else penalty_search
        steps = STEPS[search]
        return method(found, epsilon=epsilon, candidates=CANDIDATES, steps=steps, progress=progress)

    key = ("adversarial", traced.key, what, epsilon, search)
    answers = 0 if search == "exact" else BROUGHT_IN + 2 * STEPS[search] * CANDIDATES
    return _asked(traced, _of_passes(traced, key, "Adversarial attention", "search", passes * answers), work)


def permuted(traced: Traced, what: Hashable, found: FreeRows, *, passes: float = 1.0) -> Running | Offered:
    """Answers under permuted attention; ``passes`` of one of them."""
    from analysis.adversarial.permutation import permutations

    def work(progress: Progress) -> Any:
        return permutations(found, count=PERMUTATIONS, progress=progress)

    key = ("permutations", traced.key, what)
    return _asked(
        traced, _of_passes(traced, key, "Permutations", "permutations", passes * PERMUTATIONS), work
    )


def agreement(traced: Traced, what: Hashable, found: FreeRows) -> Running | Offered:
    """Kendall's τ of attention with gradients and leave one out."""
    from analysis.adversarial.sets import one_agreement
    from analysis.evidence.perturbation import MOST_POSITIONS

    def work(progress: Progress) -> Any:
        return one_agreement(traced.shared.model, traced.inputs, found, progress=progress)

    count, words = traced.inputs.kept_tokens, "Agreement with gradients"
    leaves_out = count * count <= MOST_POSITIONS
    if leaves_out:
        words += f" and with a forward pass without each of {count:,} positions"
    key = ("agreement", traced.key, what)
    passes = 4.0 + count * leaves_out
    return _asked(traced, _of_passes(traced, key, words, "agreement", passes), work)


def effects(
    traced: Traced, target: Target, edit: Edit, kind: Kind, queries: tuple[int, ...] | None
) -> Running:
    """What becomes of a target when heads are edited.

    Raises:
        Pending: where it takes long and nobody has started it.
    """
    from analysis.adversarial.effects import head_effects

    def work(progress: Progress) -> Any:
        return head_effects(
            traced.shared.model, traced.inputs, target, edit, kind=kind, queries=queries, progress=progress
        )

    key = ("effects", traced.key, target.key, edit, kind, queries)
    asked = _asked(traced, every_head(traced, key, "The target with each head edited"), work)
    if isinstance(asked, Offered):
        raise long_runs.instead_of_the_view(asked)
    return asked


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


def _asked(traced: Traced, run: long_runs.Run, work: Callable[[Progress], Any]) -> Running | Offered:
    """The job of a run, or the offer to start it where that takes long and nobody has."""
    begin = partial(jobs().request, run.key, in_turns(traced.shared, work), seconds=run.estimate.seconds)
    return long_runs.to_offer(run, begin) or _requested(traced.shared, run.key, work)


def _requested(shared: SharedModel, key: Hashable, work: Callable[[Progress], Any]) -> Running:
    """The job of this key; a new one gets a moment, so that what is quick is shown at once.

    One that waits for its turn gets none: what is before it takes longer.
    """
    job: Job = jobs().request(key, in_turns(shared, work))
    while job.active and time.monotonic() - job.started < QUICK_SECONDS:
        if job.wait(0.1) or job.state == "waiting":
            break
    return Running(job, job.answer if job.state == "ready" else None)
