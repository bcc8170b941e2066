"""Write ``dashboard/example.npz``: what the first page shows before torch is imported.

Exact numbers of the bundled models on the first samples, and a thumbnail of every sample picture. Run it
(``make example``) when a default sample, a bundled model or the form of the file changes; a test tells when.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from analysis.images import read_picture
from analysis.inputs import encode_image, encode_pair, encode_text
from analysis.models import LoadedModel, load_model
from analysis.rollout import rollout
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES, sample_picture_bytes
from analysis.trace import trace
from dashboard.first_paint import EXAMPLE_FILE
from dashboard.selection import default_selection

THUMBNAIL_PIXELS = (144, 108)

Arrays = dict[str, NDArray[Any]]


def text_example(model: LoadedModel) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of the default text."""
    sample = TEXT_SAMPLES[0]
    encoded = (
        encode_text(model, sample.text)
        if sample.pair is None
        else encode_pair(model, sample.text, sample.pair)
    )
    traced = trace(model, encoded)
    maps = traced.encoder
    statistics = [layer.statistics() for layer in maps]
    facts = {
        "model": model.name,
        "revision": model.revision,
        "sample": sample.id,
        "layers": len(maps),
        "labels": [asdict(token) for token in encoded.tokens or ()],
        "notes": [*model.notes, *encoded.notes, *traced.notes],
    }
    arrays = {
        "text_weights": np.stack([layer.dense().numpy() for layer in maps]),
        "text_rollout_weights": rollout(maps).numpy(),
        **{
            f"text_{name}": np.stack([getattr(layer, name).numpy() for layer in statistics])
            for name in ("entropy", "max_weight", "mean_distance")
        },
    }
    return facts, arrays


def image_example(model: LoadedModel) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of the default picture."""
    sample, side = PICTURE_SAMPLES[0], default_selection().image.input.side
    encoded = encode_image(model, read_picture(sample_picture_bytes(sample.id), name=sample.id), side=side)
    traced = trace(model, encoded)
    assert encoded.grid is not None
    prefix, shape = encoded.grid.prefix_tokens, (encoded.grid.rows, encoded.grid.columns)
    rows = np.stack([layer.row(None, 0).numpy() for layer in traced.encoder])  # (L, H, N) of CLS
    rolled = rollout(traced.encoder).numpy()[0]
    facts = {
        "model": model.name,
        "revision": model.revision,
        "sample": sample.id,
        "side": side,
        "layers": len(traced.encoder),
        "prefix_tokens": prefix,
        "notes": [*model.notes, *encoded.notes, *traced.notes],
    }
    arrays = {
        "image_picture": encoded.picture,
        "image_maps": rows[..., prefix:].reshape(*rows.shape[:2], *shape),
        "image_removed": rows[..., :prefix].sum(axis=-1),
        "image_rollout_map": rolled[prefix:].reshape(shape),
        "image_rollout_removed": rolled[:prefix].sum(),
    }
    return facts, {name: np.asarray(array) for name, array in arrays.items()}


def thumbnails() -> Arrays:
    """JPEG bytes of every sample picture, small, cut to one shape."""
    made = {}
    for sample in PICTURE_SAMPLES:
        pixels = read_picture(sample_picture_bytes(sample.id), name=sample.id).pixels
        small = ImageOps.fit(Image.fromarray(pixels), THUMBNAIL_PIXELS, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=80, optimize=True)
        made[f"thumbnail_{sample.id}"] = np.frombuffer(buffer.getvalue(), dtype=np.uint8)
    return made


def make_example(file: Path = EXAMPLE_FILE) -> None:
    """Compute everything and write the file."""
    chosen = default_selection()
    text_facts, text_arrays = text_example(load_model(chosen.text.model.name, device="cpu"))
    image_facts, image_arrays = image_example(load_model(chosen.image.model.name, device="cpu"))
    facts = json.dumps({"text": text_facts, "image": image_facts}).encode("utf-8")
    arrays = {**text_arrays, **image_arrays, **thumbnails(), "facts": np.frombuffer(facts, dtype=np.uint8)}
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # mypy thinks of allow_pickle


if __name__ == "__main__":
    make_example()
    print(f"{EXAMPLE_FILE}: {EXAMPLE_FILE.stat().st_size / 1e6:.2f} MB")
