"""Train the sentiment classifier: low-rank adapters, pooler and head on the bundled BERT, on the Sentiment Treebank.

    python -m scripts.train_sentiment DATA --output models/sentiment

``DATA`` holds ``trees.train.txt.gz``, ``trees.dev.txt.gz`` and ``trees.test.txt.gz``. Everything is chosen on the
development sentences; the test sentences are read once, at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.catalogue import MINILM, verify
from scripts.sentiment_data import read_trees, sentences
from scripts.training import (
    Progress,
    adapt,
    calibration_error,
    f1,
    fit_temperature,
    half_precision,
    in_words,
    parser_of,
    prepare,
    restore,
    resume,
    save_checkpoint,
    settings_of,
    trained_tensors,
    warm_cosine,
    write_part,
)

POSITIVE = (0.02, 0.15, 0.5, 0.85, 0.98)
"""Probability of "positive" that a phrase of each label is trained towards."""

LONGEST = 80  # tokens


@dataclass(frozen=True)
class Encoded:
    """Token ids of a phrase and its target."""

    ids: tuple[int, ...]
    positive: float


def training_phrases(folder: Path, tokenizer: Any, *, neutral: float, seed: int) -> list[Encoded]:
    """Every phrase of the training trees once, and of the neutral ones a share; whole sentences count twice."""
    random = np.random.default_rng(seed)
    labels: dict[str, list[int]] = {}
    whole: set[str] = set()
    for tree in read_trees(folder, "train"):
        for phrase in tree:
            text = phrase.text
            labels.setdefault(text, []).append(phrase.label)
            if phrase.whole and phrase.label != 2:
                whole.add(text)
    texts = [
        text
        for text, found in labels.items()
        if text in whole or round(float(np.mean(found))) != 2 or random.random() < neutral
    ]
    texts += sorted(whole)
    encoded = tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
    targets = (float(np.mean([POSITIVE[label] for label in labels[text]])) for text in texts)
    return [Encoded(tuple(ids), target) for ids, target in zip(encoded, targets, strict=True)]


def batches(
    phrases: Sequence[Encoded], *, tokens: int, epoch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One epoch in batches of about so many tokens and of like lengths: ids, mask, targets (B, 2)."""
    random = np.random.default_rng([seed, epoch])
    order = sorted(range(len(phrases)), key=lambda index: len(phrases[index].ids) + 4 * random.random())
    groups: list[list[int]] = [[]]
    for index in order:
        if (len(groups[-1]) + 1) * len(phrases[index].ids) > tokens:
            groups.append([])
        groups[-1].append(index)
    for number in random.permutation(len(groups)):
        yield padded([phrases[index] for index in groups[number]])


def padded(phrases: Sequence[Encoded]) -> tuple[Tensor, Tensor, Tensor]:
    """ids (B, N), mask (B, N), targets (B, 2)."""
    longest = max(len(phrase.ids) for phrase in phrases)
    ids = torch.tensor([[*phrase.ids, *[0] * (longest - len(phrase.ids))] for phrase in phrases])
    lengths = torch.tensor([len(phrase.ids) for phrase in phrases])
    positive = torch.tensor([phrase.positive for phrase in phrases])
    return ids, torch.arange(longest) < lengths[:, None], torch.stack([1 - positive, positive], dim=-1)


@torch.no_grad()
def predict(model: Any, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Logits (n, 2)."""
    model.eval()
    ids = tokenizer(list(texts), truncation=True, max_length=128)["input_ids"]
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    logits = torch.empty(len(ids), 2)
    for start in range(0, len(order), 32):
        part = order[start : start + 32]
        tokens, mask, _ = padded([Encoded(tuple(ids[index]), 0.0) for index in part])
        logits[part] = model(input_ids=tokens, attention_mask=mask.long()).logits
    return logits


def build() -> tuple[Any, Any]:
    """The backbone with a two-way head, and its tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    folder = verify(MINILM)
    config = BertConfig.from_pretrained(folder)
    config.num_labels = 2
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(BertModel.from_pretrained(folder).state_dict())
    return model, AutoTokenizer.from_pretrained(folder)


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate and write the shipped files."""
    parser = parser_of(__doc__ or "", output="models/sentiment", work="sentiment")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=640, help="tokens of a batch")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--neutral", type=float, default=0.2, help="share of the neutral phrases")
    parser.add_argument("--looks", type=int, default=4, help="looks at the development set in an epoch")
    parser.add_argument("--patience", type=int, default=6, help="looks without a better score")
    options = parser.parse_args(arguments)
    prepare(options)
    settings = settings_of(options)

    model, tokenizer = build()
    phrases = training_phrases(options.data, tokenizer, neutral=options.neutral, seed=options.seed)
    development = sentences(options.data, "dev")
    texts = [phrase.text for phrase, _ in development]
    labels = torch.tensor([label for _, label in development])
    adapters = adapt(
        model,
        lambda name: name.startswith("bert.encoder"),
        rank=options.rank,
        alpha=2 * options.rank,
        dropout=options.dropout,
    )
    for part in (model.bert.pooler, model.classifier):
        part.requires_grad_(True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=options.rate, weight_decay=0.01)
    per_epoch = sum(1 for _ in batches(phrases, tokens=options.tokens, epoch=0, seed=options.seed))
    steps = options.epochs * per_epoch
    print(
        f"{len(phrases):,} phrases, {sum(len(p.ids) for p in phrases):,} tokens, about {per_epoch:,} steps an epoch, "
        f"{len(adapters)} adapters, {sum(p.numel() for p in trained):,} weights",
        flush=True,
    )
    checkpoint = options.work / "checkpoint.pt"
    run = resume(checkpoint, model, optimiser, settings)
    progress, first, done = Progress(steps - run.step), run.step, 0
    look_every = per_epoch // options.looks
    for epoch in range(options.epochs):
        for ids, mask, target in batches(phrases, tokens=options.tokens, epoch=epoch, seed=options.seed):
            done += 1
            if done <= run.step or run.waited >= options.patience:
                continue  # of the part that a checkpoint has behind it
            model.train()
            optimiser.param_groups[0]["lr"] = options.rate * warm_cosine(run.step, steps)
            logits = model(input_ids=ids, attention_mask=mask.long()).logits
            loss = nn.functional.cross_entropy(logits, target)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            run.step += 1
            progress.tell(run.step - first, float(loss.detach()))
            if run.step % look_every == 0:
                right = int((predict(model, tokenizer, texts).argmax(-1) == labels).sum())
                better = run.look(right / len(labels), model)
                print(
                    f"step {run.step:,}: development {in_words(right, len(labels))}{' *' if better else ''}",
                    flush=True,
                )
                save_checkpoint(checkpoint, run, model, optimiser, settings)
    if run.waited >= options.patience:
        print("stopped: the development score has not risen", file=sys.stderr)

    restore(model, run.best)
    tensors = half_precision(trained_tensors(model))
    restore(model, {name: tensor.float() for name, tensor in tensors.items()})
    logits = predict(model, tokenizer, texts)
    temperature = fit_temperature(logits, labels)
    error = calibration_error((logits / temperature).softmax(-1), labels)
    facts = {
        "backbone": MINILM.name,
        "rank": options.rank,
        "alpha": 2 * options.rank,
        "labels": ["negative", "positive"],
        "temperature": round(temperature, 4),
    }
    write_part(options.output, facts, weights=tensors)
    print(f"temperature {temperature:.3f}, calibration error on development {error:.3f}")
    test = sentences(options.data, "test")
    labels = torch.tensor([label for _, label in test])
    predicted = predict(model, tokenizer, [phrase.text for phrase, _ in test]).argmax(-1)
    print(f"test: {in_words(int((predicted == labels).sum()), len(labels))}, F1 {f1(predicted, labels):.3f}")


if __name__ == "__main__":
    main()
