"""Write docs/architectures.md from the list that the tests run: ``python -m scripts.architecture_table``.

Every figure is measured by this run on the tiny models of ``tests/tiny_models.py``.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tests.capture_helpers import measure
from tests.tiny_models import ARCHITECTURES, KINDS, TEXT_LENGTHS, Architecture

TARGET = Path(__file__).resolve().parent.parent / "docs" / "architectures.md"

HEADER = """# Architectures whose attention is captured

Written by `python -m scripts.architecture_table` from the list in `tests/tiny_models.py`; do not edit by hand.

Each row is a tiny random model built from a config, with peaked attention and non-zero biases, run on a batch of
two (texts of {lengths} tokens, padded). `tests/test_architectures.py` proves for each:

- outputs with a capture equal outputs without, as the library builds the model and eager, to 1e-5;
- captured weights equal the library's own eager `output_attentions`, to 1e-5, on every position that is not padding;
- layers, heads, key-value heads and kinds (encoder, decoder, cross) are the model's;
- one item of a padded batch equals the item alone, padding on the right and, for decoders, on the left;
- nothing is left changed on the model afterwards, also after an exception.

**Path**: *seam* means that the layer's query, key and log-sum-exp are recorded and any part of a map is recomputed
from them; *fallback* means that the model does not use transformers' attention interface, so its weights are read
through `output_attentions` and every layer holds its n × n array, or the window around each token and the global
tokens where it attends to no more, or the weights of its windows of a picture. The views say so.

Swin's windows are read as maps over the grid of patches of their layer, padding left out: its rows and columns are no
patches, and a row of a window that holds padding sums to what falls on patches (docs/conventions.md).

**Prefix** counts the positions before the first patch. The last two columns are the largest absolute differences
seen, float32 on a CPU, with torch {torch} and transformers {transformers}.

| architecture | `model_type` | layers | heads (key-value) | prefix | what is special | path | outputs | weights |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def fixed_cells(architecture: Architecture) -> list[str]:
    """The cells of a row that are not measured."""
    layers = ", ".join(f"{architecture.layers[kind]} {kind}" for kind in KINDS if kind in architecture.layers)
    heads = (
        architecture.heads if isinstance(architecture.heads, int) else ", ".join(map(str, architecture.heads))
    )
    grouped = f" ({architecture.kv_heads})" if architecture.kv_heads is not None else ""
    return [
        architecture.name,
        f"`{architecture.family}`",
        layers,
        f"{heads}{grouped}",
        str(architecture.prefix_tokens) if "pixel_values" in architecture.batch().tensors else "–",
        architecture.special or "–",
        architecture.path,
    ]


def row(architecture: Architecture) -> str:
    """One line of the table, measured now: the larger of right and left padding."""
    batches = [architecture.batch] + ([] if architecture.left_batch is None else [architecture.left_batch])
    measured = [measure(architecture, make()) for make in batches]
    figures = [
        f"{max(values):.1e}" for values in zip(*((m.outputs, m.weights) for m in measured), strict=True)
    ]
    return "| " + " | ".join(fixed_cells(architecture) + figures) + " |"


def document() -> str:
    """The whole file."""
    head = HEADER.format(
        lengths=" and ".join(map(str, TEXT_LENGTHS)),
        torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__,
    )
    return head + "\n".join(row(architecture) for architecture in ARCHITECTURES) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
    print(f"wrote {TARGET.name}: {len(ARCHITECTURES)} architectures")
