"""One small record of each kind, with the texts that broke other tools, for the tests of exports."""

from __future__ import annotations

import numpy as np

from analysis.figure_data import (
    AttentionContrast,
    CheckedNumber,
    CheckedSet,
    Figure,
    HeadEffects,
    HeadGrid,
    HeadStatistic,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenLabel,
    TokenScores,
    TradeOff,
    TradeOffPoint,
)
from analysis.figure_lab import (
    Curve,
    CurvePanel,
    CurveSheet,
    Diagram,
    DiagramArrow,
    DiagramStage,
    MatrixSheet,
    NamedMatrix,
    Timeline,
    TimelineEntry,
)

HOSTILE = (
    "<!--#exec",
    "-->",
    "</script><img src=x onerror=window.hit=1>",
    "a<b<c",
    "$x^2$",
    "مرحبا",
    "שלום",
    "a\x10b",
    "=1+1",
    '"quoted", #',
    "null",
    "\ud800",
)
"""CASES T1, T2, T8, T10, S1, and what a spreadsheet or a parser takes for something else."""


def labels(texts=HOSTILE):
    """Labels of texts; the first and the last are special, the third continues the second."""
    last = len(texts) - 1
    return tuple(
        TokenLabel(
            text=text,
            piece=text,
            special=index in (0, last),
            unknown=index == 3,
            continues=index == 2,
            segment=int(index > last // 2),
        )
        for index, text in enumerate(texts)
    )


def softmax_rows(shape, seed=0):
    """Random float32 weights whose rows sum to one."""
    scores = np.random.default_rng(seed).normal(size=shape) * 2.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def provenance(**changes):
    """A record with hostile text in every field that a user or a model fills."""
    entries = {
        "model": "BERT <all-MiniLM>",
        "revision": "7dbbc90392e2f80f3d3c277d6e90027e55de9125",
        "input": "a<b<c </script><!--#exec --> $x^2$ مرحبا\nsecond line \\(not) mathematics\\",
        "layer": "3 of 0–5",
        "heads": "1, 2",
        "aggregation": "none",
        "method": "attention weights",
        "settings": {"threshold": 0.25, "zoom": (0, 2), "count": np.int64(3)},
        "notes": ("first 12 of 20 tokens", "a<b<c"),
        "software": {"AttnScope": "0.1.0"},
    }
    return Provenance(**{**entries, **changes})


def head_view(**changes):
    """Three heads over the hostile tokens."""
    tokens = labels()
    entries = {"weights": softmax_rows((3, len(tokens), len(tokens))), "left": tokens, "right": tokens}
    return HeadView(**{**entries, "layer": 3, "layers": 6, "active": (1, 2), **changes})


def matrix_view(**changes):
    """A matrix that is not square."""
    tokens = labels()
    entries = {"weights": softmax_rows((5, len(tokens)), seed=1), "rows": tokens[:5], "columns": tokens}
    return MatrixView(**{**entries, "title": "layer 3 · <head> $5$", **changes})


def model_view(**changes):
    """Two layers of three heads."""
    return ModelView(**{"thumbnails": softmax_rows((2, 3, 4, 5), seed=2), "selected": (1, 2), **changes})


def ragged_view(**changes):
    """A model view of a picture whose layers have 1 head of 4 × 5 patches and 3 heads of 2 × 3."""
    maps = np.full((2, 3, 4, 5), np.nan, dtype=np.float32)
    maps[0, :1] = softmax_rows((1, 20), seed=7).reshape(1, 4, 5)
    maps[1, :, :2, :3] = softmax_rows((3, 6), seed=8).reshape(3, 2, 3)
    entries = {"thumbnails": maps, "shapes": ((1, 4, 5), (3, 2, 3)), "cells": "patches", "selected": (1, 2)}
    return ModelView(**{**entries, **changes})


def token_scores(**changes):
    """One score a token."""
    tokens = labels()
    entries = {"scores": softmax_rows((len(tokens),), seed=3), "tokens": tokens, "source": 2}
    return TokenScores(**{**entries, **changes})


def patch_maps(**changes):
    """Two maps of 3 × 4 patches over a picture that is wider than high."""
    picture = np.random.default_rng(4).integers(0, 256, size=(30, 40, 3), dtype=np.uint8)
    maps = softmax_rows((2, 12), seed=5).reshape(2, 3, 4)
    entries = {"picture": picture, "maps": maps, "titles": ("head 0", "=head <1>"), "marked": (1, 2)}
    return PatchMaps(**{**entries, **changes})


def head_grid(**changes):
    """Two layers of three heads in four classes, with maps that are not square and a statistic without interval."""
    values = np.random.default_rng(9).random((2, 3)).astype(np.float32)
    lacking = values.copy()
    lacking[0, 1] = np.nan
    entries = {
        "classes": ("Positional", "=Delimiter <1>", "مرحبا", "Heterogeneous"),
        "best": np.array([[0, 1, 3], [1, 0, 2]]),
        "variants": (("previous", "</script>", ""), ("[SEP]", "+3", "")),
        "scores": values,
        "margins": values / 2,
        "numbers": (
            HeadStatistic("entropy", "Entropy", "nats", values * 3, values * 2, values * 4),
            HeadStatistic("offset-1", "Weight on a<b<c", "", lacking),
        ),
        "thumbnails": softmax_rows((2, 3, 4, 5), seed=10),
        "stable": 1 - values / 3,
        "marked": (1, 2),
        "title": "3 texts, <20> tokens",
        "notes": ("3 texts are $few$",),
    }
    return HeadGrid(**{**entries, **changes})


def head_grids() -> dict[str, HeadGrid]:
    """Grids that are drawn in a different way."""
    bare = {"thumbnails": None, "stable": None, "numbers": (), "marked": None, "notes": (), "title": ""}
    return {
        "maps": head_grid(),
        "filtered": head_grid(shown=(0, 3)),
        "plain": head_grid(**bare, kind="cross"),
    }


def shares_of(shape, seed):
    """Random float32 shares, 0 to 1."""
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def attention_contrast(**changes):
    """Four distributions over the hostile tokens with three outputs; the third is drawn beside the observed one."""
    entries = {
        "weights": softmax_rows((4, len(HOSTILE)), seed=11),
        "names": ("observed", "uniform", "=adversarial <2>", "\ud800 by hand"),
        "outputs": np.array(
            [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.695, 0.205, 0.1], [0.1, 0.1, 0.8]], dtype=np.float32
        ),
        "labels": ("=positive()", "negative <b>", "weight"),
        "jsd": np.array([0.0, 0.2, 0.5, 0.3], dtype=np.float32),
        "change": np.array([0.0, 0.2, 0.005, 0.7], dtype=np.float32),
        "jsd_bound": 0.62,
        "epsilon": 0.01,
        "tokens": labels(),
        "shown": 2,
        "title": "the classifier's query <q> $x^2$",
        "verdict": ("Other weights give the same prediction", "That does not show that attention is noise."),
        "held": "everything but the weights a<b<c",
    }
    return AttentionContrast(**{**entries, **changes})


def picture_contrast(**changes):
    """Three distributions over CLS and 3 × 4 patches, means over two rows."""
    entries = {
        "weights": softmax_rows((3, 13), seed=12),
        "names": ("observed", "uniform", "adversarial"),
        "outputs": softmax_rows((3, 30), seed=13),
        "labels": tuple(f"class {index}, <{index}>" for index in range(30)),
        "jsd": np.array([0.0, 0.1, 0.4], dtype=np.float32),
        "change": np.array([0.0, 0.3, 0.05], dtype=np.float32),
        "tokens": (),
        "picture": np.random.default_rng(4).integers(0, 256, size=(30, 40, 3), dtype=np.uint8),
        "grid": (3, 4),
        "prefix": 1,
        "rows": 2,
        "epsilon": 0.05,
        "verdict": (),
    }
    return attention_contrast(**{**entries, **changes})


def checked_set(count=40, **changes):
    """Inputs with every number; some lack one."""
    draw = np.random.default_rng(14)
    bound = 0.4 + 0.29 * draw.random(count)
    numbers = {
        "max_attention": draw.beta(2, 2, count),
        "permutation": draw.beta(1, 12, count),
        "jsd": bound * draw.beta(4, 2, count),
        "jsd_bound": bound,
        "tau_gradient": np.clip(draw.normal(0.3, 0.25, count), -1, 1),
        "p_gradient": draw.beta(0.5, 2, count),
        "tau_leave_one_out": np.clip(draw.normal(0.1, 0.3, count), -1, 1),
        "p_leave_one_out": draw.random(count),
        "uniform": draw.beta(1, 9, count),
    }
    numbers["jsd"][-1:] = np.nan
    numbers["tau_gradient"][:3] = numbers["p_gradient"][:3] = np.nan
    entries = {
        "names": tuple(f"{HOSTILE[index % len(HOSTILE)]} {index}" for index in range(count)),
        "predicted": draw.integers(0, 2, size=count),
        "labels": ("=negative", "positive <b>", "مرحبا"),
        "numbers": tuple(
            CheckedNumber(key, key.replace("_", " ").capitalize(), values.astype(np.float32))
            for key, values in numbers.items()
        ),
        "epsilon": 0.01,
        "title": f"{count} sentences, <few>",
        "marked": count // 2,
        "notes": ("few sentences $x^2$",),
    }
    return CheckedSet(**{**entries, **changes})


def head_effects(**changes):
    """Three edits of 6 layers of 12 heads, of which one layer has fewer heads and one edit cannot be made there."""
    draw = np.random.default_rng(15)
    heads = (draw.standard_t(3, size=(3, 6, 12)) * 0.02).astype(np.float32)
    heads[:, 2, 9:] = np.nan
    heads[2, 4] = np.nan
    layers = draw.normal(-0.1, 0.15, size=(3, 6)).astype(np.float32)
    layers[2, 4] = np.nan
    entries = {
        "edits": ("uniform", "=swapped <3>", "\ud800 permuted"),
        "heads": heads,
        "layers": layers,
        "whole": np.array([-0.6, 0.2, np.nan], dtype=np.float32),
        "target": "probability of <positive> $p$",
        "before": 0.8125,
        "shown": 1,
        "marked": (5, 11),
        "title": "all rows",
        "notes": ("values were held fixed",),
    }
    return HeadEffects(**{**entries, **changes})


def trade_off(**changes):
    """Adversaries, seeds and a uniform model, some without intervals."""
    points = [
        TradeOffPoint(
            f"adversary, λ = {2.0**index:g} <b>", "adversary", 0.02 * index, 0.1 * index, label=f"={index}"
        )
        for index in range(4)
    ]
    points += [TradeOffPoint("seed 1", "seed", 0.1, 0.2, (0.05, 0.15), (0.1, 0.3))]
    points += [TradeOffPoint("uniform", "uniform", 0.05, 0.15, None, (0.1, 0.2))]
    return TradeOff(
        **{"points": tuple(points), "title": "test <sentences>", "notes": ("one & all",), **changes}
    )


def matrix_sheet(**changes):
    """Signed scores with −∞ and a mask between weights with hostile labels and features without any."""
    tokens, draw = HOSTILE[:5], np.random.default_rng(16)
    scores = (draw.normal(size=(4, 5)) * 3).astype(np.float32)
    mask = np.tril(np.ones((4, 5), dtype=np.float32), 1)
    masked = np.where(mask > 0, scores, -np.inf).astype(np.float32)
    masked[3, 0] = np.nan
    pairs = {"rows": HOSTILE[5:9], "columns": tokens, "axes": ("query", "key")}
    entries = {
        "matrices": (
            NamedMatrix("Q <b>", scores[:, :3], HOSTILE[5:9], (), "signed", axes=("query", "")),
            NamedMatrix("QKᵀ/√d_k", masked, scale="signed", limit=3.0, note="a<b<c $x^2$", **pairs),
            NamedMatrix("=mask()", mask, scale="mask", **pairs),
            NamedMatrix("\ud800 weights", softmax_rows((4, 5), seed=17), **pairs),
        ),
        "title": "one head, <few> words",
        "selected": 1,
        "cell": (1, 4),
        "notes": ("few words $x^2$",),
    }
    return MatrixSheet(**{**entries, **changes})


def map_sheet(**changes):
    """Larger matrices of one scale that share an end of colours."""
    maps = softmax_rows((3, 40, 24), seed=18)
    matrices = tuple(
        NamedMatrix(f"head_{index}", each, limit=0.5, axes=("query", "key"))
        for index, each in enumerate(maps)
    )
    return MatrixSheet(**{"matrices": matrices, "across": 2, **changes})


def curve_sheet(**changes):
    """Two logarithmic axes with an interval and a gap, and bars with hostile names."""
    x = 2.0 ** np.arange(8)
    y = np.array([1.1, 1.9, np.nan, 8.5, 15.0, 33.0, 60.0, 0.0])
    grown = CurvePanel(
        "Variance of q · k",
        "d_k",
        "variance",
        (
            Curve("measured <here>", x, y, y * 0.75, y * 1.25, hue=2),
            Curve("theory d_k", x, x, style="dashed", hue=0),
            Curve("scaled", x, np.ones(8), np.full(8, 0.5), np.full(8, 2.0), style="points"),
        ),
        log_x=True,
        log_y=True,
        mark=16.0,
    )
    places = np.arange(3.0)
    bars = (
        Curve("=multi-head", places, np.array([32.0, 64.0, 96.0]), style="bars", labels=HOSTILE[:3]),
        Curve("%{x} grouped", places, np.array([8.0, np.nan, 24.0]), style="bars"),
    )
    entries = {
        "panels": (grown, CurvePanel("", "", "MiB", bars)),
        "title": "Why <√d_k>",
        "notes": ("measured here & now",),
    }
    return CurveSheet(**{**entries, **changes})


def timeline(**changes):
    """Works of two of three themes, years left out between them, hostile texts everywhere."""
    entries = tuple(
        TimelineEntry(
            f"key{index}", HOSTILE[index], year, HOSTILE[index + 1], "=authors()", theme, HOSTILE[index + 2],
            "arXiv:<1>", "Masks: 'a' & b", index % 2 == 0, "lab?v=1&section=masks",
        )
        for index, (year, theme) in enumerate([(1953, "mind"), (1992, "efficient"), (1992, "efficient")])
    )  # fmt: skip
    given = {
        "entries": entries,
        "themes": (("mind", "Mind <b>"), ("empty", "Nothing"), ("efficient", "Efficient")),
        "title": "History <of> words",
        "selected": "key1",
        "notes": ("years $x^2$",),
    }
    return Timeline(**{**given, **changes})


def diagram(**changes):
    """Arrows of every way, a row that is marked, hostile texts."""
    draw = np.random.default_rng(19)
    places = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (1, 2), (0, 2)]
    stages = tuple(
        DiagramStage(
            f"stage {HOSTILE[index]}", "x_k", "=a_1 <b>", HOSTILE[index + 1], "model.<weight>", "3 × 4",
            "tokens × d_k", NamedMatrix("m", draw.normal(size=(3, 4)), scale="signed"), place,
            1 if index == 2 else None,
        )
        for index, place in enumerate(places)
    )  # fmt: skip
    pairs = [(0, 1), (0, 2), (1, 2), (2, 3), (1, 3), (0, 4), (3, 4), (4, 5), (4, 6), (2, 6)]
    given = {
        "stages": stages,
        "arrows": tuple(DiagramArrow(start, stop, "W_Q <x>") for start, stop in pairs),
        "title": "way <of> words",
        "selected": 2,
        "notes": ("boxes $x^2$",),
    }
    return Diagram(**{**given, **changes})


def lab_figures() -> dict[str, Figure]:
    """Sheets of the Lab that are drawn in a different way."""
    return {"sheet": matrix_sheet(), "sheet maps": map_sheet(), "curves": curve_sheet()}


def story_figures() -> dict[str, Figure]:
    """A history and the way of a computation."""
    return {"timeline": timeline(), "diagram": diagram()}


def check_figures() -> dict[str, Figure]:
    """Checks of attention that are drawn in a different way."""
    return {
        "contrast": attention_contrast(),
        "contrast rtl": attention_contrast(
            direction="rtl", shown=3, change_bound=None, change_name="Δ logit"
        ),
        "contrast alone": attention_contrast(shown=0),
        "contrast picture": picture_contrast(shown=2),
        "set": checked_set(),
        "set bare": checked_set(1, numbers=(), marked=None, notes=(), title=""),
        "contrast permuted": attention_contrast(permuted=np.linspace(0, 0.3, 100, dtype=np.float32) ** 2),
        "trade off": trade_off(),
        "trade off bare": TradeOff(()),
        "effects": head_effects(),
        "effects whole": head_effects(shown=0, marked=None, kind="cross", notes=(), title=""),
    }


def all_figures() -> dict[str, Figure]:
    """Every kind of record, and the variants that are drawn in a different way."""
    return {
        "head": head_view(),
        "head pinned": head_view(pinned=("left", 4), threshold=0.01, hide_special=True),
        "head pair": head_view(pair_filter="ab", starts=(512, 512), direction="rtl"),
        "head nothing": head_view(active=()),
        "head groups": head_view(groups=(0, 0, 1)),
        "matrix": matrix_view(selected=(1, 2), scale="sqrt"),
        "matrix zoom": matrix_view(zoom=(1, 4, 2, 9), limits=(0.0, 1.0), colour_map="greys"),
        "model": model_view(),
        "model shared": model_view(shared_scale=True, groups=(0, 0, 1), colour_map="cividis"),
        "model ragged": ragged_view(),
        "scores": token_scores(),
        "scores rtl": token_scores(direction="rtl", source=None, scores=softmax_rows((12,)) - 0.2),
        "patches": patch_maps(),
        "patches smooth": patch_maps(
            smooth=True, shared_scale=False, marked=None, selected=1, colour_map="magma"
        ),
        **{f"grid {name}": view for name, view in head_grids().items()},
        **check_figures(),
        **lab_figures(),
        **story_figures(),
    }
