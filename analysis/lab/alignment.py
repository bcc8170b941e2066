"""What the alignment explorer draws: alignment matrices, surprise at a translation, and what translators forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.figure_lab import Curve, CurvePanel, CurveSheet, MatrixSheet, NamedMatrix
from analysis.translation import ForcedTranslation, LengthScore, StepByStep, TranslatorScores
from analysis.translation_words import END

END_WORD = "⟨end⟩"
"""How the mark of the end is shown."""

SCORING_TITLES: Mapping[str, str] = {
    "additive": "Additive",
    "dot": "Dot product",
    "general": "General",
    "none": "Without attention",
}


def shown_word(word: str) -> str:
    """A word of a translation as a reader sees it."""
    return END_WORD if word == END else word


def alignment_sheet(found: Mapping[str, StepByStep]) -> MatrixSheet | None:
    """The alignment matrices of several translators side by side; None where none of them attends.

    Args:
        found: scoring → its translation of one sentence.
    """
    matrices = []
    for scoring, steps in found.items():
        alignment = steps.alignment
        if alignment is None:
            continue
        matrices.append(
            NamedMatrix(
                name=SCORING_TITLES[scoring],
                values=alignment.numpy(),
                rows=tuple(shown_word(step.word) for step in steps.steps),
                columns=steps.source,
                limit=1.0,
                note=steps.text,
                axes=("French word", "English word"),
            )
        )
    if not matrices:
        return None
    source = " ".join(next(iter(found.values())).source)
    return MatrixSheet(tuple(matrices), title=f"Alignment of “{source}”")


def surprise_sheet(found: Mapping[str, ForcedTranslation], *, whose: str) -> CurveSheet:
    """How surprised each translator is by the words of one translation, −log p in nats; the end is the last bar.

    Args:
        found: scoring → the translation in its eyes; the same translation for all.
        whose: where the translation comes from, in words.
    """
    curves = []
    for place, (scoring, eyes) in enumerate(found.items()):
        surprise = -np.array([*eyes.log_probs, eyes.log_prob_end], dtype=np.float64)
        words = (*eyes.target, END_WORD)
        curves.append(
            Curve(
                SCORING_TITLES[scoring],
                np.arange(len(words), dtype=np.float64),
                surprise,
                style="bars",
                hue=place,
                labels=words,
            )
        )
    panel = CurvePanel(
        "How surprised is each translator?", "word of the translation", "−log p (nats)", tuple(curves)
    )
    return CurveSheet((panel,), title="Surprise at a translation", notes=(f"The translation is {whose}.",))


def memory_sheet(scores: Mapping[str, TranslatorScores]) -> CurveSheet:
    """What comes through of held-out sentences by their length, and of the first to the last of several in a row.

    Args:
        scores: scoring → what was measured with its shipped weights.
    """
    lengths, parts = [], []
    for place, (scoring, found) in enumerate(scores.items()):
        title = SCORING_TITLES[scoring]
        middle = np.array([(each.shortest + each.longest) / 2 for each in found.lengths], dtype=np.float64)
        recall = np.array([100 * each.recall for each in found.lengths])
        lengths.append(
            Curve(title, middle, recall, hue=place, labels=tuple(map(_length_words, found.lengths)))
        )
        most = max(each.parts for each in found.parts)
        row = [each for each in found.parts if each.parts == most]
        parts.append(
            Curve(
                title,
                np.array([each.part for each in row], dtype=np.float64),
                np.array([100 * each.recall for each in row]),
                style="bars",
                hue=place,
                labels=tuple(_ordinal(each.part) for each in row),
            )
        )
    some = next(iter(scores.values()))
    most = max(each.parts for each in some.parts)
    return CurveSheet(
        (
            CurvePanel(
                "By the length of the sentence",
                "English words",
                "words of the reference kept (%)",
                tuple(lengths),
            ),
            CurvePanel(
                f"{_number_word(most)} sentences in one text",
                "sentence",
                "words of the reference kept (%)",
                tuple(parts),
            ),
        ),
        title="What comes through",
        notes=(
            f"Measured on {some.sentences:,} held-out sentences with the shipped weights. In training, 15 % of the "
            "sentence pairs began a text of two or three.",
        ),
    )


def recency_sentence(scores: Mapping[str, TranslatorScores]) -> str:
    """What several sentences in a row show, in words that follow from the numbers."""
    told = []
    for scoring, found in scores.items():
        most = max(each.parts for each in found.parts)
        row = sorted((each for each in found.parts if each.parts == most), key=lambda each: each.part)
        first, last = (round(100 * each.recall) for each in (row[0], row[-1]))
        compared = "less" if first < last else "more" if first > last else "as much"
        told.append(
            f"{SCORING_TITLES[scoring]} keeps {first} % of the first sentence's words, {compared} "
            f"{'as' if first == last else 'than'} the {last} % of the last one's"
        )
    return " ".join(("; ".join(told) + ".", *_verdict(scores.get("none"))))


def _verdict(twin: TranslatorScores | None) -> tuple[str, ...]:
    """Whether the twin without attention forgets what it has read first."""
    if twin is None:
        return ()
    most = max(each.parts for each in twin.parts)
    worst = min((each for each in twin.parts if each.parts == most), key=lambda each: each.recall)
    bias = "this is the recency bias" if worst.part == 0 else "no recency bias shows"
    return (f"Without attention the {_ordinal(worst.part)} sentence comes through worst: {bias}.",)


def _length_words(found: LengthScore) -> str:
    alike = found.shortest == found.longest
    return str(found.shortest) if alike else f"{found.shortest} to {found.longest}"


def _ordinal(part: int) -> str:
    names: Sequence[str] = ("first", "second", "third", "fourth")
    return names[part] if part < len(names) else f"{part + 1}th"


def _number_word(count: int) -> str:
    return {2: "Two", 3: "Three", 4: "Four"}.get(count, str(count))
