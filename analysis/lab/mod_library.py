"""The library of mods (``attn_core.variants.flex``; Dong et al. 2024), each as a picture and as an expression."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from analysis.figure_lab import MatrixSheet, NamedMatrix
from analysis.lab.inputs import LabVectors
from analysis.lab.masks import RuleChoice, document_numbers, pair_matrix, random_bias
from attn_core.scores import scaled_dot_scores
from attn_core.variants import flex
from attn_core.variants.flex import MaskMod, ScoreMod


@dataclass(frozen=True)
class LibraryMod:
    """A mod of ``attn_core.variants.flex``.

    Attributes:
        name: of it; ``call``: how it is made there.
        about: what it says.
        typed: the same as an expression (``analysis.lab.expression``), "" where none can say it.
        mask, score: one of the two, whichever it is.
        adds: of a score mod, whether it adds to a score whatever the score is.
    """

    name: str
    call: str
    about: str
    typed: str
    mask: MaskMod | None = None
    score: ScoreMod | None = None
    adds: bool = True


def library(rule: RuleChoice, *, cap: float, heads: int, tokens: int) -> tuple[LibraryMod, ...]:
    """Every mod with the sizes that are chosen.

    Args:
        rule: whose window, prefix and documents the mods have; which rules are chosen makes no difference.
        cap: of the soft cap.
    """
    window, prefix, documents = rule.window, min(rule.prefix, tokens), rule.documents
    return (
        LibraryMod(
            "Causal",
            "causal()",
            "no key after the query",
            "where(kv_idx <= q_idx, score, -inf)",
            mask=flex.causal(),
        ),
        LibraryMod(
            "Window",
            f"sliding_window({window})",
            f"{_count(window, 'key')} up to the query's own",
            f"where(kv_idx <= q_idx and q_idx - kv_idx < {window}, score, -inf)",
            mask=flex.sliding_window(window),
        ),
        LibraryMod(
            "Prefix",
            f"prefix(tensor([{prefix}]))",
            f"the first {_count(prefix, 'key')} and no others",
            f"where(kv_idx < {prefix}, score, -inf)",
            mask=flex.prefix(torch.tensor([prefix])),
        ),
        LibraryMod(
            "PrefixLM",
            f"prefix_lm({prefix})",
            f"the first {_count(prefix, 'key')} for everyone, then causal",
            f"where(kv_idx < {prefix} or kv_idx <= q_idx, score, -inf)",
            mask=flex.prefix_lm(prefix),
        ),
        LibraryMod(
            "Document",
            "document(numbers)",
            f"pairs of one of {_count(documents, 'document')}",
            f"where(q_idx * {documents} // n_q == kv_idx * {documents} // n_k, score, -inf)",
            mask=flex.document(document_numbers(tokens, documents)),
        ),
        LibraryMod(
            "ALiBi",
            f"alibi({heads})",
            "a price for distance, another in each head",
            _typed_alibi(heads),
            score=flex.alibi(heads),
        ),
        LibraryMod(
            "Relative bias",
            "relative_bias(bias)",
            "a number for each key − query, from a table",
            "",
            score=flex.relative_bias(random_bias(heads, tokens)),
        ),
        LibraryMod(
            "Soft cap",
            f"soft_cap({cap:g})",
            f"scores bent to ±{cap:g}",
            f"{cap:g} * tanh(score / {cap:g})",
            score=flex.soft_cap(cap),
            adds=False,
        ),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _typed_alibi(heads: int) -> str:
    """Press et al. 2022: heads beyond a power of two take every other slope of the next one."""
    power = 1 << (heads.bit_length() - 1)
    exponent = f"-8 * (h + 1) / {power}"
    if heads > power:
        exponent = f"{exponent} if h < {power} else -4 * (2 * h - {2 * power - 1}) / {power}"
    return f"score - 2 ** ({exponent}) * abs(q_idx - kv_idx)"


def library_sheet(
    vectors: LabVectors, head: int, rule: RuleChoice, *, cap: float
) -> tuple[MatrixSheet, tuple[LibraryMod, ...]]:
    """A picture of each mod.

    Args:
        head: whose scores the soft cap bends, and whose number ALiBi and relative bias see.
    Returns:
        The pictures, and the mods in the same order: the mask, what is added to a score, or the scores after it.
    Raises:
        ValueError: if there is no such head.
    """
    heads, tokens, _ = vectors.query.shape
    mods = library(rule, cap=cap, heads=heads, tokens=tokens)
    one = vectors.head(head)
    scores = scaled_dot_scores(one.query[None].double(), one.key[None].double())  # (1, 1, N, N)
    places = torch.arange(tokens)
    alone = torch.tensor([0])
    indices = torch.meshgrid(alone, torch.tensor([head]), places, places, indexing="ij")
    pictures: list[NamedMatrix] = []
    for mod in mods:
        if mod.mask is not None:
            allowed = mod.mask(*indices).expand(scores.shape)
            pictures.append(
                pair_matrix(mod.name, allowed[0, 0].double().numpy(), one.tokens, "mask", note=mod.about)
            )
        if mod.score is not None:
            after = mod.score(torch.zeros_like(scores) if mod.adds else scores, *indices)
            limit = None if mod.adds else float(scores.abs().max()) or None  # what is bent looks paler
            pictures.append(
                pair_matrix(mod.name, after[0, 0].numpy(), one.tokens, "signed", note=mod.about, limit=limit)
            )
    return MatrixSheet(
        tuple(pictures), title="The library of mods", across=4, numbers=False, notes=one.notes
    ), mods
