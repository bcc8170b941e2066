"""Train the models of Wiegreffe & Pinter 2019 on the Sentiment Treebank, and measure them beside the classifier.

    python -m scripts.wiegreffe_pinter DATA --base models/recurrent-sentiment
    python -m scripts.wiegreffe_pinter DATA --print

Attention frozen to uniform (section 3.1), other seeds (3.2), words without context that are weighted by given
attention (3.3), and adversaries for several λ (4), each trained as ``scripts.train_recurrent`` trains. Everything is
chosen on the development sentences, an adversary by its training loss as theirs; figures are of the test sentences.

A finished model is a line of ``rows-SCORING.jsonl`` in ``--work``, and a model in training has a checkpoint an epoch:
a run that was stopped goes on where it was, and two runs with another ``--scoring`` each may share the work.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from analysis.adversarial.adversary import adversary_loss
from analysis.adversarial.distances import jensen_shannon, total_variation
from analysis.adversarial.measured import FILE, Kind, Measurements, TrainedModel, wiegreffe_pinter
from attn_core.models.classifier import AdditiveScores, AttentionClassifier, ClassifierOutput, Scoring
from scripts.train_recurrent import (
    Texts,
    batches,
    padded,
    put_vectors,
    read,
    start_vectors,
    train,
    vocabulary,
)
from scripts.training import (
    Progress,
    Run,
    f1,
    restore,
    resume,
    save_checkpoint,
    seed_all,
    settings_of,
    wilson_interval,
)

Guide = Callable[[Tensor], Tensor]
"""Word indices (B, N), padding 0, to weights (B, N)."""

Row = dict[str, Any]

PATIENCE = 10
"""Epochs without a lower training loss after which an adversary's training ends (their program)."""


# Models ------------------------------------------------------------------------------------------------------------


def uniform(valid: Tensor) -> Tensor:
    """Equal weights (B, N) on the words of each text."""
    return valid.float() / valid.sum(-1, keepdim=True)


class UniformClassifier(AttentionClassifier):
    """The classifier with its attention frozen to uniform (section 3.1)."""

    def attend(self, hidden: Tensor, valid: Tensor) -> Tensor:
        """Equal weights (B, N)."""
        return uniform(valid).to(hidden)


class WordClassifier(nn.Module):
    """Words without context (section 3.3): linear and tanh of each word vector, weighted sum, linear.

    Args:
        vocabulary: number of words; index 0 is padding.
        width: of word vectors and states.
        guide: where the weights come from; None = additive attention of its own.
        dropout: as in ``AttentionClassifier``.
    """

    def __init__(self, vocabulary: int, width: int, guide: Guide | None, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.project = nn.Linear(width, width)
        self.scores = AdditiveScores(width, width) if guide is None else None
        self.output = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)
        self.guide = guide

    def forward(self, input_ids: Tensor) -> ClassifierOutput:
        """Classify texts (B, N)."""
        valid = input_ids != 0
        hidden = torch.tanh(self.project(self.dropout(self.embedding(input_ids))))
        if self.guide is not None:
            weights = self.guide(input_ids)
        else:
            assert self.scores is not None
            weights = self.scores(hidden).masked_fill(~valid, -torch.inf).softmax(-1)
        context = (weights[:, None] @ hidden)[:, 0]
        return ClassifierOutput(self.output(self.dropout(context)), weights, hidden)


# What a model answers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """Of n texts.

    Attributes:
        probabilities: (n, 2).
        weights: (n, N) attention, zero on padding; N is the longest text.
    """

    probabilities: Tensor
    weights: Tensor


@torch.no_grad()
def answers(model: nn.Module, texts: Texts) -> Answers:
    """Predictions and attention, without dropout."""
    model.eval()
    longest = max(len(ids) for ids, _ in texts)
    outputs = [model(padded(texts[start : start + 64])[0]) for start in range(0, len(texts), 64)]
    weights = [
        nn.functional.pad(output.weights, (0, longest - output.weights.shape[1])) for output in outputs
    ]
    return Answers(torch.cat([output.logits.softmax(-1) for output in outputs]), torch.cat(weights))


def remembered(model: nn.Module, texts: Texts) -> Guide:
    """The model's attention on known texts, computed once."""
    known = answers(model, texts).weights
    places = {tuple(ids): place for place, (ids, _) in enumerate(texts)}

    def guide(tokens: Tensor) -> Tensor:
        rows = [places[tuple(row[row != 0].tolist())] for row in tokens]
        return known[rows, : tokens.shape[1]]

    return guide


def train_adversary(
    model: nn.Module, base: Answers, training: Texts, *, trade_off: float, options: argparse.Namespace
) -> Run:
    """Train on the distance of predictions and attention from the base's; the model of the least training loss stays.

    As their program: every weight from the start, no dropout, the loss summed over a batch, gradients not cut, until
    ``PATIENCE`` epochs bring no lower loss.
    """
    numbered = [(ids, number) for number, (ids, _) in enumerate(training)]
    checkpoint, settings = options.work / "checkpoint.pt", settings_of(options)
    optimiser = torch.optim.Adam(model.parameters(), lr=options.rate, weight_decay=1e-5, amsgrad=True)
    run = resume(checkpoint, model, optimiser, settings)
    first, per_epoch = run.step, -(-len(training) // options.batch)
    progress = Progress(options.adversary_epochs * per_epoch - first)
    while run.epoch < options.adversary_epochs and run.waited < PATIENCE:
        model.train()
        total = 0.0
        for tokens, numbers in batches(numbered, size=options.batch, epoch=run.epoch, seed=options.seed):
            output = model(tokens)
            loss = adversary_loss(
                output.logits.softmax(-1),
                base.probabilities[numbers],
                output.weights,
                base.weights[numbers, : tokens.shape[1]],
                tokens != 0,
                trade_off=trade_off,
            ).loss.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach())
            run.step += 1
            progress.tell(run.step - first, float(loss.detach()) / len(tokens))
        run.epoch += 1
        better = run.look(-total / len(training), model)
        print(
            f"epoch {run.epoch}: training loss {total / len(training):.4f}{' *' if better else ''}",
            flush=True,
        )
        save_checkpoint(checkpoint, run, model, optimiser, settings)
    restore(model, run.best)
    return run


# Figures -----------------------------------------------------------------------------------------------------------


def share(right: int, total: int) -> list[float]:
    """A proportion and its Wilson interval."""
    return [right / total, *wilson_interval(right, total)]


def mean(values: Tensor) -> list[float]:
    """A mean over texts (n,) of numbers that are at least 0, and its 95 % interval by the normal distribution."""
    middle = float(values.mean())
    spread = 1.96 * float(values.std()) / len(values) ** 0.5
    return [middle, max(middle - spread, 0.0), middle + spread]


def f1_estimate(predicted: Tensor, labels: Tensor, *, draws: int = 1000) -> list[float]:
    """F1 of the positive class and the middle 95 % of it over bootstrap samples of the texts."""
    value, random = f1(predicted, labels), np.random.default_rng(0)
    samples = (torch.from_numpy(random.integers(len(labels), size=len(labels))) for _ in range(draws))
    low, high = np.quantile([f1(predicted[sample], labels[sample]) for sample in samples], [0.025, 0.975])
    return [value, min(float(low), value), max(float(high), value)]


def figures(found: Answers, base: Answers | None, texts: Texts) -> dict[str, list[float] | None]:
    """Accuracy and F1, and how far attention and predictions are from the base's, where there is one to compare."""
    labels = torch.tensor([label for _, label in texts])
    predicted = found.probabilities.argmax(-1)
    return {
        "accuracy": share(int((predicted == labels).sum()), len(labels)),
        "f1": f1_estimate(predicted, labels),
        "jsd": None if base is None else mean(jensen_shannon(base.weights, found.weights)),
        "tvd": None if base is None else mean(total_variation(base.probabilities, found.probabilities)),
    }


# Runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A model to train."""

    kind: Kind
    seed: int
    trade_off: float | None = None

    @property
    def name(self) -> str:
        """Of its folder of checkpoints."""
        return "-".join(str(part) for part in (self.kind, self.seed, self.trade_off) if part is not None)


def plans(scoring: Scoring, options: argparse.Namespace) -> list[Plan]:
    """The models of one similarity function; words without context are trained with the first one alone."""
    found = [Plan("base", options.seed)]
    found += [Plan("seed", options.seed + 1 + index) for index in range(options.seeds)]
    found += [Plan("uniform", options.seed + index) for index in range(options.uniform)]
    found += [Plan("adversary", options.seed, trade_off) for trade_off in options.trade_off]
    if scoring == "additive":
        kinds: tuple[Kind, ...] = ("guide_uniform", "guide_learned", "guide_base", "guide_adversary")
        found += [Plan(kind, options.seed + index) for kind in kinds for index in range(options.guides)]
    return found


@dataclass(frozen=True)
class Bench:
    """What every model of one similarity function is trained with.

    Attributes:
        scoring: of the attention.
        options: of the command line.
        words: the vocabulary.
        texts: sentences by part: train, dev, test.
        vectors: (V, width) that word vectors start from.
    """

    scoring: Scoring
    options: argparse.Namespace
    words: list[str]
    texts: dict[str, Texts]
    vectors: Tensor

    @property
    def rows_file(self) -> Path:
        """Of the models that are done."""
        path: Path = self.options.work / f"rows-{self.scoring}.jsonl"
        return path

    def settings(self, plan: Plan) -> argparse.Namespace:
        """The options of one model's training."""
        names = ("epochs", "batch", "rate", "width", "patience", "adversary_epochs")
        return argparse.Namespace(
            **{name: getattr(self.options, name) for name in names},
            work=self.options.work / self.scoring / plan.name,
            seed=plan.seed,
            scoring=self.scoring,
            base=None if self.options.base is None else self.options.base.name,
        )

    def classifier(
        self, kind: type[AttentionClassifier] = AttentionClassifier, *, dropout: float = 0.5
    ) -> AttentionClassifier:
        """An untrained classifier whose word vectors are started."""
        width = self.options.width
        model = kind(
            len(self.words), 2, embedding=width, hidden=width, scoring=self.scoring, attention_width=width,
            dropout=dropout,
        )  # fmt: skip
        put_vectors(model.embedding, self.vectors)
        return model

    def bundled(self) -> AttentionClassifier | None:
        """The base that ``--base`` names, if it is of this similarity function.

        Raises:
            ValueError: if it has other words.
        """
        if self.options.base is None:
            return None
        facts = json.loads((self.options.base / "trained.json").read_text(encoding="utf-8"))
        if facts["scoring"] != self.scoring:
            return None
        if facts["words"] != self.words or facts["width"] != self.options.width:
            raise ValueError(
                f"wiegreffe_pinter: base must have the words of DATA and width {self.options.width}, but "
                f"{self.options.base} has others; leave --base out to train one."
            )
        model = self.classifier()
        tensors = load_file(self.options.base / "weights.safetensors")
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return model

    def trained(self, plan: Plan) -> tuple[nn.Module, Run]:
        """The model of a plan; one that was trained before comes from its checkpoint."""
        options = self.settings(plan)
        options.work.mkdir(parents=True, exist_ok=True)
        if plan.kind == "base" and (bundled := self.bundled()) is not None:
            return bundled, Run()
        guide = self.guide(plan)
        seed_all(plan.seed)
        training, development = self.texts["train"], self.texts["dev"]
        if plan.kind == "adversary":
            assert plan.trade_off is not None
            model: nn.Module = self.classifier(dropout=0.0)
            base = answers(self.base(), training)
            return model, train_adversary(model, base, training, trade_off=plan.trade_off, options=options)
        if plan.kind.startswith("guide"):
            words = WordClassifier(len(self.words), self.options.width, guide)
            put_vectors(words.embedding, self.vectors)
            model = words
        else:
            model = self.classifier(UniformClassifier if plan.kind == "uniform" else AttentionClassifier)
        return model, train(model, training, development, options)

    def base(self) -> nn.Module:
        """The base model."""
        return self.trained(Plan("base", self.options.seed))[0]

    def guide(self, plan: Plan) -> Guide | None:
        """The weights that a plan is to take from elsewhere."""
        every = [text for part in self.texts.values() for text in part]
        if plan.kind == "guide_uniform":
            return lambda tokens: uniform(tokens != 0)
        if plan.kind == "guide_base":
            return remembered(self.base(), every)
        if plan.kind == "guide_adversary":
            return remembered(
                self.trained(Plan("adversary", self.options.seed, chosen_trade_off(self.rows())))[0], every
            )
        return None

    def rows(self) -> list[Row]:
        """Of the models that are done."""
        return read_rows(self.rows_file)

    def row(self, plan: Plan) -> Row:
        """Train a model and measure it."""
        model, run = self.trained(plan)
        base = None if plan.kind.startswith("guide") else self.base()  # words alone are no model of its kind
        row: Row = {
            "kind": plan.kind,
            "scoring": self.scoring,
            "seed": plan.seed,
            "trade_off": plan.trade_off,
            "epochs": run.looks,
            "asked": plan.trade_off,
            "settings": settings_of(self.settings(plan)),
            "best_epoch": 1 + int(np.argmax([score for _, score in run.history])) if run.history else 0,
        }
        if plan.kind == "guide_adversary":
            row["trade_off"] = chosen_trade_off(self.rows())
        for part in ("dev", "test"):
            texts = self.texts[part]
            compared = None if base is None else answers(base, texts)
            row[part] = figures(answers(model, texts), compared, texts)
        return row


def benches(options: argparse.Namespace) -> list[Bench]:
    """One for each similarity function that was asked for."""
    words = vocabulary(options.data)
    texts = {part: read(options.data, part, words) for part in ("train", "dev", "test")}
    vectors = start_vectors(words, options.width)
    return [Bench(scoring, options, words, texts, vectors) for scoring in options.scoring]


def chosen_trade_off(rows: Sequence[Row]) -> float:
    """λ of the adversary whose attention is farthest from the base's while its predictions are no farther than other
    seeds' are, on the development sentences; of the one with the nearest predictions where none is that near.

    Raises:
        ValueError: if no adversary is there.
    """
    adversaries = [row for row in rows if row["kind"] == "adversary"]
    if not adversaries:
        raise ValueError("wiegreffe_pinter: words guided by an adversary need one; give a --trade-off.")
    seeds = [row["dev"]["tvd"][0] for row in rows if row["kind"] == "seed"]
    near = [row for row in adversaries if seeds and row["dev"]["tvd"][0] <= np.mean(seeds)]
    if near:
        return float(max(near, key=lambda row: row["dev"]["jsd"][0])["trade_off"])
    return float(min(adversaries, key=lambda row: row["dev"]["tvd"][0])["trade_off"])


# Rows that are kept ------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; a last line that was cut off is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def compute(bench: Bench) -> None:
    """Add the rows that are not there.

    Raises:
        ValueError: if a row is of a run with other settings.
    """
    kept = bench.rows()
    bench.rows_file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    done = {(row["kind"], row["seed"], row["asked"]): row["settings"] for row in kept}
    for plan in plans(bench.scoring, bench.options):
        settings = done.get((plan.kind, plan.seed, plan.trade_off))
        if settings is None:
            row = bench.row(plan)
            with bench.rows_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{bench.scoring} {plan.name}: {json.dumps(row['test'])}", flush=True)
        elif settings != settings_of(bench.settings(plan)):
            raise ValueError(
                f"wiegreffe_pinter: {bench.rows_file} is of a run with other settings ({plan.name}); give the same "
                "ones, or another --work."
            )


def measurements(rows: Sequence[Row], protocol: Mapping[str, str]) -> str:
    """What ``analysis.adversarial.measured`` reads, a line a model."""
    names, left_out = ("value", "low", "high"), ("asked", "settings", "dev", "test")
    models = []
    for row in rows:
        test = {
            name: None
            if found is None
            else dict(zip(names, (round(value, 5) for value in found), strict=True))
            for name, found in row["test"].items()
        }
        models.append({name: value for name, value in row.items() if name not in left_out} | test)
    lines = ",\n  ".join(json.dumps(model) for model in models)
    facts = json.dumps(dict(protocol), ensure_ascii=False, indent=2)
    return f'{{\n"protocol": {facts},\n"models": [\n  {lines}\n]\n}}\n'


def protocol(bench: Bench) -> dict[str, str]:
    """How the models were made, in words."""
    options = bench.options
    counts = [len(bench.texts[part]) for part in ("train", "dev", "test")]
    return {
        "data": "Stanford Sentiment Treebank, sentences that are not neutral",
        "sentences": "{:,} to train, {:,} to choose, {:,} to report".format(*counts),
        "model": f"BiLSTM {options.width} + {options.width}, word vectors {options.width}, from MiniLM's pieces",
        "base": options.base.name if options.base else f"trained with seed {options.seed}",
        "training": (
            f"Adam {options.rate:g} (amsgrad), batches of {options.batch}, dropout 0.5, "
            f"at most {options.epochs} epochs, best by development, patience {options.patience}"
        ),
        "adversary": (
            f"from the start, no dropout, at most {options.adversary_epochs} epochs, best by training loss, patience "
            f"{PATIENCE}; total variation of both classes, so λ is twice that of their program"
        ),
        "intervals": "95 % over the test sentences: accuracy Wilson, F1 bootstrap, the others normal",
    }


# Tables ------------------------------------------------------------------------------------------------------------

TITLES: dict[Kind, str] = {
    "base": "base",
    "uniform": "attention frozen to uniform",
    "seed": "another seed",
    "adversary": "adversary",
    "guide_uniform": "words weighted uniformly",
    "guide_learned": "words, attention learned there",
    "guide_base": "words weighted by the base",
    "guide_adversary": "words weighted by the adversary",
}


def table(found: Measurements) -> Iterator[str]:
    """A line for the models that differ by their seed alone: figures and intervals are means over them."""
    yield "| model | λ | runs | accuracy | F1 | JSD to base | TVD to base |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for scoring in get_args(Scoring):
        for kind, title in TITLES.items():
            models = found.of(kind, scoring)
            for trade_off in dict.fromkeys(model.trade_off for model in models):
                alike = [model for model in models if model.trade_off == trade_off]
                yield _line(title + ("" if scoring == "additive" else ", scaled dot"), trade_off, alike)


def _line(title: str, trade_off: float | None, models: Sequence[TrainedModel]) -> str:
    columns = [title, "–" if trade_off is None else f"{trade_off:g}", str(len(models))]
    for name, scale, digits in (("accuracy", 100, 1), ("f1", 1, 3), ("jsd", 1, 3), ("tvd", 1, 3)):
        estimates = [getattr(model, name) for model in models]
        if None in estimates or (models[0].kind == "base" and name in ("jsd", "tvd")):
            columns.append("–")
            continue
        value, low, high = (
            f"{scale * np.mean([getattr(each, part) for each in estimates]):.{digits}f}"
            for part in ("value", "low", "high")
        )
        columns.append(f"{value} ({low} to {high})")
    return f"| {' | '.join(columns)} |"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("data", type=Path, help="folder of the treebank")
    found.add_argument(
        "--base", type=Path, help="folder of the trained classifier that is the base; else one is trained"
    )
    found.add_argument("--output", type=Path, default=FILE, help="the file of figures")
    found.add_argument("--work", type=Path, default=Path(".attnscope/training/wiegreffe-pinter"))
    found.add_argument("--print", action="store_true", help="train nothing")
    found.add_argument("--scoring", nargs="+", choices=get_args(Scoring), default=list(get_args(Scoring)))
    found.add_argument("--seed", type=int, default=0, help="of the base; other runs count on from it")
    found.add_argument("--seeds", type=int, default=5, help="models with another seed")
    found.add_argument("--uniform", type=int, default=3, help="models with uniform attention, a seed each")
    found.add_argument(
        "--guides", type=int, default=3, help="seeds of each classifier of words without context"
    )
    found.add_argument(
        "--trade-off",
        type=float,
        nargs="*",
        default=[0.0, 1e-3, 1e-2, 3e-2, 0.1, 0.3],
        help="λ of the adversaries",
    )
    found.add_argument("--epochs", type=int, default=12)
    found.add_argument("--adversary-epochs", type=int, default=80)
    found.add_argument("--batch", type=int, default=32)
    found.add_argument("--rate", type=float, default=1e-3)
    found.add_argument("--width", type=int, default=128)
    found.add_argument("--patience", type=int, default=4, help="epochs without a better development score")
    found.add_argument("--threads", type=int, default=1)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, write the figures of all that is there, and print them."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    found = benches(options)
    for bench in found:
        if not options.print:
            compute(bench)
    rows = [row for scoring in get_args(Scoring) for row in read_rows(options.work / f"rows-{scoring}.jsonl")]
    options.output.write_text(measurements(rows, protocol(found[0])), encoding="utf-8")
    print("\n".join(table(wiegreffe_pinter(options.output))))


if __name__ == "__main__":
    main()
