"""Train the sentiment classifier: low-rank adapters, pooler and head on the bundled BERT, on the Sentiment Treebank.

    python -m scripts.train_sentiment DATA --output models/sentiment

``DATA`` holds ``trees.train.txt.gz``, ``trees.dev.txt.gz`` and ``trees.test.txt.gz``. Everything is chosen on the
development sentences; the test sentences are read once, at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.catalogue import MINILM, verify
from scripts.sentiment_data import Phrase, read_trees, sentences
from scripts.training import (
    Schedule,
    adapt,
    calibrate,
    fit,
    parser_of,
    prepare,
    rounded,
    tell_binary,
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
    options = _parser().parse_args(arguments)
    prepare(options)
    model, tokenizer = build()
    phrases = training_phrases(options.data, tokenizer, neutral=options.neutral, seed=options.seed)
    development = sentences(options.data, "dev")
    train(model, tokenizer, phrases, development, options)
    shipped = rounded(model)
    temperature = calibrate(*answers(model, tokenizer, development))
    facts = {
        "backbone": MINILM.name,
        "rank": options.rank,
        "alpha": 2 * options.rank,
        "labels": ["negative", "positive"],
        "temperature": round(temperature, 4),
    }
    write_part(options.output, facts, weights=shipped)
    tell_binary(*answers(model, tokenizer, sentences(options.data, "test")))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__ or "", output="models/sentiment", work="sentiment")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=640, help="tokens of a batch")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--neutral", type=float, default=0.2, help="share of the neutral phrases")
    parser.add_argument("--looks", type=int, default=4, help="looks at the development set in an epoch")
    parser.add_argument("--patience", type=int, default=6, help="looks without a better score")
    return parser


def train(
    model: Any,
    tokenizer: Any,
    phrases: Sequence[Encoded],
    development: Sequence[tuple[Phrase, int]],
    options: argparse.Namespace,
) -> None:
    """Train adapters, pooler and head; the model has the tensors of the best look afterwards."""
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
    epoch_batches = partial(batches, phrases, tokens=options.tokens, seed=options.seed)
    per_epoch = sum(1 for _ in epoch_batches(epoch=0))
    print(
        f"{len(phrases):,} phrases, {sum(len(p.ids) for p in phrases):,} tokens, about {per_epoch:,} steps an epoch, "
        f"{len(adapters)} adapters, {sum(p.numel() for p in trained):,} weights",
        flush=True,
    )

    def loss(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, mask, target = batch
        return nn.functional.cross_entropy(model(input_ids=ids, attention_mask=mask.long()).logits, target)

    def score() -> tuple[int, int]:
        logits, labels = answers(model, tokenizer, development)
        return int((logits.argmax(-1) == labels).sum()), len(labels)

    schedule = Schedule(options.epochs, per_epoch, per_epoch // options.looks, options.patience)
    fit(
        model,
        optimiser,
        schedule,
        batches=lambda epoch: epoch_batches(epoch=epoch),
        loss=loss,
        score=score,
        options=options,
    )


def answers(model: Any, tokenizer: Any, labelled: Sequence[tuple[Phrase, int]]) -> tuple[Tensor, Tensor]:
    """Logits (n, 2) and labels (n,) of labelled sentences."""
    logits = predict(model, tokenizer, [phrase.text for phrase, _ in labelled])
    return logits, torch.tensor([label for _, label in labelled])


if __name__ == "__main__":
    main()
