"""Models are loaded behind the page: one load per model for all sessions, with a stage that a page can show.

The page never waits for ``import torch``. It asks the ``Loader`` for a model's ``LoadJob``, shows what the job is
doing, and is run again when the job has ended. Two sessions that ask for the same model get the same job. The loader
knows nothing of models: ``dashboard.cached`` hands it the function that loads one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Numbers = Literal["auto", "bfloat16"]
"""What a model computes in: what it takes by itself, or the fast preview."""


class ModelRequest(NamedTuple):
    """A model as it is asked for; ``revision`` is a branch, a tag or a commit, None the newest."""

    name: str
    revision: str | None = None
    numbers: Numbers = "auto"


Progress = Callable[[str, float], None]
"""Called with a stage in words and the share of it that is done, from 0 to 1."""

STAGE_START = "starting"
SLOW_SECONDS = 240.0
"""After this long without an end a page says so and offers something else, instead of spinning for ever."""

_PAINT_SECONDS = 0.15
"""The thread starts this much later, so that the page that asked is on its way to the browser first."""

_log = logging.getLogger(__name__)


@dataclass
class LoadJob:
    """One load of one model; written by its thread, read by pages.

    Attributes:
        stage, done: what it is doing and the share done.
        state: ``running``, then ``ready`` or ``failed``.
        error: why it failed.
    """

    key: ModelRequest
    stage: str = STAGE_START
    done: float = 0.0
    state: Literal["running", "ready", "failed"] = "running"
    error: Exception | None = None
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    patience: float = SLOW_SECONDS
    _finished: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds(self) -> float:
        """How long it has been running, or took."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def slow(self) -> bool:
        """Whether it runs for longer than anybody should wait without being asked."""
        return self.state == "running" and self.seconds > self.patience

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most this long; whether it has ended."""
        return self._finished.wait(seconds)

    def report(self, stage: str, done: float) -> None:
        """Take over what the load says of itself."""
        self.stage, self.done = stage, done

    def end(self, error: Exception | None) -> None:
        """Mark it as ended."""
        self.error, self.ended = error, time.monotonic()
        self.state = "ready" if error is None else "failed"
        self._finished.set()


class Loader:
    """Runs one background thread per model that is asked for, never two for the same one."""

    def __init__(self, load: Callable[[ModelRequest, Progress], object]) -> None:
        """``load(request, progress)`` loads a model and keeps it where pages find it."""
        self._load = load
        self._jobs: dict[ModelRequest, LoadJob] = {}
        self._lock = threading.Lock()

    def request(self, name: str, revision: str | None = None, numbers: Numbers = "auto") -> LoadJob:
        """The job of this model, started now if nobody has asked before."""
        key = ModelRequest(name, revision, numbers)
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = LoadJob(key)
                threading.Thread(target=self._run, args=(job,), name=f"load {name}", daemon=True).start()
        return job

    def find(self, name: str, revision: str | None = None, numbers: Numbers = "auto") -> LoadJob | None:
        """The job of this model, if somebody has asked for it."""
        with self._lock:
            return self._jobs.get(ModelRequest(name, revision, numbers))

    def jobs(self) -> list[LoadJob]:
        """Every job that is kept, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def ready(self) -> list[ModelRequest]:
        """The models whose load has ended well, oldest first."""
        return [job.key for job in self.jobs() if job.state == "ready"]

    def forget(self, name: str, revision: str | None = None, numbers: Numbers = "auto") -> None:
        """Drop an ended job, so that the next request loads again: after a failure, or a release."""
        with self._lock:
            key = ModelRequest(name, revision, numbers)
            job = self._jobs.get(key)
            if job is not None and job.state != "running":
                del self._jobs[key]

    def _run(self, job: LoadJob) -> None:
        time.sleep(_PAINT_SECONDS)
        error: Exception | None = None
        try:
            self._load(job.key, job.report)
        except Exception as failure:  # noqa: BLE001 - kept in the job; the page that asked tells it
            _log.warning("loading %s failed: %s", job.key.name, failure)
            error = failure
        finally:
            job.end(error)
