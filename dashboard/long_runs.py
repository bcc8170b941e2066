"""Computations that may take long: told before, run behind the page with progress and a way to stop, and kept.

A view asks for what it draws (``answer``) and draws it. What is quick comes back at once. Else ``Pending`` is raised,
which the boundary of the page turns into an estimate with a button, or progress with Stop, in the view's place; the
page runs again when the answer is there. So no view knows whether its numbers took a moment or minutes.

Nothing is allocated before the estimate has been held against what is free (``analysis.estimate.check_run``): what
does not fit is refused in words, and the server lives on.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar, cast

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from analysis.estimate import (
    Estimate,
    available_memory,
    bytes_in_words,
    check_run,
    in_words,
    seconds_in_words,
)
from dashboard.boundary import tell_error
from dashboard.evidence_jobs import Job, Jobs, Pending, Progress, Report
from dashboard.frame import literal, note, polled, waiting_view
from dashboard.kept import Kept
from dashboard.selection import current

Found = TypeVar("Found")

INLINE_SECONDS = 2.0
"""What is estimated to take less is computed where it is asked for."""

OFFER_SECONDS = 20.0
"""What is estimated to take more on this machine alone waits for the reader to start it."""

LOCK_SECONDS = 2.0
"""How long a quick computation waits for the model before it waits behind the page, with words."""

POLL_SECONDS = 0.5

TURN_SECONDS = 0.002
"""How long a computation leaves its model to others between two of its steps."""

_STEP_SECONDS = 0.1
"""Least time between two reports of progress, and between two turns of others."""

_LOOK_SECONDS = 0.5
"""How often a computation that waits for a model looks whether it was stopped."""

_LEARNT_SECONDS = 0.5
"""Shorter runs say little about the pace of the machine."""

_PRIOR_SECONDS = 5.0
"""An estimate counts as much as earlier runs that took so long together."""

_PACES = (0.2, 10.0)
"""How far earlier runs may move an estimate."""

_nested: ContextVar[bool] = ContextVar("dashboard_long_runs_nested", default=False)
"""Whether this thread already computes an answer: what that asks for is part of it."""


@dataclass(frozen=True)
class Run:
    """A computation.

    Attributes:
        key: the same key always means the same answer.
        what: subject of a sentence, such as "One forward pass over 4,097 positions".
        kind: which other runs tell how long it really takes, such as "forward".
        estimate: from sizes alone, on an idle machine.
        instead: what to do where it does not fit the memory.
        size: bytes that the answer holds, where the arrays inside do not tell.
        keeps_turn: it holds locks of its own on the way, so nobody else may have a turn before its end.
    """

    key: Hashable
    what: str
    kind: str
    estimate: Estimate
    instead: str = "choose a smaller input"
    size: int | None = None
    keeps_turn: bool = False


@dataclass
class Pace:
    """How long runs really took beside their estimates; written by many threads.

    Attributes:
        seen: (estimated, took) seconds of the runs of a kind, the later ones counting more.
    """

    seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, kind: str, *, estimated: float, took: float) -> None:
        """Take over how long a run took."""
        if min(took, estimated) < _LEARNT_SECONDS:
            return
        with self.lock:
            before = self.seen.get(kind, (0.0, 0.0))
            self.seen[kind] = 0.5 * before[0] + estimated, 0.5 * before[1] + took

    def expected(self, kind: str, estimate: Estimate) -> Estimate:
        """The estimate, corrected by what earlier runs of the kind took, or of all kinds: the longer, the more."""
        known = [self.seen[kind]] if kind in self.seen else list(self.seen.values())
        estimated, took = (sum(part) for part in zip((0.0, 0.0), *known, strict=True))
        ratio = (_PRIOR_SECONDS + took) / (_PRIOR_SECONDS + estimated)
        return replace(estimate, seconds=estimate.seconds * min(max(ratio, _PACES[0]), _PACES[1]))


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """All computations behind the pages of this server; they end with it."""
    found = Jobs()
    atexit.register(found.close)
    return found


@st.cache_resource(show_spinner=False)
def kept() -> Kept:
    """All answers of this server that may be large."""
    return Kept(lambda: available_memory().size)


@st.cache_resource(show_spinner=False)
def pace() -> Pace:
    """What runs of this server really took."""
    return Pace()


def session_budget() -> int | None:
    """Bytes that one answer of this session may take; None outside a session, where the program's own holds."""
    return current().memory_mib * 2**20 if get_script_run_ctx() is not None else None


@contextmanager
def budgeted(size: int | None) -> Iterator[None]:
    """Compute within a budget; None leaves what holds."""
    if size is None:
        yield
        return
    from attn_core.budget import memory_budget

    with memory_budget(size):
        yield


def expected(kind: str, estimate: Estimate) -> Estimate:
    """An estimate with what earlier runs of this server took, for telling it before a choice is made."""
    return pace().expected(kind, estimate)


def answer(
    run: Run, work: Callable[[], Found], *, lock: threading.Lock | None = None, rerun: bool = False
) -> Found:
    """What a computation gives, if it is there or comes quickly.

    Args:
        work: computes it, here or on a thread of a job; draws nothing.
        lock: of the model that it runs; held meanwhile, and left to others between two steps of a long run.
        rerun: forget what there is.
    Raises:
        Pending: while it is computed behind the page, or waits for the reader to start it.
        MemoryBudgetError: if it would not fit what is free.
        whatever ``work`` raises, where it runs here.
    """
    if rerun:
        kept().forget(run.key)
    found = kept().find(run.key)
    if found is not None:
        return cast(Found, found.value)
    alone = _nested.get() or get_script_run_ctx() is None
    job = None if alone else jobs().find(run.key)
    if job is not None and job.state == "ready":  # and no longer kept
        jobs().forget(run.key)
        job = None
    if job is None:
        _check(run)
        if alone or run.estimate.seconds <= INLINE_SECONDS:
            free = nullcontext() if lock is None or _nested.get() else lock
            if alone or lock is None or _soon(lock):
                return _here(run, work, free, held=not alone and lock is not None)
        elif takes_long(run):
            raise Pending(partial(_offer, run, partial(start, run, work, lock=lock)))
        job = start(run, work, lock=lock)
    job.watch()
    raise Pending(partial(_show, run, work, lock, job))


def start(run: Run, work: Callable[[], Found], *, lock: threading.Lock | None = None) -> Job:
    """The job of a run, started now unless it is there; the answer goes where ``answer`` finds it."""
    budget = session_budget()
    seconds = expected(run.kind, run.estimate).seconds
    return jobs().request(run.key, partial(_behind, run, work, lock, budget), seconds=seconds)


def takes_long(run: Run) -> bool:
    """Whether a run waits for the reader to start it; a machine that is busy for a moment changes nothing."""
    return run.estimate.seconds > OFFER_SECONDS


@dataclass(frozen=True)
class Offered:
    """A long run with a job of its own kind that waits for the reader to start it.

    Attributes:
        begin: starts its job.
    """

    run: Run
    begin: Callable[[], object]


def to_offer(run: Run, begin: Callable[[], object]) -> Offered | None:
    """A run that takes long and that nobody has started, for a view that shows the progress of its job itself.

    Raises:
        MemoryBudgetError: if it would not fit what is free.
    """
    if not takes_long(run) or get_script_run_ctx() is None or jobs().find(run.key) is not None:
        return None
    _check(run)
    return Offered(run, begin)


def _check(run: Run) -> None:
    if run.estimate.memory_bytes > 64 * 2**20:  # what is smaller fits, or nothing does
        check_run(run.estimate, what=run.what, instead=run.instead)


def _soon(lock: threading.Lock) -> bool:
    """Take a lock if it comes free in a moment."""
    return lock.acquire(timeout=LOCK_SECONDS)


def _here(run: Run, work: Callable[[], Found], free: object, *, held: bool) -> Found:
    """Compute on this thread; ``held``: the lock was taken already."""
    try:
        with kept().making(run.key):
            found = kept().find(run.key)
            if found is not None:
                return cast(Found, found.value)
            with nullcontext() if held else free, budgeted(session_budget()):  # type: ignore[attr-defined]
                began = time.monotonic()
                value = work()
            pace().learn(run.kind, estimated=run.estimate.seconds, took=time.monotonic() - began)
            kept().put(run.key, value, size=run.size)
            return value
    finally:
        if held:
            free.release()  # type: ignore[attr-defined]


def _behind(
    run: Run, work: Callable[[], Found], lock: threading.Lock | None, budget: int | None, progress: Progress
) -> None:
    """Compute on the thread of a job, and keep the answer."""
    _check(run)
    turns = Turns(lock, progress, run.estimate.share, keeps_turn=run.keeps_turn)
    with part_of_a_run(), budgeted(budget), turns.held():
        began = time.monotonic()
        value = work()
        took = time.monotonic() - began - turns.paused
    pace().learn(run.kind, estimated=run.estimate.seconds, took=took)
    kept().put(run.key, value, size=run.size)


@dataclass
class Turns:
    """A long computation that says what it does (``attn_core.watching``), and shares model and machine with others.

    At every report, a tenth of a second apart at least, progress is told, a stop is taken, and others may have the
    model: what is recorded and edited belongs to a thread, so passes of several threads may lie inside one another.

    Attributes:
        lock: of the model; held but for these moments.
        share: what is done of the whole when so many weights have been worked through.
        keeps_turn: others may not have the model meanwhile, since the computation holds locks that they may want.
        paused: seconds that the computation has waited for others so far.
    """

    lock: threading.Lock | None
    progress: Progress
    share: Callable[[int], float]
    keeps_turn: bool = False
    paused: float = 0.0
    _done: int = 0
    _last: float = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock and watch.

        Raises:
            Stopped: out of the block, when the job was stopped.
        """
        from attn_core.watching import watching

        if self.lock is not None:
            patiently(self.lock, partial(self.progress, 0.0))
        try:
            self._last = time.monotonic()
            with watching(self._worked):
                yield
        finally:
            if self.lock is not None:
                self.lock.release()

    def _worked(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last < _STEP_SECONDS:
            return
        share = min(self.share(self._done), 0.99)
        if self.keeps_turn and isinstance(self.progress, Report):
            self.progress.tell(share)
        else:
            self._give_way(share)
        self._last = time.monotonic()
        self.paused += self._last - now

    def _give_way(self, share: float) -> None:
        if self.lock is not None:
            self.lock.release()
        try:
            if self.lock is not None:
                time.sleep(TURN_SECONDS)
            self.progress(share)  # may wait for other jobs
        finally:
            if self.lock is not None:
                self.lock.acquire()


def patiently(lock: threading.Lock, check: Callable[[], None]) -> None:
    """Take a lock, however long others hold it, but for a stop.

    Args:
        check: raises where somebody has asked for a stop.
    """
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()


@contextmanager
def part_of_a_run() -> Iterator[None]:
    """Inside, what is asked for is computed at once: this thread is a job's, and may hold the model already."""
    token = _nested.set(True)
    try:
        yield
    finally:
        _nested.reset(token)


# On the page -----------------------------------------------------------------------------------------------------


def _name(run: Run) -> str:
    """A short name of a run for the keys of its widgets."""
    return "run_" + blake2b(repr(run.key).encode(), digest_size=6).hexdigest()


def offers(offered: Sequence[Offered]) -> None:
    """A line a run: what it takes, and a button that starts it."""
    if not offered:
        return
    with st.container(key=f"as_run_{_name(offered[0].run)}", border=True):
        for each in offered:
            name = _name(each.run)
            with st.container(horizontal=True, vertical_alignment="center", key=f"{name}_begin"):
                st.button(
                    "Compute",
                    key=f"{name}_start",
                    icon=":material/play_arrow:",
                    on_click=partial(_started, each.run.key, each.begin),
                )
                _heading(each.run)


def instead_of_the_view(offered: Offered) -> Pending:
    """To raise where nothing can be shown before a run has begun."""
    return Pending(partial(_offer, offered.run, offered.begin))


def _offer(run: Run, begin: Callable[[], object], told: str = "") -> None:
    """Say what it takes, and let the reader start it."""
    with st.container(key=f"as_run_{_name(run)}", border=True):
        _heading(run)
        with st.container(horizontal=True, vertical_alignment="center", key=f"{_name(run)}_begin"):
            st.button(
                "Start again" if told else "Compute",
                key=f"{_name(run)}_start",
                icon=":material/play_arrow:",
                type="primary",
                on_click=partial(_started, run.key, begin),
            )
            note(told or "It runs behind the page: it shows how far it is, and can be stopped.")
    waiting_view("The view appears here when this has been computed.")


def _heading(run: Run, *, begun: bool = False) -> None:
    """What runs, and what it takes; of one that has begun the time is told by its progress."""
    estimate = expected(run.kind, run.estimate)
    words = f"about {bytes_in_words(estimate.memory_bytes)}" if begun else in_words(estimate)
    st.markdown(f"**{literal(run.what)}**: {literal(words)} of memory.")


def _started(key: Hashable, begin: Callable[[], object]) -> None:
    jobs().forget(key)
    begin()


def _show(run: Run, work: Callable[[], Found], lock: threading.Lock | None, job: Job) -> None:
    """How far a job is, or why it ended without an answer."""
    begin = partial(start, run, work, lock=lock)
    if job.state == "failed" and job.error is not None:
        tell_error(job.error, what=f"{run.what} did not end well")
        _offer(run, begin, "Your choices are kept.")
    elif job.state == "stopped":
        _offer(run, begin, "Stopped.")
    else:
        with st.container(key=f"as_run_{_name(run)}", border=True):
            _heading(run, begun=True)
            polled(partial(_progress, run, job), lambda: not job.active, seconds=POLL_SECONDS)
        waiting_view("The view appears here when this has been computed.")


def _progress(run: Run, job: Job) -> None:
    job.watch()
    with st.container(horizontal=True, vertical_alignment="center", key=f"{_name(run)}_progress"):
        st.progress(job.done, text=stage_in_words(job))
        st.button(
            "Stop",
            key=f"{_name(run)}_stop",
            on_click=job.stop,
            help="Stops within a second or so; nothing that is ready is lost",
        )


def stage_in_words(job: Job) -> str:
    """ "42%, about 10 s left"; what it is expected to take until it has done enough to tell."""
    if job.stopping:
        return "stops at its next step"
    if job.state == "waiting":
        return "waits for another computation" + (f", {job.done:.0%} done" if job.done else "")
    left = job.remaining(time.monotonic())
    if left is None:
        return (
            "begins" if math.isinf(job.seconds) else f"begins, about {seconds_in_words(job.seconds)} in all"
        )
    return f"{job.done:.0%}, about {seconds_in_words(left)} left"
