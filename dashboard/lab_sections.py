"""The sections of the Lab: what they are called, which document tells more, and which module draws them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from analysis.figure_data import Figure
from dashboard.lab_choices import LabChoices, Section


@dataclass(frozen=True)
class LabFigure:
    """A figure of a section, for the Export menu.

    Attributes:
        name: what it is called in the menu where a section has several.
        figure: the record that was drawn.
        input: what the numbers are of; ``method``: what was computed, with its source.
        settings: every choice that made it; ``notes``: what a reader must know.
    """

    name: str
    figure: Figure
    input: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SectionPage:
    """One section.

    Attributes:
        title: in the list of sections; ``question``: the heading above it.
        about: sentences of the left column.
        document: page below ``docs/mechanisms``.
        module: that draws it, with ``tools(choices)`` and ``show(choices) -> tuple[LabFigure, ...]``.
    """

    title: str
    question: str
    about: tuple[str, ...]
    document: str
    module: str

    def part(self, name: str) -> Callable[[LabChoices], Any]:
        """``tools`` or ``show``; imported when it is asked for, since sections bring torch."""
        return cast(
            Callable[[LabChoices], Any],
            getattr(importlib.import_module(f"dashboard.views.{self.module}"), name),
        )


SECTION_PAGES: Mapping[Section, SectionPage] = MappingProxyType(
    {
        "formula": SectionPage(
            "Formula",
            "What does softmax(QKᵀ/√dₖ)V do?",
            ("Click a part of the formula to see what it is, its shape and its numbers.",),
            "scaled-dot-product.md",
            "lab_formula",
        ),
        "scale": SectionPage(
            "Why √dₖ",
            "Why are scores divided by √dₖ?",
            ("Random queries and keys, drawn and measured while you watch.",),
            "scaled-dot-product.md",
            "lab_scale",
        ),
        "alignment": SectionPage(
            "Alignment",
            "Where does a decoder look while it translates?",
            (
                "Four small translators, trained on the same sentence pairs, three with attention and one without.",
            ),
            "additive-and-luong.md",
            "lab_alignment",
        ),
        "heads": SectionPage(
            "Heads",
            "Why several heads, and how few keys and values will do?",
            ("Multi-head, grouped-query and multi-query attention, split and put together again.",),
            "heads.md",
            "lab_heads",
        ),
        "masks": SectionPage(
            "Masks and mods",
            "Who may look at whom, and what is done to the scores?",
            ("Combine rules, choose a mod or type your own.",),
            "masks-and-mods.md",
            "lab_masks",
        ),
        "equivariance": SectionPage(
            "Equivariance",
            "What changes when tokens are shuffled?",
            ("Attention knows no order; positions and masks give it one.",),
            "equivariance.md",
            "lab_equivariance",
        ),
        "variants": SectionPage(
            "Variants",
            "What do cheaper variants keep of exact attention?",
            ("The same vectors through each variant; time and memory are measured on this machine.",),
            "README.md",
            "lab_variants",
        ),
        "pipeline": SectionPage(
            "Pipeline",
            "Which way does one query take?",
            ("One token of your sentence through one head of the bundled BERT.",),
            "scaled-dot-product.md",
            "lab_pipeline",
        ),
        "timeline": SectionPage(
            "Timeline",
            "From the cocktail party to FlexAttention",
            ("Each entry opens the mechanism that runs here.",),
            "history.md",
            "lab_timeline",
        ),
    }
)
