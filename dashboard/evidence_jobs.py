"""Explanations that take many passes run behind the page, one at a time, with progress, and can be stopped.

A page asks ``Jobs`` for a job by the key of what it wants, shows how far it is, and reads its answer when it has
ended. Two sessions that want the same share one job. To stop one, its progress callback raises ``Stopped``, which
comes out of the method; methods leave the model as it was, whatever they raise. The jobs know nothing of models.

A page says at every look that somebody still waits (``Job.watch``). A job that nobody looks at any more gives way to
one that somebody waits for, and goes on afterwards from where it was; so does a long one to one that is much shorter.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

Progress = Callable[[float], None]

KEPT_JOBS = 96
"""Ended jobs whose answers are kept."""

WATCHED_SECONDS = 10.0
"""How long after the last look somebody is thought to wait; pages look about once a second."""

MUCH_SHORTER = 0.25
"""A running job gives way to a waiting one that is expected to take less than this share of what it still needs."""

CLOSING_SECONDS = 5.0
"""How long the end of the server waits for jobs to stop."""

TOLD_FROM = 0.02
"""Share that has to be done before it tells how long the rest takes."""

_LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """A job was asked to stop."""


class Pending(BaseException):
    """What a view asked for is still being computed, or waits to be started: the page shows that in its place.

    Not an ``Exception``: it passes through all that catches errors, up to the boundary of the page.

    Attributes:
        show: draws how far it is, with buttons to start and stop it.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        super().__init__("what was asked for is still being computed")
        self.show = show


@dataclass
class Job:
    """One computation; written by its thread, read by pages.

    Attributes:
        done: share that is done, 0 to 1.
        state: ``waiting`` for its turn, ``running``, then ``ready``, ``stopped`` or ``failed``.
        answer: of a ready job; ``error``: of a failed one.
        seconds: that it is expected to take; infinite where nobody knows.
        began: when it had its first turn; ``moved``: when it last said that more is done.
        waited: seconds since it began in which others had their turn.
        seen: when a page last looked (seconds of the monotonic clock).
    """

    key: Hashable
    done: float = 0.0
    state: Literal["waiting", "running", "ready", "stopped", "failed"] = "waiting"
    answer: Any = None
    error: Exception | None = None
    seconds: float = math.inf
    began: float | None = None
    moved: float | None = None
    waited: float = 0.0
    started: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    _asked: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    @property
    def watched(self) -> bool:
        """Whether somebody waits for it."""
        return time.monotonic() - self.seen < WATCHED_SECONDS

    @property
    def left(self) -> float:
        """Seconds that it is expected to take still, to compare with what others are expected to take."""
        return self.seconds if math.isinf(self.seconds) else self.seconds * (1.0 - self.done)

    def remaining(self, now: float) -> float | None:
        """Seconds that it still needs, at the pace of its own turns up to its last report; between two reports time
        runs down. None where too little is done to tell."""
        if self.began is None or self.moved is None or self.done < TOLD_FROM:
            return None
        taken = self.moved - self.began - self.waited
        return max(taken / self.done * (1.0 - self.done) - (now - self.moved), 0.0)

    def watch(self) -> None:
        """Say that somebody still waits for it."""
        self.seen = time.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether somebody has asked it to stop."""
        return self._asked.is_set()

    def stop(self) -> None:
        """Ask it to stop; it does at the next report of its progress, or while it waits for its turn."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most this long; whether it has ended."""
        return self._ended.wait(seconds)

    def report(self, done: float) -> None:
        """Take over what the method says of itself.

        Raises:
            Stopped: if somebody has asked for it.
        """
        if self._asked.is_set():
            raise Stopped
        if done > self.done:
            self.moved = time.monotonic()
        self.done = min(max(done, 0.0), 1.0)


@dataclass(frozen=True)
class Report:
    """What a job's work is given: called with the share that is done, it may wait for other jobs.

    Attributes:
        give_way: lets other jobs run that should come first.
    """

    job: Job
    give_way: Callable[[Job], None]

    def __call__(self, done: float) -> None:
        """Say how much is done; others may have their turn meanwhile, so no lock may be held.

        Raises:
            Stopped: if somebody has asked for it.
        """
        self.job.report(done)
        self.give_way(self.job)

    def tell(self, done: float) -> None:
        """Say how much is done and do not wait, so that locks may be held.

        Raises:
            Stopped: if somebody has asked for it.
        """
        self.job.report(max(done, self.job.done))

    def check(self) -> None:
        """Look whether somebody has asked for a stop, and do not wait.

        Raises:
            Stopped: if so.
        """
        self.tell(0.0)


class Jobs:
    """All explanations of this server that take many passes."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Job] = {}
        self._lock = threading.Lock()
        self._turn = threading.Condition()
        self._running: Job | None = None
        self._waiting: list[Job] = []

    def request(self, key: Hashable, work: Callable[[Progress], Any], *, seconds: float = math.inf) -> Job:
        """The job of this key, started now if nobody has asked before.

        Args:
            seconds: that it is expected to take, if that is known: short ones have their turn first.
            work: (progress) → answer; runs on a thread of its own. While ``progress`` runs, other work may have the
                model, so ``work`` must hold no lock then.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(key, seconds=seconds)
                threading.Thread(target=self._run, args=(job, work), name="evidence", daemon=True).start()
                self._drop_old()
            job.watch()
        return job

    def close(self) -> None:
        """Stop what runs and wait for its end: a thread inside torch aborts the process that ends under it."""
        with self._lock:
            active = [job for job in self._jobs.values() if job.active]
        for job in active:
            job.stop()
        last = time.monotonic() + CLOSING_SECONDS
        for job in active:
            job.wait(max(last - time.monotonic(), 0.0))

    def find(self, key: Hashable) -> Job | None:
        """The job of this key, if somebody has asked for it."""
        with self._lock:
            return self._jobs.get(key)

    def forget(self, key: Hashable) -> None:
        """Drop an ended job, so that the next request runs again: after a stop or a failure."""
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and not job.active:
                del self._jobs[key]

    def _drop_old(self) -> None:
        ended = [key for key, job in self._jobs.items() if not job.active]
        for key in ended[: max(len(ended) - KEPT_JOBS, 0)]:
            del self._jobs[key]

    def _run(self, job: Job, work: Callable[[Progress], Any]) -> None:
        try:
            self._take_turn(job)
            job.answer = work(Report(job, self._give_way))
            job.done, job.state = 1.0, "ready"
        except Stopped:
            job.state = "stopped"
        except Exception as error:  # noqa: BLE001 - kept in the job; the page that asked tells it
            _log.warning("evidence %s failed: %s", job.key, error)
            job.error, job.state = error, "failed"
        finally:
            if self._running is job:
                self._end_turn()
            job._ended.set()

    def _give_way(self, job: Job) -> None:
        """Let others have their turn, where they should have it first."""
        waiting = [other for other in tuple(self._waiting) if other.watched]
        if any(not job.watched or other.seconds < MUCH_SHORTER * job.left for other in waiting):
            since = time.monotonic()
            self._end_turn()
            self._take_turn(job)
            job.waited += time.monotonic() - since

    def _take_turn(self, job: Job) -> None:
        """Wait until no other job runs and none is before this one: watched ones, then short ones, then the older.

        Raises:
            Stopped: if somebody asks for it meanwhile.
        """
        job.state = "waiting"
        with self._turn:
            self._waiting.append(job)
            try:
                while self._running is not None or job is not min(self._waiting, key=_order):
                    job.report(job.done)
                    self._turn.wait(_LOOK_SECONDS)
                job.report(job.done)
                self._running, job.state = job, "running"
                job.began = time.monotonic() if job.began is None else job.began
            finally:
                self._waiting.remove(job)
                self._turn.notify_all()

    def _end_turn(self) -> None:
        with self._turn:
            self._running = None
            self._turn.notify_all()


def _order(job: Job) -> tuple[bool, float, float]:
    return not job.watched, job.left, job.started
