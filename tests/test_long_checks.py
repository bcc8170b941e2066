"""What takes minutes over a large picture, view by view: told before it starts, and never in the way of others."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analysis.adversarial import sets
from analysis.adversarial.rows import Place, rows_of
from analysis.estimate import Estimate
from analysis.evidence import perturbation
from analysis.images import read_picture
from analysis.inputs import encode_image
from analysis.samples import PICTURE_SAMPLES, sample_picture_bytes
from analysis.trace import trace
from attn_core.errors import MemoryBudgetError
from attn_core.watching import watching, worked
from dashboard import adversarial_cache, evidence_cache, heads_cache, long_runs
from dashboard.cached import SharedModel, Traced
from dashboard.evidence_jobs import Job, Jobs, Pending
from dashboard.kept import Kept
from dashboard.long_runs import Offered, Run
from tests.input_helpers import loaded

SHORT, LONG = Estimate(0.1, 1), Estimate(60.0, 1, weights=100)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """As if a page's script ran on this thread; jobs and answers are this test's own."""
    jobs, kept, pace = Jobs(), Kept(lambda: 2**40), long_runs.Pace()
    page = threading.current_thread()
    for module in (long_runs, evidence_cache, heads_cache, adversarial_cache):
        monkeypatch.setattr(module, "jobs", lambda: jobs)
    monkeypatch.setattr(long_runs, "kept", lambda: kept)
    monkeypatch.setattr(long_runs, "pace", lambda: pace)
    monkeypatch.setattr(long_runs, "current", lambda: SimpleNamespace(memory_mib=256))
    monkeypatch.setattr(
        long_runs,
        "get_script_run_ctx",
        lambda: SimpleNamespace() if threading.current_thread() is page else None,
    )
    yield jobs
    for job in list(jobs._jobs.values()):
        job.stop()
        assert job.wait(20)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(
        tmp_path_factory.mktemp("vit"), "ViTForImageClassification", "ViTConfig", None, hidden_size=8,
        num_hidden_layers=4, num_attention_heads=2, intermediate_size=12, image_size=32, patch_size=4, num_labels=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def traced(vit: Any) -> Traced:
    inputs = encode_image(vit, read_picture(sample_picture_bytes("cat")), side=32)
    shared = SharedModel(("tiny", None), vit, threading.Lock())
    return Traced("tiny cat", vit, inputs, trace(vit, inputs), shared)


# Told before -------------------------------------------------------------------------------------------------------


def test_what_takes_long_is_offered_until_somebody_starts_it(session):
    long, begun = Run("a", "A search", "search", LONG), []
    offered = long_runs.to_offer(long, lambda: begun.append(1))
    assert offered is not None
    assert begun == []
    assert long_runs.to_offer(Run("b", "A search", "search", SHORT), lambda: None) is None
    session.request("a", lambda progress: None)
    assert long_runs.to_offer(long, lambda: None) is None, "its job shows how far it is"
    huge = Run("c", "A search", "search", Estimate(60.0, 2**60))
    with pytest.raises(MemoryBudgetError, match="A search"):
        long_runs.to_offer(huge, lambda: None)


def test_a_survey_of_large_pictures_waits_for_the_reader(session, monkeypatch, traced):
    monkeypatch.setattr(long_runs, "OFFER_SECONDS", 0.0)
    files = [(name, sample_picture_bytes(name)) for name in ("cat", "temple")]
    make = heads_cache.picture_inputs(files, 32)
    positions = [traced.inputs.kept_tokens] * 2
    with pytest.raises(Pending) as pending:
        heads_cache.over(traced.shared, "two", make, 2, positions=positions)
    assert session._jobs == {}
    run, begin = pending.value.show.args
    assert run.what == "The statistics of every head over 2 pictures"
    begin()
    running = heads_cache.over(traced.shared, "two", make, 2, positions=positions)
    assert running.job.wait(30)
    found = heads_cache.over(traced.shared, "two", make, 2, positions=positions)
    assert (found.result.inputs, found.job.done) == (2, 1.0)
    with pytest.raises(Pending):
        heads_cache.distances(traced.shared, "two", "encoder", make, 2, positions=positions)
    assert isinstance(heads_cache.ablation(traced, SimpleNamespace(key=("one",)), "zero"), Offered)


def test_checks_of_large_pictures_wait_for_the_reader(session, monkeypatch, traced):
    monkeypatch.setattr(long_runs, "OFFER_SECONDS", 0.0)
    rows: Any = None  # nothing runs
    asked = [
        adversarial_cache.permuted(traced, "rows", rows),
        adversarial_cache.searched(traced, "rows", rows, epsilon=0.01, search="projected"),
        adversarial_cache.agreement(traced, "rows", rows),
    ]
    assert all(isinstance(each, Offered) for each in asked)
    assert session._jobs == {}
    words = asked[2].run.what
    count = traced.inputs.kept_tokens
    assert words == f"Agreement with gradients and with a forward pass without each of {count:,} positions"
    monkeypatch.setattr(perturbation, "MOST_POSITIONS", count)
    assert adversarial_cache.agreement(traced, "others", rows).run.what == "Agreement with gradients"


@pytest.mark.parametrize(("others", "passes"), [("respond", 3.2), ("fixed", 1.0)])
def test_rows_take_the_passes_that_are_told(traced, others, passes):
    counted: list[int] = []
    with watching(counted.append):
        trace(traced.model, traced.inputs)
    once = sum(counted)
    counted.clear()
    with watching(counted.append):
        found = rows_of(traced.model, traced.inputs, Place({3: (0, 1)}, (0,)), others=others)
    assert sum(counted) / once == pytest.approx(passes, rel=0.15)
    counted.clear()
    with watching(counted.append):
        found.answers(found.observed[:, None].repeat(1, 8, 1, 1))
    told = 8 * adversarial_cache.answer_passes(traced, Place({3: (0, 1)}, (0,)), others)
    assert sum(counted) / once == pytest.approx(told, rel=0.3)


def test_positions_of_pictures_are_told_from_their_headers(vit):
    shared = SharedModel(("tiny", None), vit, threading.Lock())
    files = [(sample.title, sample_picture_bytes(sample.id)) for sample in PICTURE_SAMPLES[:4]]
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((90, 50, 3), np.uint8)).save(buffer, "PNG")
    files += [("tall", buffer.getvalue()), ("broken", b"no picture")]
    for side in (32, "own"):
        told = heads_cache.picture_positions.__wrapped__("k", side, 7, _shared=shared, _files=files)
        made = [encode_image(vit, read_picture(data), side=side).kept_tokens for _, data in files[:-1]]
        assert told == (*made, 7)


def test_nothing_is_left_out_of_an_input_where_that_takes_days(monkeypatch, traced):
    rows = rows_of(traced.model, traced.inputs)
    assert list(sets.one_agreement(traced.model, traced.inputs, rows)) == ["gradient", "leave_one_out"]
    monkeypatch.setattr(perturbation, "MOST_POSITIONS", 100)
    assert list(sets.one_agreement(traced.model, traced.inputs, rows)) == ["gradient"]


# In nobody's way ---------------------------------------------------------------------------------------------------


def test_large_pictures_are_surveyed_one_at_a_time():
    sizes = [400] * 10 + [9000, 9000, 5000, 3000, 3000]
    parts = list(heads_cache._parts(iter([SimpleNamespace(kept_tokens=size) for size in sizes])))
    assert [[each.kept_tokens for each in part] for part in parts] == [
        [400] * 8, [400] * 2, [9000], [9000], [5000, 3000], [3000],
    ]  # fmt: skip


def test_work_on_pictures_gives_way_inside_a_pass(session, traced):
    """A survey's one pass can take minutes; what is shorter need not wait for its end."""
    going, shares = threading.Event(), []

    def survey(progress: Any) -> str:
        for _ in range(200):
            if going.wait(0.12):
                break
            worked(1)
            shares.append(long.done)
        return "surveyed"

    long = session.request("long", evidence_cache.in_turns(traced.shared, survey, weights=400), seconds=60.0)
    while len(shares) < 2:
        assert not long.wait(0.02)
    short = session.request("short", evidence_cache.in_turns(traced.shared, lambda _: "quick"), seconds=1.0)
    assert short.wait(10)
    assert (short.answer, long.active) == ("quick", True)
    going.set()
    assert long.wait(10)
    assert long.answer == "surveyed"
    assert 0.0 < max(shares) < 0.99, "told from the weights that it went through"


def test_time_left_runs_down_between_two_reports():
    job = Job("a", began=100.0)
    job.done, job.moved = 0.25, 110.0
    left = [job.remaining(now) for now in (110.0, 115.0, 139.0, 200.0)]
    assert left == [30.0, 25.0, 1.0, 0.0]
    job.waited = 6.0  # others had their turn: its own pace counts
    assert job.remaining(110.0) == 12.0
    before = time.monotonic()
    job.report(0.5)
    assert job.moved >= before
    moved = job.moved
    job.report(0.5)
    assert job.moved == moved, "a look at whether it was stopped is no progress"


def test_small_runs_tell_nothing_of_large_ones():
    pace = long_runs.Pace()
    pace.learn("rows", estimated=0.2, took=2.0)  # most of it is what a first run costs
    assert pace.expected("rows", Estimate(30.0, 1)).seconds == 30.0
