"""The loader behind the pages: one load for all who ask, failures kept, waits with an end."""

from __future__ import annotations

import threading

import pytest

from dashboard import warmup
from dashboard.warmup import Loader, LoadJob, ModelRequest


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "_PAINT_SECONDS", 0.0)


def test_ten_sessions_at_once_get_one_load():
    started, go = [], threading.Event()

    def load(request, progress):
        started.append(request)
        progress("loading weights", 0.5)
        assert go.wait(10)

    loader = Loader(load)
    jobs: list[LoadJob] = []
    sessions = [threading.Thread(target=lambda: jobs.append(loader.request("minilm"))) for _ in range(10)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join(10)
    assert len({id(job) for job in jobs}) == 1
    assert jobs[0].state == "running"
    go.set()
    assert jobs[0].wait(10)
    assert (jobs[0].state, jobs[0].stage, started) == ("ready", "loading weights", [ModelRequest("minilm")])
    assert loader.request("minilm") is jobs[0]
    assert loader.ready() == [ModelRequest("minilm")]
    assert loader.request("minilm", "v2") is not jobs[0]
    assert loader.request("minilm", None, "bfloat16") is not jobs[0]


def test_a_failure_is_kept_and_can_be_tried_again():
    outcomes = iter([OSError("no network"), None])

    def load(request, progress):
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    loader = Loader(load)
    job = loader.request("org/model")
    assert job.wait(10)
    assert job.state == "failed"
    assert str(job.error) == "no network"
    assert loader.request("org/model") is job
    loader.forget("org/model")
    again = loader.request("org/model")
    assert again.wait(10)
    assert (again.state, again.error) == ("ready", None)


def test_a_running_load_cannot_be_forgotten():
    go = threading.Event()
    loader = Loader(lambda *_: go.wait(10))
    job = loader.request("slow")
    loader.forget("slow")
    assert loader.find("slow") is job
    go.set()
    assert job.wait(10)


def test_a_load_that_takes_too_long_is_called_slow():
    job = LoadJob(ModelRequest("slow"), patience=0.0)
    assert job.slow
    job.end(None)
    assert not job.slow
    assert not LoadJob(ModelRequest("fast")).slow
