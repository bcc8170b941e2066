"""The script that trains Wiegreffe & Pinter's models, on a made-up corpus; and the figures that ship."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from analysis.adversarial.distances import LN2, jensen_shannon
from analysis.adversarial.measured import FILE, wiegreffe_pinter
from attn_core.models.classifier import AttentionClassifier
from scripts import wiegreffe_pinter as script
from scripts.training import trained_tensors
from scripts.wiegreffe_pinter import (
    Answers,
    Plan,
    UniformClassifier,
    WordClassifier,
    answers,
    chosen_trade_off,
    figures,
    plans,
    remembered,
    train_adversary,
    uniform,
)

TEXTS = [([2, 3, 4, 5], 0), ([6, 3], 1), ([4, 4, 7], 0), ([5], 1), ([7, 2, 6, 3, 5], 1)]


def treebank(folder: Path) -> Path:
    """Sentences of several lengths in which one word decides."""
    folder.mkdir()
    words = {4: ("fine", "lovely", "great"), 0: ("dull", "awful", "bad")}
    for part, count in (("train", 36), ("dev", 12), ("test", 12)):
        lines = []
        for index in range(count):
            label = 4 if index % 2 else 0
            start = "(2 (2 The) (2 film))" if index % 4 < 2 else "(2 (2 The) (2 (2 long) (2 film)))"
            lines.append(f"({label} {start} ({label} (2 is) ({label} {words[label][index // 2 % 3]})))")
        with gzip.open(folder / f"trees.{part}.txt.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return folder


@pytest.fixture(autouse=True)
def no_bundled_bert(monkeypatch):
    """Word vectors start from random numbers."""

    def drawn(words, width):
        vectors = torch.randn(len(words), width, generator=torch.Generator().manual_seed(0))
        vectors[:2] = 0
        return vectors

    monkeypatch.setattr(script, "start_vectors", drawn)


def command(data: Path, folder: Path, *more: str) -> list[str]:
    return [
        str(data), "--work", str(folder / "work"), "--output", str(folder / "figures.json"), "--width", "8",
        "--batch", "8", "--epochs", "2", "--adversary-epochs", "2", "--seeds", "1", "--uniform", "1", "--guides", "1",
        "--trade-off", "0", "0.1", *more,
    ]  # fmt: skip


class Interrupted(Exception):
    """Somebody pulled the plug."""


def test_the_script_trains_measures_and_goes_on_where_it_was_stopped(tmp_path, capsys, monkeypatch):
    data = treebank(tmp_path / "data")
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    script.main(command(data, tmp_path / "whole"))
    whole = (tmp_path / "whole" / "figures.json").read_text()
    found = wiegreffe_pinter(tmp_path / "whole" / "figures.json")
    assert [(model.kind, model.scoring) for model in found.models] == [
        *((kind, "additive") for kind in ("base", "seed", "uniform", "adversary", "adversary")),
        *((f"guide_{kind}", "additive") for kind in ("uniform", "learned", "base", "adversary")),
        *((kind, "scaled_dot") for kind in ("base", "seed", "uniform", "adversary", "adversary")),
    ]
    assert found.protocol["sentences"] == "36 to train, 12 to choose, 12 to report"
    table = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| adversary |") for line in table) == 2
    assert sum(line.startswith("| adversary, scaled dot |") for line in table) == 2

    keep = script.save_checkpoint
    taken = []

    def until(path, *arguments):
        taken.append(path)
        if len(taken) == 2:
            raise Interrupted
        keep(path, *arguments)

    monkeypatch.setattr(script, "save_checkpoint", until)
    with pytest.raises(Interrupted):
        script.main(command(data, tmp_path / "cut"))
    monkeypatch.setattr(script, "save_checkpoint", keep)
    rows = tmp_path / "cut" / "work" / "rows-additive.jsonl"
    assert (
        len(rows.read_text().splitlines()) == 3
    )  # base, seed, uniform: an adversary was in its second epoch
    rows.write_text(rows.read_text() + '{"kind": "adv')  # the disk was full
    script.main(command(data, tmp_path / "cut"))
    assert (tmp_path / "cut" / "figures.json").read_text() == whole

    monkeypatch.setattr(script.Bench, "row", lambda *_: pytest.fail("everything was there"))
    script.main(command(data, tmp_path / "cut"))
    script.main(command(data, tmp_path / "cut", "--print"))
    assert (tmp_path / "cut" / "figures.json").read_text() == whole
    with pytest.raises(
        ValueError, match=r"rows-additive.jsonl is of a run with other settings \(base-0\); give"
    ):
        script.main(command(data, tmp_path / "cut", "--epochs", "3"))


def test_a_base_that_was_there_is_taken_and_one_with_other_words_is_not(tmp_path):
    data = treebank(tmp_path / "data")
    options = script.parser().parse_args(command(data, tmp_path, "--base", str(tmp_path / "base")))
    additive, scaled = script.benches(options)
    shipped = additive.classifier()
    (tmp_path / "base").mkdir()
    halves = {name: each.half() for name, each in trained_tensors(shipped).items()}
    save_file(halves, tmp_path / "base" / "weights.safetensors")
    facts = {"scoring": "additive", "words": additive.words, "width": 8}
    (tmp_path / "base" / "trained.json").write_text(json.dumps(facts))
    base = additive.base()
    assert_close(trained_tensors(base), {name: each.float() for name, each in halves.items()}, rtol=0, atol=0)
    assert scaled.bundled() is None
    facts["words"] = facts["words"][:-1]
    (tmp_path / "base" / "trained.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="base must have the words of DATA and width 8"):
        additive.base()


def test_uniform_attention_stays_uniform_in_training():
    torch.manual_seed(0)
    model = UniformClassifier(8, embedding=4, hidden=4, attention_width=4)
    tokens = torch.tensor([[2, 3, 4], [5, 0, 0]])
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1.0, 0, 0]])
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        output = model(tokens)
        assert_close(output.weights, expected)
        assert_close(output.weights, uniform(tokens != 0))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 1])).backward()
        optimiser.step()
    assert all(parameter.grad is None for parameter in model.scores.parameters())


def test_words_without_context_do_not_see_each_other_and_use_the_weights_they_are_given():
    torch.manual_seed(0)
    given = torch.tensor([[0.7, 0.2, 0.1]])
    model = WordClassifier(8, 4, lambda tokens: given[:, : tokens.shape[1]]).eval()
    tokens, other = torch.tensor([[2, 3, 4]]), torch.tensor([[2, 6, 7]])
    assert_close(model(tokens).hidden[:, 0], model(other).hidden[:, 0])
    expected = model.output((given @ model(tokens).hidden[0])[0])
    assert_close(model(tokens).logits[0], expected)
    assert model.scores is None
    learned = WordClassifier(8, 4, None).eval()
    assert_close(learned(torch.tensor([[2, 3, 0, 0]])).logits, learned(torch.tensor([[2, 3]])).logits)
    assert_close(learned(tokens).weights.sum(-1), torch.ones(1))


def test_answers_and_remembered_attention_are_the_models_own_without_dropout():
    torch.manual_seed(0)
    model = AttentionClassifier(8, embedding=4, hidden=4, attention_width=4, dropout=0.9)
    found, guide = answers(model, TEXTS), remembered(model, TEXTS)
    assert found.weights.shape == (5, 5)
    for row, (ids, _) in enumerate(TEXTS):
        output = model(torch.tensor([ids]))
        assert_close(found.probabilities[row], output.logits.softmax(-1)[0])
        assert_close(found.weights[row, : len(ids)], output.weights[0])
        assert (found.weights[row, len(ids) :] == 0).all()
    tokens = torch.tensor([[6, 3, 0], [4, 4, 7]])
    assert_close(guide(tokens), model(tokens).weights)


def adversary(work: Path, trade_off: float, *, epochs: int = 15, rate: float = 0.02, seed: int = 1):
    """A base, its answers to ``TEXTS``, and an adversary trained on them."""
    torch.manual_seed(0)
    base = AttentionClassifier(8, embedding=4, hidden=4, attention_width=4, dropout=0.0)
    known = answers(base, TEXTS)
    torch.manual_seed(seed)
    model = AttentionClassifier(8, embedding=4, hidden=4, attention_width=4, dropout=0.0)
    options = argparse.Namespace(work=work, adversary_epochs=epochs, rate=rate, batch=2, seed=seed)
    work.mkdir(exist_ok=True)
    run = train_adversary(model, known, TEXTS, trade_off=trade_off, options=options)
    return model, known, run


def test_an_adversary_predicts_alike_and_attends_elsewhere_the_more_so_the_larger_its_trade_off(tmp_path):
    distances = []
    for index, trade_off in enumerate((0.0, 1.0)):
        model, known, run = adversary(tmp_path / str(index), trade_off, epochs=40)
        found = answers(model, TEXTS)
        distances.append(float(jensen_shannon(found.weights, known.weights).mean()))
        assert run.best_score == max(score for _, score in run.history)
        if not trade_off:
            assert (found.probabilities - known.probabilities).abs().max() < 0.05
    assert distances[1] > 0.15 > 0.01 > distances[0]


def test_an_interrupted_adversary_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    whole, _, _ = adversary(tmp_path / "whole", 0.1, epochs=6)
    keep, taken = script.save_checkpoint, []

    def until(*arguments):
        keep(*arguments)
        taken.append(1)
        if len(taken) == 3:
            raise Interrupted

    monkeypatch.setattr(script, "save_checkpoint", until)
    with pytest.raises(Interrupted):
        adversary(tmp_path / "cut", 0.1, epochs=6)
    resumed, _, run = adversary(tmp_path / "cut", 0.1, epochs=6)
    assert (run.looks, run.epoch, run.step) == (6, 6, 18)
    assert len(taken) == 6  # three epochs before and three after
    assert_close(trained_tensors(resumed), trained_tensors(whole), rtol=0, atol=0)


def test_an_adversary_stops_after_ten_epochs_without_a_lower_training_loss_and_keeps_the_best(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        script, "save_checkpoint", lambda _, __, model, *___: seen.append(trained_tensors(model))
    )
    model, _, run = adversary(tmp_path / "work", 0.0, epochs=60)
    losses = [-score for _, score in run.history]
    best = int(np.argmin(losses))
    assert run.waited == 10
    assert len(losses) == len(seen) == best + 11 < 60
    assert_close(trained_tensors(model), seen[best], rtol=0, atol=0)
    assert (seen[-1]["embedding.weight"] != seen[best]["embedding.weight"]).any()


def test_figures_are_what_they_are_called():
    labels = [([2], 1), ([2], 1), ([2], 0), ([2], 0)]
    sure = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.9, 0.1], [0.7, 0.3]])
    base = Answers(torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.7, 0.3]]), torch.eye(4)[:, :2].abs())
    found = figures(Answers(sure, torch.tensor([[0.0, 1], [0, 1], [0, 0], [0, 0]])), base, labels)
    assert found["accuracy"][0] == 0.75
    assert found["accuracy"][1:] == pytest.approx([0.3006, 0.9544], abs=1e-4)  # Wilson, 3 of 4
    assert found["f1"][0] == pytest.approx(2 / 3)
    assert found["f1"][1] <= found["f1"][0] <= found["f1"][2]
    assert found["tvd"][0] == pytest.approx(0.025)
    assert found["jsd"][0] == pytest.approx(LN2 / 4)
    answered = torch.tensor([1, 1, 0, 0]).repeat(50)
    value, low, high = script.f1_estimate(answered, torch.tensor([1, 0, 1, 0]).repeat(50))
    assert value == 0.5
    assert (low, high) == pytest.approx(
        (0.415, 0.585), abs=0.02
    )  # the delta method: 0.5 ± 1.96 · √(0.375 / 200)
    alone = figures(base, None, labels)
    assert (alone["jsd"], alone["tvd"]) == (None, None)


def test_the_adversary_that_guides_is_chosen_on_development():
    def row(kind, jsd, tvd, trade_off=None):
        dev = {"jsd": [jsd, 0, 1], "tvd": [tvd, 0, 1]}
        return {
            "kind": kind,
            "trade_off": trade_off,
            "dev": dev,
            "test": {"jsd": [9, 0, 1], "tvd": [0, 0, 1]},
        }

    seeds = [row("seed", 0.1, 0.04), row("seed", 0.1, 0.06)]
    near = [row("adversary", 0.2, 0.03, 0.0), row("adversary", 0.4, 0.05, 0.1)]
    far = row("adversary", 0.6, 0.2, 1.0)
    assert chosen_trade_off([*seeds, *near, far]) == 0.1
    assert chosen_trade_off([*seeds, far, row("adversary", 0.5, 0.1, 0.5)]) == 0.5
    with pytest.raises(ValueError, match="words guided by an adversary need one; give a --trade-off"):
        chosen_trade_off(seeds)


def test_plans_count_seeds_from_the_bases():
    options = script.parser().parse_args(["data", "--seed", "4", "--seeds", "2", "--uniform", "1", "--guides", "1",
                                          "--trade-off", "0.5"])  # fmt: skip
    assert plans("scaled_dot", options) == [
        Plan("base", 4), Plan("seed", 5), Plan("seed", 6), Plan("uniform", 4), Plan("adversary", 4, 0.5),
    ]  # fmt: skip
    assert [plan.kind for plan in plans("additive", options)][5:] == [
        "guide_uniform", "guide_learned", "guide_base", "guide_adversary",
    ]  # fmt: skip
    assert Plan("adversary", 4, 0.5).name == "adversary-4-0.5"


# What ships -------------------------------------------------------------------------------------------------------


def test_the_figures_that_ship_can_be():
    found = wiegreffe_pinter()
    (base,) = found.of("base")
    assert (base.jsd.value, base.tvd.value) == (0, 0)
    assert len(found.of("seed")) >= 5
    assert len(found.of("adversary")) >= 6
    assert {len(found.of(f"guide_{kind}")) for kind in ("uniform", "learned", "base", "adversary")} == {3}
    trade_offs = [model.trade_off for model in found.of("adversary")]
    assert trade_offs == sorted(set(trade_offs))
    assert {model.trade_off for model in found.of("guide_adversary")} <= set(trade_offs)
    for model in found.models:
        assert (model.jsd is None) == model.kind.startswith("guide")
        assert model.best_epoch <= model.epochs
        right = model.accuracy.value * 1821
        assert right == pytest.approx(round(right), abs=0.1)  # four digits of a share of the test sentences
        low, high = script.wilson_interval(round(right), 1821)
        assert (model.accuracy.low, model.accuracy.high) == pytest.approx((low, high), abs=6e-5)
        assert model.jsd is None or model.jsd.high <= LN2
    card = Path("models/recurrent-sentiment/README.md").read_text(encoding="utf-8")
    assert f"| Test, read once | {100 * base.accuracy.value:.1f} %" in card
    assert FILE.stat().st_size < 20_000


def test_the_tables_of_the_findings_are_those_of_the_file():
    told = Path("docs/findings.md").read_text(encoding="utf-8")
    for line in script.table(wiegreffe_pinter()):
        assert line in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jsd": {"value": 0.7, "low": 0.6, "high": 0.71}}, "jsd of base must lie .* between 0 and 0.693"),
        ({"accuracy": {"value": 0.7, "low": 0.8, "high": 0.9}}, "accuracy of base must lie in its interval"),
        ({"f1": {"value": 0.7, "low": -0.1, "high": 0.9}}, "f1 of base"),
        ({"kind": "guess"}, "kind and scoring must be of the known ones but are 'guess'"),
        ({"scoring": "dot"}, "'dot'; write the file anew"),
        ({"trade_off": -1.0}, "trade_off must be at least 0 but is -1.0"),
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path, change, message):
    data = json.loads(FILE.read_text(encoding="utf-8"))
    data["models"][0] |= change
    (tmp_path / "changed.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        wiegreffe_pinter(tmp_path / "changed.json")
