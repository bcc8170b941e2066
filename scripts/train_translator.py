"""Train a translator from English to French on the sentence pairs of Tatoeba.

    python -m scripts.train_translator DATA --scoring additive --output models/translator-additive

``DATA`` holds ``eng-fra.tsv.gz``. The four shipped translators (additive, dot, general, none) have the same data,
widths and schedule. Everything is chosen on the development sentences; ``scripts.evaluate_translator`` reads the test
sentences and adds the scores to ``trained.json``.

Additive attention is trained for some epochs more with the coverage loss of See et al. 2017 (section 2.3) on top,
which asks it not to look at a word again and again. Without them it translates as well, but the decoder carries along
what it has read, and looks at "love" when it says "t'" as well as when it says "aime".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.int8_rows import from_int8_rows, int8_rows
from analysis.translation import SIZES
from analysis.translation_words import BEGIN, END, Vocabulary
from attn_core.models.translator import PADDING, Translator
from scripts.training import (
    Run,
    Schedule,
    fit,
    in_words,
    parser_of,
    prepare,
    restore,
    trained_tensors,
    write_part,
)
from scripts.translation_data import Corpus, Sentence, read_corpus

Pair = tuple[list[int], list[int]]
"""Indices of English words, and of French words between the marks of beginning and end."""

Batch = tuple[Tensor, Tensor]


def numbered(sentences: Sequence[Sentence], english: Vocabulary, french: Vocabulary) -> list[Pair]:
    """Every pair of a sentence and one of its translations, in indices."""
    begin, end = french.index[BEGIN], french.index[END]
    return [
        (english.numbers(sentence.english), [begin, *french.numbers(translation), end])
        for sentence in sentences
        for translation in sentence.french
    ]


def dressed(
    pairs: Sequence[Pair], random: np.random.Generator, signs: frozenset[int], options: argparse.Namespace
) -> list[Pair]:
    """The pairs as one epoch sees them: some without their last signs, some two or three in a row as one.

    Without the first a translator knows no sentence that ends without a full stop; without the second none that is
    longer than the 30 letters of the data.

    Args:
        signs: indices of French words that end a sentence and can go, with the English ones that go with them.
        options: ``bare`` and ``joined`` are the shares of pairs that lose signs or begin a longer one.
    """
    order = random.permutation(len(pairs))
    found: list[Pair] = []
    place = 0
    while place < len(order):
        count = int(random.integers(2, 4)) if random.random() < options.joined else 1
        group = [pairs[index] for index in order[place : place + count]]
        place += count
        source = [word for english, _ in group for word in english]
        target = [group[0][1][0], *(word for _, french in group for word in french[1:-1]), group[0][1][-1]]
        if random.random() < options.bare and len(source) > 1 and len(target) > 3 and target[-2] in signs:
            source, target = source[:-1], [*target[:-2], target[-1]]
        found.append((source, target))
    return found


def batches(pairs: Sequence[Pair], *, words: int, random: np.random.Generator) -> Iterator[Batch]:
    """Shuffled batches of at most about ``words`` French words, of pairs of like lengths."""
    key = random.random(len(pairs))
    order = sorted(
        range(len(pairs)), key=lambda index: (len(pairs[index][1]), len(pairs[index][0]), key[index])
    )
    groups: list[list[Pair]] = [[]]
    for index in order:
        if groups[-1] and len(pairs[index][1]) * (len(groups[-1]) + 1) > words:
            groups.append([])
        groups[-1].append(pairs[index])
    for place in random.permutation(len(groups)):
        yield padded(groups[place])


def padded(pairs: Sequence[Pair]) -> Batch:
    """English (B, S) and French (B, T) indices, padding at the end."""
    parts = [
        nn.utils.rnn.pad_sequence(
            [torch.tensor(ids) for ids in side], batch_first=True, padding_value=PADDING
        )
        for side in zip(*pairs, strict=True)
    ]
    return parts[0], parts[1]


def word_loss(model: Translator, batch: Batch, *, coverage: float = 0.0) -> Tensor:
    """Mean cross-entropy of the words of a batch, padding left out.

    Args:
        coverage: how much of the coverage loss is added: the mean over words of Σ_j min(weight of source word j, sum
            of its weights at the words before), See et al. 2017, equation 12.
    """
    source, target = batch
    wanted = target[:, 1:]
    real = wanted != PADDING
    if not coverage:
        scores = model.word_scores(model.vectors(source, target[:, :-1])[real])
        return nn.functional.cross_entropy(scores, wanted[real])
    vectors, weights = model.vectors_and_weights(source, target[:, :-1])
    again = torch.minimum(weights, weights.cumsum(1) - weights).sum(-1)  # (B, T)
    scores = model.word_scores(vectors[real])
    return nn.functional.cross_entropy(scores, wanted[real]) + coverage * again[real].mean()


@torch.no_grad()
def words_right(model: Translator, pairs: Sequence[Pair]) -> tuple[int, int]:
    """How many words the model would have said next, the words before given, and of how many."""
    model.eval()
    ordered = sorted(pairs, key=lambda pair: len(pair[1]))
    right = total = 0
    for start in range(0, len(ordered), 100):
        source, target = padded(ordered[start : start + 100])
        said, wanted = model(source, target[:, :-1]).argmax(-1), target[:, 1:]
        right += int((said == wanted)[wanted != PADDING].sum())
        total += int((wanted != PADDING).sum())
    return right, total


def build(facts: dict[str, Any]) -> Translator:
    """The untrained model that the facts describe."""
    return Translator(len(facts["english"]), len(facts["french"]), **{name: facts[name] for name in SIZES})


def facts_of(corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """What ``trained.json`` says: sizes and vocabularies.

    The twin without attention reads one way, from the first word to the last, as in Cho et al. 2014; its one state is
    as wide as the two of the others together.
    """
    english, french = corpus.vocabularies(options.at_least)
    return {
        "scoring": None if options.scoring == "none" else options.scoring,
        "embedding": options.embedding,
        "hidden": options.width,
        "cell": "gru",
        "bidirectional": options.scoring != "none",
        "input_feeding": False,
        "attention_width": options.width,
        "english": english.words,
        "french": french.words,
    }


def train(
    model: Translator,
    training: Sequence[Pair],
    development: Sequence[Pair],
    options: argparse.Namespace,
    *,
    signs: frozenset[int],
    coverage: float = 0.0,
) -> Run:
    """Train every weight; the model has the tensors of the best look afterwards.

    Args:
        signs: indices of the French words that ``dressed`` may leave out.
        coverage: as in ``word_loss``.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=options.rate, betas=(0.9, 0.98))

    def of_epoch(epoch: int) -> Iterator[Batch]:
        random = np.random.default_rng([options.seed, epoch, *([1] if coverage else [])])
        return batches(dressed(training, random, signs, options), words=options.batch, random=random)

    per_epoch = sum(1 for _ in of_epoch(0))
    schedule = Schedule(options.epochs, per_epoch, max(per_epoch // 2, 1), options.patience)
    return fit(
        model,
        optimiser,
        schedule,
        batches=of_epoch,
        loss=lambda batch: word_loss(model, batch, coverage=coverage),
        score=lambda: words_right(model, development),
        options=options,
    )


def main(arguments: list[str] | None = None) -> None:
    """Train and write the shipped files."""
    options = _parser().parse_args(arguments)
    prepare(options)
    corpus = read_corpus(options.data)
    facts = facts_of(corpus, options)
    english, french = Vocabulary(facts["english"]), Vocabulary(facts["french"])
    training, development = (
        numbered(part, english, french) for part in (corpus.training, corpus.development)
    )
    model = build(facts)
    model.dropout.p = options.dropout
    print(
        f"{len(training):,} pairs, {len(english.words):,} and {len(french.words):,} words, "
        f"{sum(parameter.numel() for parameter in model.parameters()):,} weights",
        flush=True,
    )
    signs = frozenset(french.numbers([".", "!"]))
    train(model, training, development, options, signs=signs)
    if options.scoring == "additive" and options.covered:
        more = {"work": options.work / "covered", "epochs": options.covered, "rate": options.rate / 2}
        covered = argparse.Namespace(**{**vars(options), **more})
        covered.work.mkdir(exist_ok=True)
        train(model, training, development, covered, signs=signs, coverage=options.coverage)
    shipped = int8_rows(trained_tensors(model))
    print(f"development words: {in_words(*words_right(model, development))}")
    restore(model, from_int8_rows(shipped))
    print(f"development words, as shipped: {in_words(*words_right(model, development))}")
    write_part(options.output, facts, weights=shipped)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__ or "", output="models/translator-additive", work="translator-additive")
    parser.add_argument(
        "--scoring", choices=("additive", "dot", "general", "concat", "none"), default="additive"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1200, help="French words in a batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--embedding", type=int, default=160, help="width of word vectors")
    parser.add_argument("--width", type=int, default=256, help="of states and of additive attention")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument(
        "--at-least", type=int, default=3, help="times that a word of the vocabulary must come"
    )
    parser.add_argument("--bare", type=float, default=0.15, help="share of pairs that lose their last sign")
    parser.add_argument("--joined", type=float, default=0.15, help="share of pairs that begin a longer one")
    parser.add_argument(
        "--covered", type=int, default=3, help="epochs with the coverage loss, of additive attention"
    )
    parser.add_argument("--coverage", type=float, default=1.0, help="share of the coverage loss in these")
    parser.add_argument(
        "--patience", type=int, default=6, help="half epochs without a better development score"
    )
    return parser


if __name__ == "__main__":
    main()
