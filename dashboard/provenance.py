"""Where a figure comes from: the record that every exported file carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from analysis.export import panel_notes
from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    EvidenceWords,
    HeadEffects,
    HeadGrid,
    Provenance,
    TradeOff,
)
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.evidence_choices import MethodOptions
from dashboard.heads_choices import HeadsChoices

VERSION = "0.1.0"
"""Of this program, as pyproject.toml has it."""

LIBRARIES = ("torch", "transformers", "numpy", "streamlit")


@cache
def software() -> Mapping[str, str]:
    """This program and the libraries that its numbers come from, with versions."""
    found = {"AttnScope": VERSION}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an unusual installation; the file then says less
            continue
    return found


def heads_in_words(active: Sequence[int], heads: int) -> str:
    """ "all 12", "3, 7" or "none"."""
    if len(active) == heads:
        return f"all {heads}"
    return ", ".join(map(str, active)) or "none"


def heads_fact(active: Sequence[int], heads: int) -> str:
    """ "all 12 heads", "heads 3, 7", "head 5" or "no head", for the title."""
    if len(active) == heads > 1:
        return f"all {heads} heads"
    if not active:
        return "no head"
    return f"head{'s' if len(active) > 1 else ''} {heads_in_words(active, heads)}"


def layer_in_words(layer: int | None, layers: int) -> str:
    """ "2 of 0–5", or "all 6"."""
    return f"all {layers}" if layer is None else f"{layer} of 0–{layers - 1}"


def provenance(
    *,
    model: str,
    revision: str,
    input: str,
    layer: str,
    heads: str,
    method: str,
    aggregation: str = "none",
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Provenance:
    """The record of one figure, with the software added; settings that are None are left out."""
    kept = {name: value for name, value in (settings or {}).items() if value is not None}
    return Provenance(
        model=model,
        revision=revision,
        input=input,
        layer=layer,
        heads=heads,
        aggregation=aggregation,
        method=method,
        settings=kept,
        notes=tuple(notes),
        software=software(),
    )


def evidence_provenance(
    figure: EvidenceMaps | EvidenceWords,
    model: str,
    revision: str,
    input: str,
    notes: Sequence[str],
    *,
    layers: int,
    options: MethodOptions = (),
) -> Provenance:
    """The record of an evidence board: its methods, what they explain, and what was measured of each answer.

    Args:
        options: of methods, beside their defaults; those of methods that are not on the board are left out.
    """
    methods = list(dict.fromkeys(panel.method for panel in figure.panels))
    targets = list(dict.fromkeys(panel.target for panel in figure.panels if panel.target))
    measured = [note for panel in figure.panels for note in panel_notes(panel)]
    return provenance(
        model=model,
        revision=revision,
        input=input,
        layer=layer_in_words(None, layers),
        heads="",
        method=", ".join(methods),
        settings={
            "target": "; ".join(targets) or None,
            "drawn": "positive evidence alone" if figure.positive else "signed evidence",
            "unit": figure.unit if isinstance(figure, EvidenceWords) else None,
            "options": _options_in_words(options, methods) or None,
        },
        notes=(*notes, *measured),
    )


def heads_provenance(
    figure: HeadGrid,
    model: str,
    revision: str,
    input: str,
    notes: Sequence[str],
    *,
    choices: HeadsChoices,
) -> Provenance:
    """The record of a grid of heads: what it is over, whose classes, and which thresholds were moved.

    Args:
        input: of the page, which importance and the little maps are of.
    """
    layers, heads = figure.best.shape
    kovaleva = choices.scheme == "kovaleva"
    moved = ", ".join(f"{key}={value:g}" for key, value in choices.thresholds)
    return provenance(
        model=model,
        revision=revision,
        input=input,
        layer=layer_in_words(None, layers),
        heads=f"all {heads}",
        method="head patterns (Kovaleva et al. 2019)" if kovaleva else "head patterns",
        settings={
            "over": figure.title,
            "attention": figure.kind,
            "thresholds": moved or None,
            "importance": None if choices.worth == "none" else choices.worth,
        },
        notes=notes,  # its own are among the words of what it shows
    )


def adversarial_provenance(
    figure: AttentionContrast | CheckedSet | HeadEffects | TradeOff,
    model: str,
    revision: str,
    input: str,
    notes: Sequence[str],
    *,
    choices: AdversarialChoices,
) -> Provenance:
    """The record of a check of attention: what was replaced, what was held, and how candidates were found."""
    layer = heads = ""
    settings: dict[str, Any] = {"over": figure.title or None}
    if isinstance(figure, HeadEffects):
        _, layers, count = figure.heads.shape
        layer, heads = layer_in_words(None, layers), f"all {count}"
        method = "edited heads"
        settings |= {"edit": figure.edits[figure.shown], "target": figure.target, "attention": figure.kind}
        told = figure.notes
    elif isinstance(figure, TradeOff):
        method = "models trained to attend otherwise (Wiegreffe & Pinter 2019)"
        told = figure.notes
    else:
        method = "adversarial attention (Jain & Wallace 2019)"
        settings |= {"ε": figure.epsilon}
        told = figure.notes if isinstance(figure, CheckedSet) else (*figure.verdict, figure.held)
    if isinstance(figure, AttentionContrast):
        exact = figure.decoder is not None and len(figure.labels) == 2
        search = "exact" if exact else choices.search
        settings |= {"search": search, "shown": figure.names[figure.shown], "rows": figure.rows}
    return provenance(
        model=model,
        revision=revision,
        input=input if isinstance(figure, AttentionContrast | HeadEffects) else figure.title,
        layer=layer,
        heads=heads,
        method=method,
        settings=settings,
        notes=(*told, *notes),
    )


def _options_in_words(options: MethodOptions, titles: Sequence[str]) -> str:
    """ "Attention rollout: fusion=max, discard_ratio=0.9; GradCAM: layer=3" """
    if not options:
        return ""
    from analysis.evidence.methods import METHODS

    told = [
        f"{METHODS[key].title}: {', '.join(f'{name}={value}' for name, value in own)}"
        for key, own in options
        if key in METHODS and METHODS[key].title in titles
    ]
    return "; ".join(told)
