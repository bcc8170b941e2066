"""Computations that may take long: where they run, what is told, what is kept, and how sessions share them."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

from analysis.estimate import AvailableMemory, Estimate
from analysis.export import export_figure, refusal
from analysis.figure_data import MatrixView, TokenLabel
from analysis.streamed import StreamedMatrix, streamed_matrix
from analysis.visible import matrix_above, matrix_limits, pooled_window
from attn_core.budget import budget_bytes, memory_budget
from attn_core.errors import MemoryBudgetError
from attn_core.factored import FactoredMap
from attn_core.flash import flash_attention
from attn_core.maps import DenseMap
from attn_core.watching import worked
from dashboard import cached, evidence_cache, figures, long_runs, selection
from dashboard.evidence_jobs import Jobs, Pending
from dashboard.kept import Kept, bytes_held
from dashboard.long_runs import Run
from dashboard.provenance import provenance
from dashboard.sources import streamed_note

MIB = 2**20
SHORT, LONG, VERY_LONG = Estimate(0.1, 1), Estimate(5.0, 1, weights=100), Estimate(60.0, 1)


@dataclass
class Session:
    """A session that asks, without a page."""

    memory_mib: int = selection.MEMORY_MIB


@pytest.fixture
def session(monkeypatch) -> Iterator[Session]:
    """As if a page's script ran; jobs and answers are this test's own."""
    jobs, kept, pace, asks = Jobs(), Kept(lambda: 2**40), long_runs.Pace(), Session()
    monkeypatch.setattr(long_runs, "jobs", lambda: jobs)
    monkeypatch.setattr(long_runs, "kept", lambda: kept)
    monkeypatch.setattr(long_runs, "pace", lambda: pace)
    monkeypatch.setattr(long_runs, "get_script_run_ctx", lambda: SimpleNamespace() if on_page() else None)
    monkeypatch.setattr(long_runs, "current", lambda: asks)
    page = threading.current_thread()

    def on_page() -> bool:
        return threading.current_thread() is page

    yield asks
    for job in list(jobs._jobs.values()):
        job.stop()
        assert job.wait(20)


def run(key: Hashable = "a", estimate: Estimate = SHORT, **more: Any) -> Run:
    return Run(key=key, what="A pass", kind="test", estimate=estimate, **more)


def ended(key: Hashable = "a") -> Any:
    """The job of a key, when it has ended."""
    job = long_runs.jobs().find(key)
    assert job is not None
    assert job.wait(20)
    return job


# Where it runs -----------------------------------------------------------------------------------------------------


def test_what_is_quick_comes_back_at_once_and_is_kept(session):
    calls: list[int] = []
    for _ in range(2):
        assert long_runs.answer(run(), lambda: calls.append(1) or "found") == "found"
    assert calls == [1]
    assert long_runs.jobs().find("a") is None


def test_outside_a_session_everything_is_computed_where_it_is_asked_for():
    assert long_runs.answer(run("outside", VERY_LONG), lambda: "found") == "found"
    long_runs.kept().forget("outside")


def test_what_is_long_runs_behind_the_page_and_is_there_afterwards(session):
    threads: list[threading.Thread] = []

    def work() -> str:
        threads.append(threading.current_thread())
        return "found"

    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), work)
    assert ended().state == "ready"
    assert long_runs.answer(run(estimate=LONG), work) == "found"
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_what_is_very_long_waits_for_the_reader(session):
    with pytest.raises(Pending) as pending:
        long_runs.answer(run(estimate=VERY_LONG), lambda: "found")
    assert long_runs.jobs().find("a") is None
    assert pending.value.show.func is long_runs._offer
    long_runs.start(run(estimate=VERY_LONG), lambda: "found")
    assert ended().state == "ready"
    assert long_runs.answer(run(estimate=VERY_LONG), lambda: "never") == "found"


def test_an_answer_that_was_dropped_is_computed_again(session):
    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), lambda: "first")
    ended()
    long_runs.kept().forget("a")
    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), lambda: "second")
    ended()
    assert long_runs.answer(run(estimate=LONG), lambda: "never") == "second"


def test_an_error_stays_with_its_job(session):
    def work() -> str:
        raise ValueError("no such thing")

    for _ in range(2):
        with pytest.raises(Pending):
            long_runs.answer(run(estimate=LONG), work)
        assert str(ended().error) == "no such thing"


def test_what_a_job_asks_for_is_part_of_it(session):
    """Also what takes long, and what holds the same lock."""
    lock = threading.Lock()

    def work() -> str:
        return "outer " + long_runs.answer(run("inner", VERY_LONG), lambda: "inner", lock=lock)

    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), work, lock=lock)
    assert ended().state == "ready"
    assert long_runs.answer(run(estimate=LONG), work) == "outer inner"


# Memory ------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_it_is_computed(session, monkeypatch):
    free = AvailableMemory(1024 * MIB)
    monkeypatch.setattr("analysis.estimate.available_memory", lambda: free)
    calls: list[int] = []
    large = Estimate(0.1, 800 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"A pass would take .* choose a smaller input"):
        long_runs.answer(run(estimate=large), lambda: calls.append(1))
    with pytest.raises(MemoryBudgetError):
        long_runs.answer(run(estimate=replace(large, seconds=60.0)), lambda: calls.append(1))
    assert not calls
    assert long_runs.jobs().find("a") is None


def test_the_session_s_budget_holds_here_and_on_the_thread_of_a_job(session):
    session.memory_mib = 64
    assert long_runs.answer(run("here"), budget_bytes) == 64 * MIB
    with pytest.raises(Pending):
        long_runs.answer(run("behind", LONG), budget_bytes)
    ended("behind")
    assert long_runs.answer(run("behind", LONG), lambda: 0) == 64 * MIB
    session.memory_mib = 16
    asked = evidence_cache.in_turns(SimpleNamespace(lock=threading.Lock()), lambda progress: budget_bytes())  # type: ignore[arg-type]
    session.memory_mib = 64
    assert asked(lambda done: None) == 16 * MIB, "the budget of the session that asked"


def test_passes_over_a_model_go_with_the_model():
    """Else its weights would stay in memory, and pages would go on with a copy that nobody else has."""
    kept, gone, other = Kept(lambda: 2**40), object(), object()
    kept.put("of it", SimpleNamespace(model=gone))
    kept.put("of another", SimpleNamespace(model=other))
    kept.put("numbers", np.zeros(3))
    kept.forget_model(gone)
    assert kept.find("of it") is None
    assert kept.find("of another") is not None
    assert kept.find("numbers") is not None


def test_answers_are_dropped_by_what_they_hold():
    free = 100 * MIB
    kept = Kept(lambda: free)
    for name in "abc":
        kept.put(name, name, size=20 * MIB)
    assert [name for name in "abc" if kept.find(name)] == ["c"], "a quarter of 160 MiB is 40"
    kept.put("small", "s", size=1)
    assert kept.find("c")
    kept.put("huge", "h", size=500 * MIB)
    assert kept.find("huge"), "the newest stays, whatever it holds"
    assert not kept.find("c")
    assert kept.size == 500 * MIB + 1 or kept.size == 500 * MIB


def test_the_last_used_stays():
    kept = Kept(lambda: 100 * MIB)
    kept.put("a", 1, size=15 * MIB)
    kept.put("b", 1, size=15 * MIB)
    kept.find("a")
    kept.put("c", 1, size=15 * MIB)
    assert (kept.find("a") is not None, kept.find("b") is None) == (True, True)


def test_memory_is_counted_once_wherever_it_is_held():
    weights = torch.zeros(4, 256, 256)
    array = np.zeros(1000, dtype=np.float64)
    held = {"map": DenseMap(weights[None]), "part": weights[1], "list": [array, array[10:]], "text": "abc"}
    assert bytes_held(held) == weights.nbytes + array.nbytes
    assert bytes_held(torch.nn.Linear(10, 10)) == 0, "models are shared, not kept here"


def test_two_who_want_the_same_compute_it_once(session):
    begun, going, calls, found = threading.Event(), threading.Event(), [], []

    def slow() -> str:
        calls.append(1)
        begun.set()
        assert going.wait(20)
        return "found"

    def ask() -> None:
        found.append(long_runs.answer(run(), slow))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    going.set()
    for thread in threads:
        thread.join(20)
    assert (calls, found) == ([1], ["found", "found"])


# Progress, stop and turns ------------------------------------------------------------------------------------------


def stepping(steps: int, each: Callable[[int], None]) -> Callable[[], str]:
    """Work that says after each step what it did."""

    def work() -> str:
        for index in range(steps):
            each(index)
            worked(1)
        return "found"

    return work


@pytest.fixture
def no_pause(monkeypatch) -> None:
    """Every step is told."""
    monkeypatch.setattr(long_runs, "_STEP_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pause")
def test_progress_is_what_was_worked_through(session):
    seen: list[float] = []

    def each(index: int) -> None:
        seen.append(long_runs.jobs().find("a").done)  # type: ignore[union-attr]

    estimate = replace(LONG, weights=8)
    with pytest.raises(Pending):
        long_runs.answer(run(estimate=estimate), stepping(8, each))
    ended()
    assert seen == [index / 8 for index in range(8)]


@pytest.mark.usefixtures("no_pause")
def test_a_stop_ends_it_at_the_next_step_and_frees_the_model(session):
    lock, begun, going = threading.Lock(), threading.Event(), threading.Event()

    def each(index: int) -> None:
        begun.set()
        assert index < 2, "stopped at its next step"
        assert going.wait(20)

    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), stepping(99, each), lock=lock)
    assert begun.wait(20)
    job = long_runs.jobs().find("a")
    assert job is not None
    job.stop()
    assert job.stopping
    going.set()
    assert ended().state == "stopped"
    assert not lock.locked()
    with pytest.raises(Pending) as pending:
        long_runs.answer(run(estimate=LONG), lambda: "never", lock=lock)
    assert pending.value.show.func is long_runs._show


@pytest.mark.usefixtures("no_pause")
def test_others_have_the_model_between_two_steps(session):
    lock, begun, done = threading.Lock(), threading.Event(), threading.Event()

    def each(index: int) -> None:
        assert lock.locked()
        begun.set()
        time.sleep(0.002)

    with pytest.raises(Pending):
        long_runs.answer(run(estimate=LONG), stepping(2000, each), lock=lock)
    assert begun.wait(20)
    assert long_runs.answer(run("quick"), lambda: done.set() or "quick", lock=lock) == "quick"
    job = long_runs.jobs().find("a")
    assert job is not None
    assert job.active, "the long one goes on"
    job.stop()
    ended()


def test_a_quick_one_waits_with_words_where_the_model_is_busy(session, monkeypatch):
    monkeypatch.setattr(long_runs, "LOCK_SECONDS", 0.01)
    lock = threading.Lock()
    with lock, pytest.raises(Pending):
        long_runs.answer(run(), lambda: "found", lock=lock)
    assert ended().state == "ready"
    assert long_runs.answer(run(), lambda: "never", lock=lock) == "found"


def test_a_stop_while_the_model_is_busy(session, monkeypatch):
    monkeypatch.setattr(long_runs, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(long_runs, "_LOOK_SECONDS", 0.01)
    lock = threading.Lock()
    with lock:
        with pytest.raises(Pending):
            long_runs.answer(run(), lambda: "never", lock=lock)
        job = long_runs.jobs().find("a")
        assert job is not None
        job.stop()
        assert ended().state == "stopped"
    assert not lock.locked(), "it has not taken what it never had"


@pytest.mark.usefixtures("no_pause")
def test_a_long_one_gives_way_to_one_that_is_much_shorter(session):
    order: list[str] = []
    begun, queued = threading.Event(), threading.Event()

    def each(index: int) -> None:
        begun.set()
        assert queued.wait(20)
        order.append("long")

    long_runs.start(run("long", Estimate(600.0, 1, weights=3)), stepping(3, each))
    assert begun.wait(20)
    long_runs.start(run("equal", Estimate(500.0, 1)), lambda: order.append("equal"))
    long_runs.start(run("short", Estimate(3.0, 1)), lambda: order.append("short"))
    jobs = long_runs.jobs()
    while len(jobs._waiting) < 2:
        time.sleep(0.005)
    queued.set()
    for name in ("long", "equal", "short"):
        assert ended(name).state == "ready"
    assert order.index("short") < 3 < len(order)
    assert order[-1] == "equal", "one that takes as long waits"


@pytest.mark.usefixtures("no_pause")
def test_a_long_one_does_not_give_way_to_one_that_takes_about_as_long(session):
    order: list[str] = []
    begun, queued = threading.Event(), threading.Event()

    def each(index: int) -> None:
        begun.set()
        assert queued.wait(20)
        order.append("long")

    long_runs.start(run("long", Estimate(600.0, 1, weights=30)), stepping(3, each))
    assert begun.wait(20)
    long_runs.start(run("other", Estimate(300.0, 1)), lambda: order.append("other"))
    while not long_runs.jobs()._waiting:
        time.sleep(0.005)
    queued.set()
    for name in ("long", "other"):
        assert ended(name).state == "ready"
    assert order == ["long", "long", "long", "other"]


class Counted:
    """A lock that counts how often it was given away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.released = 0
        self.acquire, self.locked = self._lock.acquire, self._lock.locked

    def release(self) -> None:
        self.released += 1
        self._lock.release()


@pytest.mark.usefixtures("no_pause")
def test_a_method_stops_inside_a_pass_but_keeps_the_model_there():
    """It may hold locks of its own, so nobody may have its turn there."""
    lock = Counted()
    released: list[int] = []

    def work(progress: Callable[[float], None]) -> str:
        for _ in range(3):
            worked(1)
            released.append(lock.released)
        progress(0.5)  # between two passes others may have it
        released.append(lock.released)
        return "found"

    asked = evidence_cache.in_turns(SimpleNamespace(lock=lock), work)  # type: ignore[arg-type]
    jobs = Jobs()
    job = jobs.request("a", asked)
    assert job.wait(20)
    assert (job.answer, released) == ("found", [0, 0, 0, 1])
    begun, going = threading.Event(), threading.Event()

    def slow(progress: Callable[[float], None]) -> str:
        begun.set()
        assert going.wait(20)
        worked(1)
        return "never"

    job = jobs.request("b", evidence_cache.in_turns(SimpleNamespace(lock=lock), slow))  # type: ignore[arg-type]
    assert begun.wait(20)
    job.stop()
    going.set()
    assert job.wait(20)
    assert (job.state, lock.locked()) == ("stopped", False)


def test_estimates_learn_from_what_runs_took():
    pace = long_runs.Pace()
    estimate = Estimate(10.0, 1)
    assert pace.expected("forward", estimate).seconds == 10.0
    pace.learn("forward", estimated=10.0, took=30.0)
    assert pace.expected("forward", estimate).seconds == pytest.approx(10 * (5 + 30) / (5 + 10))
    pace.learn("forward", estimated=10.0, took=10.0)
    assert pace.expected("forward", estimate).seconds == pytest.approx(10 * (5 + 15 + 10) / (5 + 5 + 10))
    pace.learn("forward", estimated=0.001, took=0.01)
    assert pace.expected("forward", estimate).seconds == 15.0, "what took no time tells nothing"
    assert pace.expected("matrix", estimate).seconds == 15.0, "as long as others did: the machine may be busy"
    pace.learn("matrix", estimated=1.0, took=1000.0)
    assert pace.expected("matrix", estimate).seconds == 100.0, "a run that was held up may not say everything"


def test_a_short_first_run_tells_little_of_a_long_one():
    """Of the first pass of a server much is start-up: an estimate of 1 s that took 7 s once made a minute seven."""
    pace = long_runs.Pace()
    pace.learn("forward", estimated=1.0, took=7.0)
    assert pace.expected("forward", Estimate(60.0, 1)).seconds == 120.0
    pace.learn("forward", estimated=60.0, took=60.0)
    assert 60.0 < pace.expected("forward", Estimate(60.0, 1)).seconds < 65.0


def test_an_explanation_of_one_pass_tells_how_far_it_is_and_gives_nothing_away(session, monkeypatch):
    """Its passes hold the lock of the forward pass that others would want in their turn."""
    monkeypatch.setattr(long_runs, "_STEP_SECONDS", 0.0)
    lock, seen = Counted(), []
    estimate = Estimate(8.0, 1, stages=((2, 2.0), (3, 6.0)))
    monkeypatch.setattr(evidence_cache, "method_estimate", lambda *_: estimate)

    def explain(*_: Any, **__: Any) -> str:
        for _ in range(5):
            seen.append((jobs.find(evidence_cache.job_key(chosen, "relevance", target)).done, lock.released))  # type: ignore[arg-type, union-attr]
            worked(1)
        return "found"

    monkeypatch.setattr("analysis.evidence.methods.explain", explain)
    run_ = SimpleNamespace(has_gradients=lambda target: known)
    chosen: Any = SimpleNamespace(key="k", shared=SimpleNamespace(lock=lock), run=run_)
    target: Any = SimpleNamespace(key=("class", 1))
    monkeypatch.setattr(evidence_cache, "jobs", long_runs.jobs)
    jobs, known = long_runs.jobs(), False
    job = evidence_cache.requested(chosen, "relevance", target)
    assert job.seconds == 8.0
    assert job.wait(20)
    assert [done for done, _ in seen] == pytest.approx([0.0, 0.125, 0.25, 0.5, 0.75])
    assert {released for _, released in seen} == {0}
    assert (job.answer, lock.locked()) == ("found", False)
    jobs.forget(job.key)
    seen.clear()
    known = True  # the gradients are there: the walk alone is left
    job = evidence_cache.requested(chosen, "relevance", target)
    assert job.wait(20)
    assert [done for done, _ in seen][:3] == pytest.approx([0.0, 1 / 3, 2 / 3])


# The same numbers on both sides of the budget ----------------------------------------------------------------------


def drawn(tokens: int, *, heads: int = 2, keys: int | None = None) -> FactoredMap:
    """A map of one layer."""
    generator = torch.Generator().manual_seed(tokens)
    query = torch.randn(1, heads, tokens, 8, generator=generator)
    key, value = (torch.randn(1, heads, keys or tokens, 8, generator=generator) for _ in range(2))
    return FactoredMap(query=query, key=key, lse=flash_attention(query, key, value, scale=0.7).lse, scale=0.7)


def labels(count: int) -> tuple[TokenLabel, ...]:
    return tuple(TokenLabel(str(index), str(index)) for index in range(count))


def both_sides(session: Session, attention: FactoredMap, head: int | None) -> tuple[Any, StreamedMatrix]:
    session.memory_mib = 256
    dense = cached.matrix("k", "encoder", 0, head, _map=attention)
    session.memory_mib = 1
    streamed = cached.matrix("k", "encoder", 0, head, _map=attention)
    assert isinstance(dense, np.ndarray)
    assert isinstance(streamed, StreamedMatrix)
    return dense, streamed


@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("zoom", [None, (3, 700, 40, 900), (5, 90, 1000, 1101)])
def test_a_matrix_is_drawn_alike_on_both_sides_of_the_budget(session, head, zoom):
    """Colours, scale and every cell: written out, or an overview and the zoomed part read from the map."""
    attention = drawn(1101)
    payloads = []
    for weights in both_sides(session, attention, head):
        view = MatrixView(weights=weights, rows=labels(1101), columns=labels(1101), zoom=zoom)
        payloads.append(figures.matrix_view_payload(view))
    (header, arrays), (other_header, other_arrays) = map(figures.unpack, payloads)
    np.testing.assert_allclose(header.pop("limits"), other_header.pop("limits"), rtol=1e-5)
    assert header == other_header
    assert set(arrays) == set(other_arrays)
    assert ("part" in arrays) == (zoom is not None)
    for name, values in arrays.items():
        one_step = 1 if values.dtype == np.uint8 else 1e-6
        assert np.abs(values.astype(float) - other_arrays[name].astype(float)).max() <= one_step, name


def test_a_streamed_matrix_answers_as_the_array_does(session):
    attention = drawn(1101, keys=530)
    dense, streamed = both_sides(session, attention, None)
    assert streamed.shape == dense.shape == (1101, 530)
    for place in [(slice(3, 9), slice(500, 530)), (7, slice(0, 5)), (slice(None), 3), (1100, 529), (-1, -1)]:
        np.testing.assert_allclose(streamed[place], dense[place], atol=1e-6)
    assert streamed.highest == pytest.approx(dense.max(), rel=1e-5)
    rows, columns = labels(1101), labels(530)
    views = [MatrixView(weights=weights, rows=rows, columns=columns) for weights in (dense, streamed)]
    np.testing.assert_allclose(*(matrix_limits(view) for view in views), rtol=1e-5)
    assert [matrix_above(view) for view in views] == [0, 0]
    assert pooled_window(views[1]).max() == pytest.approx(dense.max(), rel=1e-5)
    with pytest.raises(IndexError, match="index must be between 0 and 529 but is 530"):
        streamed[0, 530]
    with pytest.raises(MemoryBudgetError, match="zoom in, or allow more memory"):
        np.asarray(streamed)


def test_files_of_a_streamed_matrix_hold_its_overview_and_the_zoomed_part(session):
    dense, streamed = both_sides(session, drawn(1101), 0)
    view = MatrixView(weights=streamed, rows=labels(1101), columns=labels(1101), zoom=(3, 40, 100, 130))
    origin = provenance(model="m", revision="r", input="i", layer="0 of 0–1", heads="0", method="attention")
    assert refusal(view, "csv") is None
    assert refusal(replace(view, zoom=None), "csv") == (
        "the CSV file would have 1,212,201 rows, more than the 1,000,000 that a spreadsheet opens; zoom in, or take "
        "NPZ, which holds the largest weight of each block."
    )
    stored = np.load(io.BytesIO(export_figure(view, origin, "npz")), allow_pickle=False)
    np.testing.assert_allclose(stored["weights"], dense[3:40, 100:130], atol=1e-6)
    assert stored["weights_start"].tolist() == [3, 100]
    np.testing.assert_array_equal(stored["overview"], streamed.overview)
    with memory_budget(MIB):
        whole = np.load(
            io.BytesIO(export_figure(replace(view, zoom=None), origin, "npz")), allow_pickle=False
        )
    assert "weights" not in whole
    lines = export_figure(view, origin, "csv").decode().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == 1 + 37 * 30
    assert export_figure(view, origin, "png").startswith(b"\x89PNG")
    document = json.loads(export_figure(view, origin, "json"))
    assert document["arrays"]["weights"] == {"shape": [1101, 1101], "streamed": "3 × 3"}


def test_a_rollout_row_is_the_same_on_both_sides_of_the_budget(session):
    maps = [drawn(600), FactoredMap(**vars(drawn(600))), drawn(600)]
    asked = [
        {"query": query, "fusion": fusion, "discard_ratio": 0.0, "last_layer": 2}
        for query in (0, 17, None)
        for fusion in ("mean", "max")
    ]
    found = {}
    for memory in (256, 1):
        session.memory_mib = memory
        assert cached.rollout_fits(maps) == (memory == 256)
        found[memory] = [
            cached.rollout_row(f"k{memory}", "encoder", _maps=maps, **one)  # type: ignore[arg-type]
            for one in asked
        ]
    for whole, chain in zip(found[256], found[1], strict=True):
        np.testing.assert_allclose(chain, whole, atol=1e-6)
    with pytest.raises(MemoryBudgetError, match="discard none, or allow more memory"):
        cached.rollout_row("k", "encoder", 0, "mean", 0.5, 2, _maps=maps)


def test_one_row_of_a_long_rollout_is_no_product_of_matrices(session, monkeypatch):
    """Where the whole would fit, but take long: the chain's cost grows with N² and not with N³."""
    maps = [drawn(60), drawn(60)]
    options = {"part": "encoder", "fusion": "mean", "discard_ratio": 0.0, "last_layer": 1, "_maps": maps}
    whole = cached.rolled_out("whole", **options)
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", -1.0)
    monkeypatch.setattr(long_runs, "get_script_run_ctx", lambda: None)
    row = cached.rollout_row("one", query=3, **options)
    assert long_runs.kept().find(("rollout", "one", "encoder", "mean", 0.0, 1)) is None
    np.testing.assert_allclose(row, whole[3], atol=1e-6)
    np.testing.assert_array_equal(cached.rollout_row("whole", query=3, **options), whole[3])  # it is there


def test_statistics_of_one_layer_and_of_all_at_once_are_the_same(session, monkeypatch):
    maps = [drawn(60), drawn(61), drawn(62)]
    one = cached.head_numbers("one", "encoder", 1, _maps=maps)
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", -1.0)  # every layer is long
    monkeypatch.setattr(long_runs, "get_script_run_ctx", lambda: None)
    rows = cached.mean_row("all", "encoder", 1, _maps=maps)
    together = cached.head_numbers("all", "encoder", 1, _maps=maps)
    assert long_runs.kept().find(("statistics", "all", "encoder"))
    assert long_runs.kept().find(("statistics", "one", "encoder")) is None
    np.testing.assert_array_equal(together.entropy, one.entropy)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-5)


def test_a_streamed_overview_holds_the_largest_weight_of_each_block():
    attention = drawn(67, heads=1, keys=41)
    found = streamed_matrix(attention, 0, cells=10)
    dense = attention.dense(0).numpy()
    assert found.factor == 7
    for row in range(10):
        for column in range(6):
            block = dense[row * 7 : row * 7 + 7, column * 7 : column * 7 + 7]
            assert found.overview[row, column] == pytest.approx(block.max(), rel=1e-5)


def test_the_switch_is_told_in_one_line():
    words = streamed_note(21_317, 21_317**2 * 6 * 4, 256 * MIB)
    assert words == (
        "streamed: 21,317 positions; the maps of all heads of a layer would take 10.2 GiB, one answer may take "
        "256 MiB"
    )


# On the page -------------------------------------------------------------------------------------------------------


def test_a_link_carries_the_memory_only_where_it_was_changed():
    chosen = selection.default_selection()
    assert "memory" not in selection.to_query(chosen, "text")
    params = selection.to_query(replace(chosen, memory_mib=1024), "image")
    assert params["memory"] == "1024"
    assert selection.from_query({"v": "1", "memory": "1024"}, chosen, "text").memory_mib == 1024
    refused = selection.from_query({"v": "1", "memory": "7"}, chosen, "text")
    assert refused.memory_mib == selection.MEMORY_MIB
    assert "memory" in refused.notes[0]


def page_that_asks() -> None:
    """A page whose view takes long."""
    import streamlit as st

    from analysis.estimate import Estimate
    from attn_core.watching import worked
    from dashboard import long_runs
    from dashboard.boundary import page_boundary

    answer = long_runs.kept().find("page's state")
    assert answer is not None
    going, seconds = answer.value

    def work() -> str:
        while not going.wait(0.01):
            worked(1)
        return "the answer"

    with page_boundary():
        st.write("above")
        run = long_runs.Run(("page", seconds), "A pass over 9 positions", "page", Estimate(seconds, 10**6))
        st.write(long_runs.answer(run, work))
    st.write("below")


@pytest.fixture
def opened() -> Iterator[Callable[[float], tuple[AppTest, threading.Event]]]:
    """Open the page with an estimate; its work ends when the event is set."""
    begun: list[threading.Event] = []
    long_runs.pace.clear()  # what earlier tests took is no matter of this one

    def open_page(seconds: float) -> tuple[AppTest, threading.Event]:
        begun.append(threading.Event())
        long_runs.kept().put("page's state", (begun[-1], seconds))
        return AppTest.from_function(page_that_asks, default_timeout=30).run(), begun[-1]

    yield open_page
    for going in begun:
        going.set()
    long_runs.jobs.clear()
    long_runs.kept.clear()


def words_of(at: AppTest) -> str:
    written = [str(element.value) for element in (*at.markdown, *at.error)]
    return " ".join([*written, *(element.proto.body for element in at.get("html"))])


def test_a_page_shows_an_estimate_and_a_button_then_progress_then_the_answer(opened):
    at, going = opened(90.0)
    assert "**A pass over 9 positions**: about 1 min 30 s and 1 MB of memory." in words_of(at)
    assert "below" in words_of(at), "the rest of the page is there"
    at.button[0].click().run()
    assert [button.label for button in at.button] == ["Stop"]
    going.set()
    assert ended(("page", 90.0)).state == "ready"
    at.run()
    assert "the answer" in words_of(at)
    assert not at.button


def test_a_page_whose_run_was_stopped_offers_it_again(opened):
    at, going = opened(5.0)
    assert [button.label for button in at.button] == ["Stop"], "it began by itself"
    at.button[0].click().run()
    assert ended(("page", 5.0)).state == "stopped"
    at.run()
    assert "Stopped." in words_of(at)
    assert [button.label for button in at.button] == ["Start again"]
    at.button[0].click().run()
    going.set()
    assert ended(("page", 5.0)).state == "ready"
    at.run()
    assert "the answer" in words_of(at)
