"""Statistics of heads on a small model of every architecture that can be captured, against the weights themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analysis.figure_data import TokenLabel
from analysis.heads.clusters import head_distances
from analysis.heads.measures import measure
from analysis.heads.positions import Layout, text_side
from analysis.hf.attention import capture
from tests.tiny_models import ARCHITECTURES, Architecture


def layout_of(queries: int, keys: int, kind: str) -> Layout:
    """Positions without special tokens."""
    rows, columns = (
        text_side([[TokenLabel(f"w{index % 5}", f"w{index % 5}") for index in range(count)]])
        for count in (queries, keys)
    )
    return (
        Layout(columns, columns, kind) if queries == keys and kind != "cross" else Layout(rows, columns, kind)
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
def test_statistics_are_those_of_the_weights(architecture: Architecture):
    module, batch = architecture.build(), architecture.batch()
    with torch.no_grad(), capture(module) as trace:
        module(**batch.tensors)
    item = trace.item(0)
    for kind, layers in (("encoder", item.encoder), ("decoder", item.decoder), ("cross", item.cross)):
        for layer in layers:
            found = measure(layer, layout_of(layer.queries, layer.keys, kind)).means()
            weights = layer.dense().double().numpy()
            with np.errstate(divide="ignore", invalid="ignore"):
                entropy = -np.where(weights > 0, weights * np.log(weights), 0).sum(-1).mean(-1)
            np.testing.assert_allclose(found["entropy"][0].numpy(), entropy, rtol=1e-3, atol=1e-5)
            largest = weights.max(-1).mean(-1)
            np.testing.assert_allclose(found["max_weight"][0].numpy(), largest, rtol=1e-4, atol=1e-6)
            first = weights[:, :, 0].mean(-1)
            np.testing.assert_allclose(found["first"][0].numpy(), first, rtol=1e-4, atol=1e-6)
            if "offset+0" in found:
                own = np.diagonal(weights, axis1=1, axis2=2).mean(-1)
                np.testing.assert_allclose(found["offset+0"][0].numpy(), own, rtol=1e-4, atol=1e-6)
        alike = tuple(
            layer for layer in layers if (layer.queries, layer.keys) == (layers[0].queries, layers[0].keys)
        )
        if alike:
            mean = head_distances(alike).mean
            assert mean.shape == (sum(layer.heads for layer in alike),) * 2
            assert float(np.nanmax(mean)) <= np.log(2) + 1e-6
