"""Heads whose class is known by construction, in texts and pictures that are drawn by a seed.

Every map is a pattern, blurred by noise: (1 − n) · pattern + n · noise, rows of the noise drawn from a Dirichlet
distribution. The classifier of heads is held to the classes that the patterns were made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.figure_data import TokenLabel
from analysis.heads.patterns import HETEROGENEOUS
from analysis.heads.positions import Layout, Side, picture_side, text_side
from analysis.inputs import PatchGrid
from attn_core.maps import DenseMap

Weights = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scene:
    """An input that maps are planted in.

    Attributes:
        layout: what its positions are.
        random: of the maps.
    """

    layout: Layout
    random: np.random.Generator

    @property
    def side(self) -> Side:
        """Its positions."""
        return self.layout.columns

    @property
    def count(self) -> int:
        """N."""
        return self.side.count


def text_scene(length: int, *, seed: int, pair: bool = True) -> Scene:
    """A text of so many tokens, special ones included: CLS, words, a mark every few words, SEP (twice in a pair).

    A quarter of the words come again later, in pairs of neighbours; one word is rarer than all others.
    """
    random = np.random.default_rng(seed)
    words = [f"w{index}" for index in range(length)]
    for start in range(length * 3 // 4, length - 1, 2):
        words[start : start + 2] = words[start - length // 2 : start - length // 2 + 2]
    middle = length // 2
    labels = [
        TokenLabel(word, word, segment=int(pair and index > middle)) for index, word in enumerate(words)
    ]
    for index in range(7, length - 1, 8):
        labels[index] = TokenLabel(",", ",", segment=labels[index].segment)
    special = {0: "[CLS]", length - 1: "[SEP]", **({middle: "[SEP]"} if pair else {})}
    for index, name in special.items():
        labels[index] = TokenLabel(name, name, special=True, segment=labels[index].segment)
    counts = {label.piece: 9 for label in labels}
    counts[words[length // 3 if length // 3 % 8 != 7 else length // 3 + 1]] = 1
    side = text_side([labels], frequencies=counts)
    return Scene(Layout(side, side), random)


def picture_scene(rows: int, columns: int, *, seed: int, prefix: int = 1) -> Scene:
    """A picture of so many patches."""
    side = picture_side(PatchGrid(rows, columns, 14, 14 * rows, 14 * columns, prefix))
    return Scene(Layout(side, side), np.random.default_rng(seed))


# Patterns: scene → (N, N), rows are brought to one afterwards -------------------------------------------------------


def _at_offset(offset: int) -> Callable[[Scene], Weights]:
    return lambda scene: np.eye(scene.count, k=offset)


def _on(name: str) -> Callable[[Scene], Weights]:
    def pattern(scene: Scene) -> Weights:
        chosen = getattr(scene.side, name)[0].numpy().astype(np.float64)
        return np.tile(chosen, (scene.count, 1))

    return pattern


def _near(scene: Scene) -> Weights:
    index = np.arange(scene.count)
    return np.asarray(np.exp(-0.5 * ((index[:, None] - index) / 1.6) ** 2))


def _block(scene: Scene) -> Weights:
    segment = scene.side.segment[0].numpy()
    return (segment[:, None] == segment).astype(np.float64)


def _one_column(scene: Scene) -> Weights:
    side = scene.side
    plain = (side.own & ~side.punctuation & ~side.rarest)[0].numpy()
    weights = np.zeros((scene.count, scene.count))
    weights[:, scene.random.choice(np.flatnonzero(plain))] = 1
    return weights


def _copies(behind: int) -> Callable[[Scene], Weights]:
    """The same token elsewhere (0), or what stands behind an earlier copy (1); a query without one looks anywhere."""

    def pattern(scene: Scene) -> Weights:
        ids, own = scene.side.ids[0].numpy(), scene.side.own[0].numpy()
        index = np.arange(scene.count)
        same = (ids[:, None] == ids) & own[:, None] & own & (index[:, None] != index)
        if behind:
            same &= index < index[:, None] - 1
            same = np.roll(same, 1, axis=1)
        weights = same.astype(np.float64)
        weights[weights.sum(1) == 0] = 1
        return weights

    return pattern


def _anywhere(scene: Scene) -> Weights:
    """A few keys for each query, others for another."""
    weights = np.zeros((scene.count, scene.count))
    for row in weights:
        row[scene.random.choice(scene.count, size=4, replace=False)] = scene.random.dirichlet(np.ones(4))
    return weights


def _between(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    assert scene.side.place is not None
    place, own = scene.side.place[0].numpy(), scene.side.own[0].numpy()
    return place[None] - place[:, None], own[:, None] & own


def _around(scene: Scene) -> Weights:
    between, patches = _between(scene)
    return np.asarray(np.exp(-0.5 * (between**2).sum(-1) / 1.2**2) * patches)


def _everywhere(scene: Scene) -> Weights:
    return _between(scene)[1].astype(np.float64)


def _along(axis: int) -> Callable[[Scene], Weights]:
    def pattern(scene: Scene) -> Weights:
        between, patches = _between(scene)
        return ((between[..., axis] == 0) & patches).astype(np.float64)

    return pattern


def _itself(scene: Scene) -> Weights:
    return np.eye(scene.count)


def _alike(scene: Scene) -> Weights:
    states = hidden_of(scene)
    centred = states - states[scene.side.own[0].numpy()].mean(0)
    centred /= np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(np.exp(6 * (centred @ centred.T)) * _between(scene)[1])


TEXT: Mapping[str, tuple[str, Callable[[Scene], Weights]]] = {
    "self": ("positional", _at_offset(0)),
    "previous": ("positional", _at_offset(-1)),
    "next": ("positional", _at_offset(1)),
    "three back": ("positional", _at_offset(-3)),
    "CLS": ("delimiter", _on("classifier")),
    "SEP": ("delimiter", _on("separator")),
    "punctuation": ("punctuation", _on("punctuation")),
    "broad": ("broad", lambda scene: np.ones((scene.count, scene.count))),
    "local": ("local", _near),
    "block": ("block", _block),
    "vertical": ("vertical", _one_column),
    "induction": ("induction", _copies(1)),
    "duplicate": ("duplicate", _copies(0)),
    "rare": ("rare", _on("rarest")),
    "scattered": (HETEROGENEOUS, _anywhere),
}
"""Pattern by name: the class that it was made for, and how it is made."""

PICTURE: Mapping[str, tuple[str, Callable[[Scene], Weights]]] = {
    "self": ("patch_positional", _itself),
    "CLS": ("sink", _on("classifier")),
    "register": ("sink", _on("register")),
    "one patch": ("sink", _one_column),
    "row": ("line", _along(0)),
    "column": ("line", _along(1)),
    "around": ("patch_local", _around),
    "everywhere": ("patch_global", _everywhere),
    "alike": ("content", _alike),
}


def hidden_of(scene: Scene) -> Weights:
    """(N, 16) states of the patches: four kinds of content, strewn over the picture by the place alone."""
    kinds = np.random.default_rng(scene.count).integers(4, size=scene.count)
    centres = np.random.default_rng(1).normal(size=(4, 16))
    return np.asarray(centres[kinds] + 0.3 * np.random.default_rng(2).normal(size=(scene.count, 16)))


def planted(scene: Scene, names: Sequence[str], *, noise: float) -> DenseMap:
    """A layer with a head for each name.

    Args:
        noise: share of each row's weight that is noise, 0 to below 1.
    """
    made = TEXT if scene.side.place is None else PICTURE
    heads = []
    for name in names:
        weights = made[name][1](scene)
        empty = weights.sum(1) == 0
        weights[empty] = 1
        weights /= weights.sum(1, keepdims=True)
        blur = scene.random.dirichlet(np.ones(scene.count), size=scene.count)
        heads.append((1 - noise) * weights + noise * blur)
    return DenseMap(torch.from_numpy(np.stack(heads))[None].float())
