"""Figure records packed for the browser: one blob of bytes each, which a component or an exported page draws.

A blob is a little-endian uint32 with the length of the header, the header as JSON padded with spaces until the body
starts at a multiple of eight bytes, and the body with the arrays that the header lists by offset, shape and type.
Weights travel as one byte each (``analysis.figure_data.weight_levels``); Streamlit hands raw bytes to a component
without JSON or base64, which made the view interactive seven times sooner.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import (
    HEAD_COLOURS,
    LEARNED_QUERY,
    LINE_CAP,
    Floats,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    TokenLabel,
    TokenScores,
    weight_levels,
)
from analysis.streamed import StreamedMatrix
from analysis.visible import (
    above_scale,
    matrix_limits,
    matrix_window,
    patch_limits,
    score_limits,
    short_label,
    thumbnail_limits,
    visible_text,
)
from dashboard.colour_maps import colour_table

FORMAT_VERSION = 1

ALIGNMENT = 8
"""Every array of a blob starts at a multiple of this, so that the browser can read it in place."""

ARRAY_TYPES: Mapping[str, str] = {"uint8": "|u1", "float32": "<f4"}

THUMBNAIL_CELLS = 64
"""Most cells along a side of a thumbnail in the model view."""


# The format ----------------------------------------------------------------------------------------------------


def pack(header: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """One blob from a header and named arrays.

    Args:
        header: plain JSON values with at least ``kind``; ``version`` and ``arrays`` are added.
        arrays: uint8 or float32 arrays of any shape.
    Raises:
        ValueError: for another type of array, a number that JSON cannot hold, or a header without ``kind``.
    """
    if "kind" not in header:
        raise ValueError("pack: header must name its kind but does not; add kind='head_view' or the like.")
    entries: dict[str, dict[str, object]] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        kind = array.dtype.name
        if kind not in ARRAY_TYPES:
            raise ValueError(
                f"pack: array {name} must be one of {', '.join(ARRAY_TYPES)} but is {kind}; convert it first."
            )
        data = np.ascontiguousarray(array, dtype=ARRAY_TYPES[kind]).tobytes()
        padding = -len(data) % ALIGNMENT
        entries[name] = {"offset": offset, "shape": list(array.shape), "dtype": kind}
        chunks += [data, bytes(padding)]
        offset += len(data) + padding
    return b"".join([_packed_header({**header, "version": FORMAT_VERSION, "arrays": entries}), *chunks])


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a blob (read-only views of it).

    Raises:
        ValueError: if it is not a blob of this format.
    """
    header, start = read_header(payload)
    arrays = {}
    for name, entry in header["arrays"].items():
        count = math.prod(entry["shape"])
        flat = np.frombuffer(
            payload, ARRAY_TYPES[entry["dtype"]], count=count, offset=start + entry["offset"]
        )
        arrays[name] = flat.reshape(entry["shape"])
    return header, arrays


def read_header(payload: bytes) -> tuple[dict[str, Any], int]:
    """Header of a blob, and where its body starts.

    Raises:
        ValueError: if it is not a blob of this format.
    """
    length = int.from_bytes(payload[:4], "little")
    start = 4 + length
    if length == 0 or start > len(payload) or start % ALIGNMENT:
        raise ValueError(
            f"read_header: payload must be a packed blob but is {len(payload)} other bytes; use pack."
        )
    header = json.loads(payload[4:start])
    if not isinstance(header, dict) or header.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"read_header: payload must have version {FORMAT_VERSION} but has another; use pack."
        )
    return header, start


def with_header(payload: bytes, header: Mapping[str, object]) -> bytes:
    """The same body under another header, whose ``arrays`` entry must be that of the old one."""
    return _packed_header(header) + payload[read_header(payload)[1] :]


def _packed_header(header: Mapping[str, object]) -> bytes:
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode(
        "ascii"
    )  # lone surrogates are escaped
    text += b" " * (-(4 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(4, "little") + text


# Parts that several payloads share -----------------------------------------------------------------------------


def token_entries(tokens: Sequence[TokenLabel]) -> list[dict[str, object]]:
    """Tokens as a header lists them; what is false or ordinary is left out, and ``short`` is there only when cut."""
    entries = []
    for token in tokens:
        text, piece, short = visible_text(token.text), visible_text(token.piece), short_label(token.text)
        entry: dict[str, object] = {"text": text}
        if short != text:
            entry["short"] = short
        if piece != text:
            entry["piece"] = piece
        if token.word is not None:
            entry["word"] = token.word
        if token.segment:
            entry["segment"] = token.segment
        entry.update({name: True for name in ("special", "unknown", "continues") if getattr(token, name)})
        entries.append(entry)
    return entries


def input_digest(*sides: Sequence[TokenLabel]) -> str:
    """Short fingerprint of token lists: a component's answer about one input is not taken for another's."""
    digest = hashlib.blake2b(digest_size=8)
    for tokens in sides:
        for token in tokens:
            digest.update(
                repr((token.text, token.special, token.segment)).encode("utf-8", "backslashreplace")
            )
        digest.update(b"|")
    return digest.hexdigest()


# Text ----------------------------------------------------------------------------------------------------------


def head_view_payload(
    view: HeadView,
    *,
    all_layers: Floats | None = None,
    title: str = "",
    merged: bool | None = None,
) -> bytes:
    """What the ``head_view`` component draws.

    Args:
        view: lines of one layer and the choices to start with.
        all_layers: (L, H, Q, K) weights of every layer for short input, so that a change of layer needs no answer
            from Python; without it the blob holds the layer of ``view`` alone and the component asks for others.
        title: heading in a stand-alone page.
        merged: whether subwords are merged into words; None where they cannot be (no switch is shown).
    Raises:
        ValueError: if ``all_layers`` or the view's groups do not fit it.
    """
    heads, queries, keys = view.weights.shape
    weights = view.weights[None] if all_layers is None else all_layers  # (present, H, Q, K)
    expected = (view.layers if all_layers is not None else 1, heads, queries, keys)
    if weights.shape != expected:
        raise ValueError(
            f"head_view_payload: all_layers must be {expected} but is {weights.shape}; pass every layer of the view."
        )
    _check_groups(view.groups, heads, "head_view_payload")
    header = {
        "kind": "head_view",
        "title": title,
        "attention": "learned" if tuple(view.left) == (LEARNED_QUERY,) else view.kind,
        "layers": view.layers,
        "present": [view.layer] if all_layers is None else list(range(view.layers)),
        "heads": heads,
        "groups": None if view.groups is None else [int(group) for group in view.groups],
        "direction": view.direction,
        "left": token_entries(view.left),
        "right": None if view.right == view.left else token_entries(view.right),
        "starts": [int(start) for start in view.starts],
        "input": input_digest(view.left, view.right),
        "colours": list(HEAD_COLOURS),
        "cap": LINE_CAP,
        "merged": merged,
        "state": {
            "layer": view.layer,
            "heads": [int(head) for head in view.active],
            "pinned": None if view.pinned is None else [view.pinned[0], int(view.pinned[1])],
            "threshold": float(view.threshold),
            "filter": view.pair_filter,
            "hide_special": view.hide_special,
            "merge_words": bool(merged),
        },
    }
    return pack(header, {"weights": weight_levels(weights)})


def model_view_payload(
    view: ModelView,
    *,
    entropy: Floats | None = None,
    maximum: Floats | None = None,
    tokens: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
    title: str = "",
) -> bytes:
    """What the ``model_view`` component draws.

    Args:
        view: the thumbnails (at most ``THUMBNAIL_CELLS`` cells a side) and the choices to start with.
        entropy: (L, H) mean entropy of each head's rows in nats, told when the pointer is on it.
        maximum: (L, H) largest weight of each head; that of the thumbnails when None.
        tokens: number of queries and keys that the thumbnails stand for, of all layers or of each; those of the
            record when None.
        title: heading in a stand-alone page.
    Raises:
        ValueError: if an array does not fit the thumbnails, or these are too large.
    """
    layers, heads, rows, columns = view.thumbnails.shape
    if len(view.layer_shapes) != layers or any(
        size > most
        for shape in view.layer_shapes
        for size, most in zip(shape, view.thumbnails.shape[1:], strict=True)
    ):
        raise ValueError(
            f"model_view_payload: shapes must be (heads, rows, columns) within {view.thumbnails.shape[1:]} for each "
            f"of {layers} layers but are {view.layer_shapes}; pass those of the thumbnails."
        )
    if max(rows, columns) > THUMBNAIL_CELLS:
        raise ValueError(
            f"model_view_payload: thumbnails must have at most {THUMBNAIL_CELLS} cells a side but are "
            f"{rows} × {columns}; pool them first."
        )
    for name, values in (("entropy", entropy), ("maximum", maximum)):
        if values is not None and values.shape != (layers, heads):
            raise ValueError(
                f"model_view_payload: {name} must be {(layers, heads)} but is {values.shape}; pass one value a head."
            )
    _check_groups(view.groups, heads, "model_view_payload")
    filled = view.thumbnails if view.shapes is None else np.nan_to_num(view.thumbnails)
    if maximum is None:
        maximum = filled.reshape(layers, heads, -1).max(axis=-1, initial=0.0)
    header = {
        "kind": "model_view",
        "title": title,
        "attention": view.kind,
        "layers": layers,
        "heads": heads,
        "tokens": [list(size) for size in _sizes(view, tokens)],
        "cells": view.cells,
        "shapes": [list(shape) for shape in view.layer_shapes],
        "groups": None if view.groups is None else [int(group) for group in view.groups],
        "colour_map": view.colour_map,
        "shared_limit": float(thumbnail_limits(replace(view, shared_scale=True)).max(initial=0.0)) or 1.0,
        "state": {
            "selected": None if view.selected is None else [int(index) for index in view.selected],
            "shared_scale": view.shared_scale,
        },
    }
    arrays: dict[str, NDArray[Any]] = {
        "weights": weight_levels(filled),
        "maximum": np.asarray(maximum, dtype=np.float32),
        "limits": thumbnail_limits(replace(view, shared_scale=False)).astype(np.float32),
        "lut": colour_table(view.colour_map),
    }
    if entropy is not None:
        arrays["entropy"] = np.asarray(entropy, dtype=np.float32)
    return pack(header, arrays)


def _sizes(
    view: ModelView, tokens: tuple[int, int] | Sequence[tuple[int, int]] | None
) -> list[tuple[int, int]]:
    """Queries and keys that the thumbnails of each layer stand for."""
    if not tokens:
        return list(view.sizes or [(rows, columns) for _, rows, columns in view.layer_shapes])
    first = tokens[0]
    every = [tokens] * len(view.thumbnails) if isinstance(first, int) else tokens
    return [(queries, keys) for queries, keys in every]  # type: ignore[misc]


def _check_groups(groups: Sequence[int] | None, heads: int, function: str) -> None:
    if groups is not None and len(groups) != heads:
        raise ValueError(
            f"{function}: groups must have {heads} entries but has {len(groups)}; give each head its key-value head."
        )


# Matrices, scores and pictures ---------------------------------------------------------------------------------

ColourScale = Literal["linear", "sqrt"]

WHOLE_TOKENS = 1000
"""Matrices with at most this many rows and columns are sent whole, larger ones pooled."""

POOLED_CELLS = 512
"""Most cells along a side of a pooled matrix."""

EXACT_CELLS = 512 * 512
"""Matrices with at most this many cells travel as float32, so that the browser tells exact values."""

ROUNDING = 1e-5
"""How far a weight may lie above 1 from rounding alone."""

LABELLED_TOKENS = 8192
"""Axes with more tokens than this are numbered instead."""

PICTURE_PIXELS = 1_000_000
"""Most pixels of a picture in a blob; the display copy of a larger one is scaled down."""

SHARP_QUALITY = 88
"""JPEG quality of the copy of a larger picture that keeps its pixels, for zooming into it."""

PICTURE_SIDE = 8192
"""Most pixels along a side of a display copy: browsers have a limit on the size of a canvas."""


def matrix_view_payload(
    view: MatrixView, *, scale: ColourScale | None = None, axes: tuple[str, str] = ("query", "key")
) -> bytes:
    """What the ``matrix_view`` component draws.

    Up to ``WHOLE_TOKENS`` a side every weight is sent: exact up to ``EXACT_CELLS``, as levels above it. A larger
    matrix is pooled to the largest weight of each ``factor`` × ``factor`` block, and the view says so. Where the
    whole is quantised or pooled, the zoomed part comes along exactly, or pooled less where it is large itself: a zoom
    in the browser is told to Python, and the next blob holds that part.

    Args:
        view: the matrix and the choices to start with.
        scale: how values become colours to start with; that of ``view`` when None.
        axes: what rows and columns are.
    Raises:
        ValueError: if the weights are not two-dimensional, empty, or do not fit the labels.
    """
    _check_matrix(view)
    queries, keys = view.weights.shape
    factor = 1 if max(queries, keys) <= WHOLE_TOKENS else -(-max(queries, keys) // POOLED_CELLS)
    weights = np.asarray(_pooled_part(view, slice(0, queries), slice(0, keys), factor), dtype=np.float32)
    in_range = bool(np.all((weights >= 0) & (weights <= 1 + ROUNDING)))  # False for NaN
    same = view.columns == view.rows and queries == keys
    header = {
        "kind": "matrix_view",
        "title": view.title,
        "size": [queries, keys],
        "factor": factor,
        "axes": list(axes),
        "rows": _labels(view.rows),
        "columns": None if same else _labels(view.columns),
        "input": input_digest(view.rows, view.columns),
        "limits": [float(limit) for limit in matrix_limits(view)],
        "over": bool(above_scale(weights, matrix_limits(view)).any()),
        "unit": view.unit,
        "colour_map": view.colour_map,
        "state": {
            "zoom": None if view.zoom is None else [int(edge) for edge in view.zoom],
            "selected": None if view.selected is None else [int(index) for index in view.selected],
            "scale": scale or view.scale,
        },
    }
    exact = weights.size <= EXACT_CELLS or not in_range
    arrays = {"weights": weights if exact else weight_levels(weights), "lut": colour_table(view.colour_map)}
    part = None if factor == 1 and exact else _zoomed_part(view, factor)
    header["part"] = None if part is None else {"factor": part.factor, "start": list(part.start)}
    return pack(header, arrays if part is None else {**arrays, "part": part.weights})


@dataclass(frozen=True)
class _Part:
    """A rectangle of a matrix, pooled by ``factor``; ``start`` is its first row and column, in pooled cells."""

    weights: Floats
    factor: int
    start: tuple[int, int]


def _zoomed_part(view: MatrixView, factor: int) -> _Part | None:
    """The zoomed part, exact up to ``EXACT_CELLS``; None without a zoom, or if it would be as coarse as the whole."""
    if view.zoom is None:
        return None
    rows, columns = matrix_window(view)
    sides = rows.stop - rows.start, columns.stop - columns.start
    finer = 1 if sides[0] * sides[1] <= EXACT_CELLS else -(-max(sides) // POOLED_CELLS)
    if finer > 1 and finer >= factor:
        return None
    start = rows.start // finer, columns.start // finer
    window = (
        slice(start[0] * finer, -(-rows.stop // finer) * finer),
        slice(start[1] * finer, -(-columns.stop // finer) * finer),
    )
    return _Part(np.asarray(_pooled_part(view, *window, finer), dtype=np.float32), finer, start)


def _pooled_part(view: MatrixView, rows: slice, columns: slice, factor: int) -> Floats:
    """A part of a matrix with the largest value of each block, from the array or the map that it is read from."""
    if isinstance(view.weights, StreamedMatrix):
        return view.weights.pooled(rows, columns, factor)
    return _pooled(view.weights[rows, columns], factor)


def token_strip_payload(view: TokenScores, *, scale: ColourScale | None = None) -> bytes:
    """What the ``token_strip`` component draws.

    Args:
        view: one score a token.
        scale: how values become colours to start with; that of ``view`` when None.
    Raises:
        ValueError: if there is not one score a token.
    """
    if view.scores.shape != (len(view.tokens),):
        raise ValueError(
            f"token_strip_payload: scores must be ({len(view.tokens)},) but is {view.scores.shape}; pass one a token."
        )
    header = {
        "kind": "token_strip",
        "title": view.title,
        "tokens": token_entries(view.tokens),
        "start": view.start,
        "input": input_digest(view.tokens),
        "limits": [float(limit) for limit in score_limits(view)],
        "over": bool(above_scale(view.scores, score_limits(view)).any()),
        "unit": view.unit,
        "direction": view.direction,
        "colour_map": view.colour_map,
        "state": {"source": None if view.source is None else int(view.source), "scale": scale or view.scale},
    }
    scores = np.asarray(view.scores, dtype=np.float32)
    return pack(header, {"scores": scores, "lut": colour_table(view.colour_map)})


def patch_map_payload(
    view: PatchMaps,
    *,
    has_cls: bool = True,
    back: str | None = None,
    source: str | None = None,
    note: str = "",
) -> bytes:
    """What the ``patch_map`` component draws.

    Args:
        view: the maps over the picture and the choices to start with.
        has_cls: whether the model has a CLS token.
        back: what can be chosen instead of a patch, in a word or two; CLS, or nothing without one, when None.
        source: whose attention is shown while no patch is marked, shown after "From"; "CLS" or "the whole picture"
            when None.
        note: what the reader must know, such as the share of the row that fell on CLS; shown beside the scale.
    Raises:
        ValueError: if the picture is not RGB bytes, or maps and titles do not fit.
    """
    _check_patch_maps(view)
    picture = display_copy(view.picture)
    fixed = view.limits is not None
    own = patch_limits(replace(view, shared_scale=False))  # (M, 2)
    shared = patch_limits(replace(view, shared_scale=True))
    header = {
        "kind": "patch_map",
        "titles": list(view.titles),
        "grid": [int(size) for size in view.maps.shape[1:]],
        "picture_size": [int(size) for size in view.picture.shape[:2]],
        "input": _picture_digest(view),
        "limits": own.tolist(),
        "shared_limits": shared[0].tolist(),
        "fixed_limits": fixed,
        "unit": view.unit,
        "colour_map": view.colour_map,
        "selected": None if view.selected is None else int(view.selected),
        "has_cls": has_cls,
        "back": ("CLS" if has_cls else "") if back is None else back,
        "source": source or ("CLS" if has_cls else "the whole picture"),
        "note": note,
        "state": {
            "marked": None if view.marked is None else [int(index) for index in view.marked],
            "opacity": float(view.opacity),
            "smooth": view.smooth,
            "shared_scale": view.shared_scale,
        },
    }
    arrays: dict[str, NDArray[Any]] = {"maps": np.asarray(view.maps, dtype=np.float32), "picture": picture}
    if needs_sharp_copy(view.picture):
        arrays["sharp"] = sharp_copy(view.picture)
    return pack(header, {**arrays, "lut": colour_table(view.colour_map)})


def _labels(tokens: Sequence[TokenLabel]) -> list[dict[str, object]]:
    return token_entries(tokens) if len(tokens) <= LABELLED_TOKENS else []


def _pooled(weights: Floats, factor: int) -> Floats:
    """(Q, K) → (⌈Q/factor⌉, ⌈K/factor⌉): the largest value of each block; NaN only where all of a block is."""
    if factor == 1:
        return weights
    rows = _largest_of(weights, factor)  # (⌈Q/factor⌉, K)
    return _largest_of(rows.T, factor).T


def _largest_of(rows: Floats, factor: int) -> Floats:
    """(n, m) → (⌈n/factor⌉, m): the largest of each ``factor`` rows (strided slices: faster than reduceat)."""
    largest = rows[::factor].copy()
    for start in range(1, min(factor, len(rows))):
        part = rows[start::factor]
        np.fmax(largest[: len(part)], part, out=largest[: len(part)])
    return largest


JPEG_SIDE = 65_500
"""Most pixels of a side that the JPEG format's usual encoder takes."""


def display_copy(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture with at most ``PICTURE_PIXELS`` pixels; each is the mean of those that it stands for."""
    size = _display_size(*picture.shape[:2])
    if size == picture.shape[:2]:
        return picture
    means: NDArray[np.floating] = picture.astype(np.float32)
    for axis, pixels in enumerate(size):
        length = picture.shape[axis]
        starts = np.linspace(0, length, pixels, endpoint=False).astype(np.intp)
        counts = np.diff(np.append(starts, length)).astype(np.float32)
        sums = np.add.reduceat(means, starts, axis=axis)
        means = sums / counts.reshape([-1 if dimension == axis else 1 for dimension in range(3)])
    return np.rint(means).astype(np.uint8)


def needs_sharp_copy(picture: NDArray[np.uint8]) -> bool:
    """Whether the display copy is a smaller one, and a file of the picture itself can be made."""
    size = picture.shape[:2]
    return _display_size(*size) != size and max(size) <= JPEG_SIDE


def sharp_copy(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n,) bytes of a JPEG file of the picture at its own resolution, a tenth or so of its pixels' bytes."""
    from PIL import Image  # here, because the first page does without Pillow

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=SHARP_QUALITY)
    return np.frombuffer(file.getvalue(), dtype=np.uint8)


def _display_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of the display copy, in proportion as far as ``PICTURE_SIDE`` allows."""
    shrink = min(1.0, math.sqrt(PICTURE_PIXELS / (height * width)))
    rows = min(max(int(height * shrink), 1), PICTURE_SIDE)
    return rows, min(max(int(width * shrink), 1), PICTURE_SIDE, PICTURE_PIXELS // rows)


def _picture_digest(view: PatchMaps) -> str:
    """Short fingerprint of picture and grid (see ``input_digest``)."""
    digest = hashlib.blake2b(np.ascontiguousarray(view.picture).tobytes(), digest_size=8)
    digest.update(repr((view.picture.shape, view.maps.shape[1:])).encode("ascii"))
    return digest.hexdigest()


def _check_matrix(view: MatrixView) -> None:
    shape = view.weights.shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"matrix_view_payload: weights must be (queries, keys) with at least one of each but is {shape}; "
            "give a single row of weights the shape (1, keys)."
        )
    if shape != (len(view.rows), len(view.columns)):
        raise ValueError(
            f"matrix_view_payload: rows and columns must be {shape[0]} and {shape[1]} labels but are "
            f"{len(view.rows)} and {len(view.columns)}; rows are queries, columns keys."
        )


def _check_patch_maps(view: PatchMaps) -> None:
    picture, maps = view.picture, view.maps
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
        raise ValueError(
            f"patch_map_payload: picture must be (height, width, 3) uint8 but is {picture.shape} {picture.dtype}; "
            "convert it to RGB."
        )
    if maps.ndim != 3 or maps.size == 0 or len(view.titles) != len(maps):
        raise ValueError(
            f"patch_map_payload: maps must be (panels, rows, columns) with a title each but is {maps.shape} with "
            f"{len(view.titles)} titles; add the axis of panels or the titles."
        )
