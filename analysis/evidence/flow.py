"""Attention flow: how much of each input token can reach a position when attention weights are the widths of pipes.

A node for every position below the first layer and above each layer, (L+1)·N in all; an edge from position q above
layer l to position k below it, as wide as B_l[q, k], where B_l = (mean_h A_l + I) with rows divided by their own sum.
The flow of token k into position q is the maximum flow from q above the last layer to k below the first, each token
alone (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

MOST_STEPS = 120_000_000
"""Most edges that all flows of one answer may go over: about ten seconds on one core."""

_SCALE = 2**30
"""Integer capacity of an edge of width 1; scipy computes in 32 bits, and no node lets through more than 1."""


def flow_of(
    weights: Tensor | Sequence[Tensor],
    *,
    rows: Sequence[int] | None = None,
    normalised: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """Maximum flow of every input token into some positions after the last layer.

    Args:
        weights: (L, H, N, N) attention of one input, layer 0 next to the input, or one (H, N, N) a layer.
        rows: positions after the last layer; None takes all.
        normalised: divide a row by its sum, as the paper does.
        progress: called with 0 to 1 after each flow; what it raises comes out.
    Returns:
        (len(rows), N) float64.
    Raises:
        ValueError: for weights of another shape, a row that is not there, or flows above ``MOST_STEPS``.
    """
    widths = _widths(weights)
    layers, tokens, _ = widths.shape
    asked = range(tokens) if rows is None else rows
    if not all(0 <= row < tokens for row in asked):
        raise ValueError(
            f"flow_of: rows must lie between 0 and {tokens - 1} but are {list(asked)}; pass token indices."
        )
    check_size(layers, tokens, len(asked), "flow_of")
    found = np.zeros((len(asked), tokens))
    for place, row in enumerate(asked):
        graph, exact = _graph(widths, row)
        for token in range(tokens):
            found[place, token] = _cut_width(graph, exact, token)
            if progress is not None:
                progress((place * tokens + token + 1) / found.size)
    flows = torch.from_numpy(found)
    return flows / flows.sum(-1, keepdim=True) if normalised else flows


def check_size(layers: int, tokens: int, rows: int, caller: str) -> None:
    """Raise where flows would take too long.

    Raises:
        ValueError: with the size and the cheaper method.
    """
    steps = rows * tokens * layers * tokens**2
    if steps > MOST_STEPS:
        raise ValueError(
            f"{caller}: {rows * tokens:,} flows through {layers} layers of {tokens} × {tokens} weights go over "
            f"{steps:,} edges, more than {MOST_STEPS:,} (about ten seconds); choose attention rollout, which costs "
            "one matrix product a layer, or a shorter input."
        )


def _widths(weights: Tensor | Sequence[Tensor]) -> NDArray[np.float64]:
    """(L, N, N) widths of the edges: heads' mean with the residual, rows sum to one."""
    layers = list(weights)
    shapes = {tuple(layer.shape) for layer in layers}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 3 or shape[1] != shape[2] or 0 in shape:
        raise ValueError(
            "flow_of: weights must be (L, H, N, N), square maps of one input, but is "
            f"{tuple(weights.shape) if isinstance(weights, Tensor) else [tuple(w.shape) for w in layers]}; pass "
            "self-attention layers over the same tokens."
        )
    mean = torch.stack([layer.detach().to("cpu", torch.float64).mean(0) for layer in layers])
    widths = mean + torch.eye(shape[1], dtype=torch.float64)
    found: NDArray[np.float64] = (widths / widths.sum(-1, keepdim=True)).numpy()
    return found


def _graph(widths: NDArray[np.float64], row: int) -> tuple[csr_array, csr_array]:
    """Edges that can be reached from one position above the last layer, in integers and exactly.

    Node l·N + i is position i below layer l; the last node is the position itself.
    """
    layers, tokens, _ = widths.shape
    source = layers * tokens
    above = np.repeat(np.arange(tokens, source), tokens)
    below = (np.arange(layers - 1)[:, None, None] * tokens + np.arange(tokens)).repeat(tokens, 1).ravel()
    starts = np.concatenate([above, np.full(tokens, source)])
    ends = np.concatenate([below, np.arange(source - tokens, source)])
    width = np.concatenate([widths[:-1].ravel(), widths[-1, row]])
    shape = (source + 1, source + 1)
    whole = np.rint(width * _SCALE).astype(np.int32)
    return csr_array((whole, (starts, ends)), shape=shape), csr_array((width, (starts, ends)), shape=shape)


def _cut_width(graph: csr_array, exact: csr_array, token: int) -> float:
    """Exact width of the smallest cut between the last node and a token's, which is the maximum flow.

    The cut is found with integer capacities and its exact edges are then summed, so that only which of two cuts is
    the smaller may suffer from rounding, and only where they differ by less than that.
    """
    source = graph.shape[0] - 1
    left = graph - maximum_flow(graph, source, token).flow  # what is left of each edge, and ways back
    left.eliminate_zeros()
    near = np.zeros(source + 1)
    near[breadth_first_order(left, source, return_predecessors=False)] = 1.0
    return float(near @ (exact @ (1.0 - near)))
