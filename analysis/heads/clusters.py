"""How alike heads are: the Jensen–Shannon divergence between their rows, and pictures of it (Clark et al. 2019, 6).

The distance of two heads is the sum, over query rows and texts, of the divergence between their two distributions,
natural logarithm, each row mixed with a little of the uniform distribution: 0.999 A + 0.001 / n. Divided by the
number of rows it lies between 0 and ln 2, whatever was looked at. As in the paper it is the divergence and not its
square root, although only the root is a metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_data import Floats
from attn_core.maps import AttentionMap

SMOOTHING = 0.001
"""Share of the uniform distribution in each row."""

MANY_HEADS = 400
"""Heads above which the embedding makes one start only."""

_STRIP_NUMBERS, _PIECE = 2**22, 2048
"""Weights of all heads that are held at once, and weights of one head that are compared at once."""


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Divergences between all heads of one kind, over some texts. Texts are put together by ``merged``.

    Attributes:
        heads: (layer, head) of each, both from 0.
        sums: (heads, heads) divergences, summed over rows, symmetric with zeros on the diagonal.
        rows: how many query rows were compared; ``texts``: how many texts they are of.
    """

    heads: tuple[tuple[int, int], ...]
    sums: NDArray[np.float64]
    rows: int
    texts: int

    @property
    def mean(self) -> NDArray[np.float64]:
        """(heads, heads) divergence of a row, 0 to ln 2."""
        return self.sums / max(self.rows, 1)

    def merged(self, other: HeadDistances) -> HeadDistances:
        """The distances over the texts of both.

        Raises:
            ValueError: if they are of other heads.
        """
        if self.heads != other.heads:
            raise ValueError(
                f"HeadDistances.merged: both must be of the same heads but are of {len(self.heads)} and "
                f"{len(other.heads)}; pass distances of one model and kind."
            )
        return HeadDistances(
            self.heads, self.sums + other.sums, self.rows + other.rows, self.texts + other.texts
        )


def head_distances(
    layers: Sequence[AttentionMap], *, smoothing: float = SMOOTHING, most_rows: int | None = None
) -> HeadDistances:
    """Divergences between all heads on one text.

    Weights are compared in single precision and summed in double. It takes heads² · Q · K logarithms, and memory for
    strips of rows only.

    Args:
        layers: maps of one kind and one input, all over the same queries and keys.
        smoothing: share of the uniform distribution in each row.
        most_rows: where there are more queries, so many of them that lie evenly; None takes all.
    Returns:
        A row in which some head looks at nothing counts for no pair.
    Raises:
        ValueError: for no layer, layers over other positions, or a smoothing outside 0 to 1.
    """
    if not layers:
        raise ValueError("head_distances: layers must hold at least one map but hold none.")
    if not 0 < smoothing < 1:
        raise ValueError(f"head_distances: smoothing must lie between 0 and 1 but is {smoothing}.")
    queries, keys = layers[0].queries, layers[0].keys
    other = next((layer for layer in layers if (layer.queries, layer.keys) != (queries, keys)), None)
    if other is not None:
        raise ValueError(
            f"head_distances: layers must be over the same positions but have {queries} × {keys} and "
            f"{other.queries} × {other.keys}; pass layers of one kind and one grid."
        )
    heads = tuple((number, head) for number, layer in enumerate(layers) for head in range(layer.heads))
    found = torch.zeros(len(heads), len(heads), dtype=torch.float64)
    rows = 0
    step = max(1, _STRIP_NUMBERS // (len(heads) * keys))
    for strip in _strips(queries, step, most_rows):
        weights = torch.cat(
            [layer.block(None, strip, slice(0, keys)).to("cpu", torch.float32) for layer in layers]
        )  # (heads, r, K)
        full = (weights.sum(-1) > 0).all(0)
        rows += int(full.sum())
        weights = weights[:, full].flatten(1)
        seen = weights.amax(0) > 0
        if not seen.all():  # where no head looks all rows are alike (half of a causal map)
            weights = weights[:, seen]
        found += _mixed(weights.mul_(1 - smoothing).add_(smoothing / keys))
    own = found.diagonal()
    between = (own[:, None] + own) / 4 - found / 2
    sums = between.clamp_(min=0.0).fill_diagonal_(0.0).numpy()
    return HeadDistances(heads, sums, rows, 1)


def _strips(queries: int, step: int, most: int | None) -> Iterator[slice]:
    """Runs of queries: all of them, or single ones that lie evenly."""
    if most is None or queries <= most:
        yield from (slice(start, min(start + step, queries)) for start in range(0, queries, step))
    else:
        yield from (slice(at, at + 1) for at in (index * queries // most for index in range(most)))


def _mixed(rows: Tensor) -> Tensor:
    """(heads, heads) float64: Σ s ln s with s = p + q, for every two heads' numbers.

    From these alone the divergences follow, Σ s being the same on both sides:
    Σ JSD(p, q) = ¼ (Σ 2p ln 2p + Σ 2q ln 2q) − ½ Σ (p + q) ln (p + q).

    Args:
        rows: (heads, n) positive.
    """
    heads, count = rows.shape
    found = torch.zeros(heads, heads, dtype=torch.float64)
    mixture, logarithm = torch.empty(2, heads, min(_PIECE, max(count, 1)))
    for start in range(0, count, _PIECE):
        piece = rows[:, start : start + _PIECE].contiguous()
        width = piece.shape[1]
        for first in range(heads):
            mixed, logs = mixture[first:, :width], logarithm[first:, :width]
            torch.add(piece[first:], piece[first], out=mixed)
            torch.log(mixed, out=logs)
            found[first, first:] += mixed.mul_(logs).sum(1, dtype=torch.float64)
    return found.triu() + found.triu(1).T


# Pictures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Embedding:
    """Heads as points of a plane, alike heads near each other.

    Attributes:
        points: (heads, 2), centred, the longer axis first.
        stress: Σ over pairs of (distance in the plane − distance given)², what the embedding makes small.
        relative_stress: √(stress / Σ distance given²) (Kruskal 1964); 0 is perfect, above 0.2 poor.
    """

    points: Floats
    stress: float
    relative_stress: float


def embed(distances: NDArray[np.float64], seed: int = 0, *, root: bool = False) -> Embedding:
    """Metric multidimensional scaling to the plane (SMACOF of scikit-learn).

    The best of a start from classical scaling and, up to ``MANY_HEADS``, four random ones. Only distances between
    points mean something; rotation and reflection are fixed so that one seed gives one picture.

    Args:
        distances: (heads, heads), symmetric with a zero diagonal.
        seed: of the random starts.
        root: embed the square roots, which obey the triangle inequality; the paper embeds the divergences themselves.
    Raises:
        ValueError: for anything else than such a matrix.
    """
    given = _checked(distances, "embed")
    given = np.sqrt(given) if root else given
    total = float((given**2).sum() / 2)
    if total == 0:  # one head, or all alike
        return Embedding(np.zeros((len(given), 2)), 0.0, 0.0)
    from sklearn.manifold import MDS

    scale = float(given.max())  # random starts are drawn from a unit square
    starts = (("classical_mds", 1), ("random", 4)) if len(given) <= MANY_HEADS else (("classical_mds", 1),)
    found = []
    for init, times in starts:
        scaling = MDS(
            n_components=2,
            metric="precomputed",
            init=init,
            n_init=times,
            random_state=seed,
            normalized_stress=False,
        )
        points = scaling.fit_transform(given / scale) * scale
        found.append((float(scaling.stress_), points))
    points = min(found, key=lambda each: each[0])[1]  # centred, as every step of SMACOF leaves them
    axes = np.linalg.svd(points, full_matrices=False)[2]
    points = points @ axes.T
    points *= np.where(points[np.abs(points).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    apart = np.sqrt(((points[:, None] - points) ** 2).sum(-1))
    stress = float(((apart - given) ** 2).sum() / 2)
    return Embedding(points, stress, float(np.sqrt(stress / total)))


def head_order(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """An order in which alike heads stand side by side, for drawing the matrix of distances.

    Leaves of average-linkage clustering, in the order in which neighbours are nearest (Bar-Joseph et al. 2001).

    Args:
        distances: (heads, heads), symmetric with a zero diagonal.
    Returns:
        (heads,) each index once.
    Raises:
        ValueError: for anything else than such a matrix.
    """
    given = _checked(distances, "head_order")
    if len(given) < 3:
        return np.arange(len(given))
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    merges = linkage(squareform(given, checks=False), "average", optimal_ordering=True)
    return np.asarray(leaves_list(merges), dtype=np.int64)


def _checked(distances: NDArray[np.float64], caller: str) -> NDArray[np.float64]:
    """The distances, exactly symmetric."""
    given = np.asarray(distances, dtype=np.float64)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise ValueError(f"{caller}: distances must be (heads, heads) but have shape {given.shape}.")
    slack = 1e-9 * max(float(np.abs(given).max()), 1e-300)
    if not np.isfinite(given).all() or (given < 0).any():
        raise ValueError(
            f"{caller}: distances must be finite and not negative; pass those of head_distances."
        )
    if (np.abs(given - given.T) > slack).any() or given.diagonal().any():
        raise ValueError(
            f"{caller}: distances must be symmetric with zeros on the diagonal; pass those of head_distances."
        )
    return (given + given.T) / 2
