"""Measure the translators on held-out sentences and write the scores into their ``trained.json``.

    python -m scripts.evaluate_translator DATA [FOLDER ...]

``FOLDER`` is one that ``scripts.train_translator`` wrote; none = those of the shipped translators. The figures of the
model cards and of the Lab page come from here. BLEU is sacrebleu's (Post 2018).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from safetensors.torch import load_file

from analysis.trained import WEIGHTS
from analysis.translation import (
    LengthScore,
    LoadedTranslator,
    PartScore,
    TranslatorScores,
    search,
    translator_of,
)
from analysis.translation_words import join_words
from analysis.translators import TRANSLATORS
from scripts.train_translator import Pair, numbered, padded
from scripts.training import in_words
from scripts.translation_data import Sentence, joined, read_corpus

LENGTHS = ((1, 3), (4, 4), (5, 5), (6, 6), (7, 12))
"""English words, signs not counted: about as many held-out sentences each."""


def translated(
    model: LoadedTranslator, sentences: Sequence[Sentence], *, beam: int, alpha: float = 0.6
) -> list[list[str]]:
    """The translation of each sentence in words; unknown words stay unknown, so that copying earns nothing."""
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index].english))
    found: list[list[str]] = [[] for _ in sentences]
    for start in range(0, len(order), 100):
        part = order[start : start + 100]
        outputs = search(model, [sentences[index].english for index in part], beam=beam, alpha=alpha)
        for index, output in zip(part, outputs, strict=True):
            found[index] = [model.french.words[word] for word in output[0].words]
    return found


def bleu(found: Sequence[Sequence[str]], sentences: Sequence[Sentence], *, ours: bool = True) -> float:
    """Corpus BLEU against all references, case aside.

    Args:
        ours: on our words; else on the texts as sacrebleu's tokeniser 13a cuts them.
    """
    spelled = " ".join if ours else lambda words: join_words(words, "fr")
    most = max(len(sentence.french) for sentence in sentences)
    streams: list[Any] = [  # None where a sentence has fewer references than another
        [spelled(sentence.french[k]) if k < len(sentence.french) else None for sentence in sentences]
        for k in range(most)
    ]
    metric = sacrebleu.BLEU(lowercase=True, tokenize="none" if ours else "13a", force=True)
    return float(metric.corpus_score([spelled(words) for words in found], streams).score)


def exact(found: Sequence[Sequence[str]], sentences: Sequence[Sentence]) -> int:
    """How many translations equal a reference, case aside."""
    return sum(
        _lower(words) in {_lower(reference) for reference in sentence.french}
        for words, sentence in zip(found, sentences, strict=True)
    )


def recall(found: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of a reference's words that a translation has, each as often at most; of the best reference."""
    counts = Counter(_bare(found))
    return max(
        sum((Counter(_bare(reference)) & counts).values()) / max(len(_bare(reference)), 1)
        for reference in references
    )


def by_length(found: Sequence[Sequence[str]], sentences: Sequence[Sentence]) -> tuple[LengthScore, ...]:
    """Scores of sentences of like lengths; lengths that no sentence has are left out."""
    scores = []
    for shortest, longest in LENGTHS:
        inside = [
            index
            for index, sentence in enumerate(sentences)
            if shortest <= len(_bare(sentence.english)) <= longest
        ]
        if not inside:
            continue
        some, words = [sentences[index] for index in inside], [found[index] for index in inside]
        recalls = [recall(each, sentence.french) for each, sentence in zip(words, some, strict=True)]
        scores.append(
            LengthScore(shortest, longest, len(some), round(bleu(words, some), 2), round(_mean(recalls), 4))
        )
    return tuple(scores)


def by_part(model: LoadedTranslator, sentences: Sequence[Sentence]) -> tuple[PartScore, ...]:
    """What becomes of each of two and three sentences in a row."""
    alone = [_mean(log_probs) for log_probs in log_probabilities(model, sentences)]
    scores = []
    for parts in (2, 3):
        texts = joined(sentences, parts)
        found = translated(model, texts, beam=5)
        log_probs = log_probabilities(model, texts)
        for part in range(parts):
            members = [text * parts + part for text in range(len(texts))]
            recalls = [
                recall(words, sentences[index].french[:1])
                for words, index in zip(found, members, strict=True)
            ]
            told = []
            for text, index in enumerate(members):
                before = sum(len(sentences[k].french[0]) for k in range(text * parts, index))
                told.append(_mean(log_probs[text][before : before + len(sentences[index].french[0])]))
            scores.append(
                PartScore(
                    parts, part, len(texts), round(_mean(recalls), 4), round(_mean(told), 4),
                    round(_mean([alone[index] for index in members]), 4),
                )
            )  # fmt: skip
    return tuple(scores)


@torch.no_grad()
def log_probabilities(model: LoadedTranslator, sentences: Sequence[Sentence]) -> list[list[float]]:
    """Of each word of the first reference, those before it given; the end is left out."""
    firsts = [Sentence(sentence.english, sentence.french[:1]) for sentence in sentences]
    pairs: list[Pair] = numbered(firsts, model.english, model.french)
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][1]))
    found: list[list[float]] = [[] for _ in pairs]
    for start in range(0, len(order), 100):
        part = order[start : start + 100]
        source, target = padded([pairs[index] for index in part])
        rows = model.module(source, target[:, :-1]).log_softmax(-1).gather(-1, target[:, 1:, None])[..., 0]
        for row, index in enumerate(part):
            found[index] = rows[row, : len(pairs[index][1]) - 2].tolist()
    return found


def evaluated(model: LoadedTranslator, sentences: Sequence[Sentence]) -> TranslatorScores:
    """Every score of a translator."""
    found = translated(model, sentences, beam=5)
    greedy = translated(model, sentences, beam=1)
    return TranslatorScores(
        sentences=len(sentences),
        references=sum(len(sentence.french) for sentence in sentences),
        bleu=round(bleu(found, sentences), 2),
        bleu_13a=round(bleu(found, sentences, ours=False), 2),
        exact=round(exact(found, sentences) / len(sentences), 4),
        greedy_bleu=round(bleu(greedy, sentences), 2),
        lengths=by_length(found, sentences),
        parts=by_part(model, sentences),
    )


def main(arguments: list[str] | None = None) -> None:
    """Evaluate the folders and write the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folders", nargs="*", type=Path, default=[model.path for model in TRANSLATORS])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    test = read_corpus(options.data).test
    for folder in options.folders:
        file = folder / "trained.json"
        facts = json.loads(file.read_text(encoding="utf-8"))
        facts.pop("scores", None)
        model = translator_of(folder.name, folder.name, facts, load_file(folder / WEIGHTS))
        scores = evaluated(model, test)
        text = json.dumps({"scores": asdict(scores), **facts}, ensure_ascii=False, indent=1)
        file.write_text(text + "\n", encoding="utf-8")
        data = file.read_bytes()
        print(f"{folder.name}: BLEU {scores.bleu} (13a {scores.bleu_13a}, greedy {scores.greedy_bleu})")
        print(f"  equal to a reference: {in_words(round(scores.exact * len(test)), len(test))}")
        for each in (*scores.lengths, *scores.parts):
            print(f"  {each}")
        print(f'BundledFile("{file.name}", {len(data):_}, "{hashlib.sha256(data).hexdigest()}"),', flush=True)


def _bare(words: Sequence[str]) -> list[str]:
    return [word.lower() for word in words if any(letter.isalnum() for letter in word)]


def _lower(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    main()
