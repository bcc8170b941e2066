"""How a picture becomes a model's pixel values: sizes, the crop, and the numbers that an image processor holds.

Pictures are resized by Pillow, as the library's own Pillow processors do, so the result does not depend on which
other imaging library happens to be installed, and the 8-bit picture that is returned is exactly what the model saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # (height, width)
Channels = tuple[float, float, float]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

MAX_RESIZED_PIXELS = 64_000_000
"""Most pixels of a picture between resizing and cropping; only very thin pictures reach it."""

# Steps of some image processors that are not reproduced here.
_OTHER_STEPS = ("do_pad", "do_flip_channel_order", "do_align_long_axis", "do_thumbnail", "crop_pct")


@dataclass(frozen=True)
class Preparation:
    """What an image processor does to a picture.

    Attributes:
        size: its target size as named numbers (``height`` and ``width``, ``shortest_edge`` ...); empty for no resize.
        crop: (height, width) cut from the middle afterwards, or None.
        resample: Pillow's number of the interpolation.
        factor: pixel values are multiplied by it.
        mean, std: of each channel, subtracted and divided by afterwards.
        other_steps: steps of the processor that this record does not hold.
    """

    size: Mapping[str, int]
    crop: Size | None
    resample: int
    factor: float
    mean: Channels
    std: Channels
    other_steps: tuple[str, ...] = ()


def preparation_of(processor: Any, *, mean: Channels, std: Channels) -> Preparation:
    """The numbers of an image processor; ``mean`` and ``std`` stand in where there is no processor."""
    if processor is None:
        return Preparation({}, None, Image.Resampling.BICUBIC, 1 / 255, mean, std)
    processor = getattr(
        processor, "image_processor", processor
    )  # a processor of pictures and texts holds one
    crop = (
        _named(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", False) else {}
    )
    resample = getattr(processor, "resample", None)
    normalised = getattr(processor, "do_normalize", False)
    return Preparation(
        size=_named(getattr(processor, "size", None)) if getattr(processor, "do_resize", False) else {},
        crop=(crop["height"], crop["width"]) if crop else None,
        resample=int(Image.Resampling.BILINEAR if resample is None else resample),
        factor=float(processor.rescale_factor) if getattr(processor, "do_rescale", False) else 1.0,
        mean=_channels(processor.image_mean) if normalised else (0.0, 0.0, 0.0),
        std=_channels(processor.image_std) if normalised else (1.0, 1.0, 1.0),
        other_steps=tuple(step for step in _OTHER_STEPS if getattr(processor, step, None)),
    )


def resized(pixels: Pixels, size: Size, resample: int) -> Pixels:
    """(height, width, 3) picture of that size.

    Raises:
        ValueError: if it would be larger than ``MAX_RESIZED_PIXELS``.
    """
    if size[0] * size[1] > MAX_RESIZED_PIXELS:
        raise ValueError(
            f"encode_image: a picture of {_by(pixels.shape[:2])} would have to be resized to {_by(size)} for this "
            "model; crop it to a less extreme shape."
        )
    if pixels.shape[:2] == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling(resample)))


def fitted(pixels: Pixels, preparation: Preparation) -> tuple[Pixels, list[str]]:
    """The picture resized and cropped as the processor does, and what that did to it in words."""
    before = pixels.shape[:2]
    size = target_size(before, preparation.size)
    picture = resized(pixels, size, preparation.resample)
    notes = [_resize_note(before, size)] if size != before else []
    if preparation.crop is not None and preparation.crop != size:
        picture = _centre_crop(picture, preparation.crop)
        notes.append(_crop_note(size, preparation.crop))
    return picture, notes


def normalised(picture: Pixels, preparation: Preparation) -> NDArray[np.float32]:
    """(3, height, width) values that enter the model: rescaled, mean taken off, divided by the deviation."""
    scaled = (picture.astype(np.float64) * preparation.factor).astype(np.float32)
    mean, std = np.array(preparation.mean, dtype=np.float32), np.array(preparation.std, dtype=np.float32)
    values: NDArray[np.float32] = np.ascontiguousarray(((scaled - mean) / std).transpose(2, 0, 1))
    return values


def denormalised(values: NDArray[np.float32], preparation: Preparation) -> Pixels:
    """(height, width, 3) picture that a processor's (3, height, width) values stand for."""
    mean, std = np.array(preparation.mean), np.array(preparation.std)
    picture: Pixels = np.rint((values.transpose(1, 2, 0) * std + mean) / preparation.factor)
    return np.clip(picture, 0, 255).astype(np.uint8)


def target_size(before: Size, size: Mapping[str, int]) -> Size:
    """(height, width) after the resize that ``size`` names, by the rules of the library."""
    height, width = before
    shortest, longest = size.get("shortest_edge"), size.get("longest_edge")
    if shortest and longest:
        return _between(before, shortest, longest)
    if shortest:
        long = int(shortest * max(before) / min(before))
        return (long, shortest) if width <= height else (shortest, long)
    if size.get("max_height") and size.get("max_width"):
        scale = min(size["max_height"] / height, size["max_width"] / width)
        return max(1, int(height * scale)), max(1, int(width * scale))
    if size.get("height") and size.get("width"):
        return size["height"], size["width"]
    if size:
        raise ValueError(
            f"encode_image: the image processor's size must name height and width or an edge but is {dict(size)}."
        )
    return before


def patch_aligned_size(before: Size, patch: int, *, side: int, most_patches: int) -> tuple[Size, list[str]]:
    """(height, width) in whole patches that keeps the picture's shape as well as patches allow, and notes.

    The shorter side becomes ``side`` rounded down to whole patches, the longer one follows, rounded to the nearest.

    Args:
        before: (height, width) of the picture.
        patch: side of a patch in pixels.
        side: wished length of the shorter side in pixels.
        most_patches: both sides are reduced until there are no more patches than this.
    """
    height, width = before
    short = max(side // patch, 1)
    long = _longer(short, before)
    notes = []
    if short * patch != side:
        notes.append(f"{side} is no multiple of the patch size {patch}: {short * patch} pixels are used.")
    if short * long > most_patches:
        while short > 1 and short * long > most_patches:
            short -= 1
            long = _longer(short, before)
        long = min(long, most_patches)
        notes.append(f"Reduced to {short} × {long} patches: at most {most_patches:,} are taken.")
    rows, columns = (short, long) if height <= width else (long, short)
    size = (rows * patch, columns * patch)
    if size != before:
        notes.insert(0, _resize_note(before, size))
    return size, notes


def _longer(short: int, before: Size) -> int:
    """Patches along the longer side when the shorter has ``short``."""
    return max(round(short * max(before) / min(before)), short)


def _between(before: Size, shortest: int, longest: int) -> Size:
    """Size whose shorter edge is ``shortest`` unless the longer would exceed ``longest``."""
    height, width = before
    short, long = float(min(before)), float(max(before))
    exact: float | None = None
    if long / short * shortest > longest:
        exact = longest * short / long
        shortest = round(exact)
    if (height <= width and height == shortest) or (width <= height and width == shortest):
        return before
    other = int((exact if exact is not None else shortest) * long / short)
    return (other, shortest) if width < height else (shortest, other)


def _centre_crop(picture: Pixels, crop: Size) -> Pixels:
    """The middle of a picture, black around it where it is too small."""
    height, width = picture.shape[:2]
    canvas_size = (max(crop[0], height), max(crop[1], width))
    top_pad, left_pad = math.ceil((canvas_size[0] - height) / 2), math.ceil((canvas_size[1] - width) / 2)
    canvas = np.zeros((*canvas_size, 3), dtype=np.uint8)
    canvas[top_pad : top_pad + height, left_pad : left_pad + width] = picture
    top = max(0, (height - crop[0]) // 2 + top_pad)
    left = max(0, (width - crop[1]) // 2 + left_pad)
    return canvas[top : top + crop[0], left : left + crop[1]]


def _resize_note(before: Size, after: Size) -> str:
    """What a resize did, the change of shape included."""
    stretch = (after[1] / before[1]) / (after[0] / before[0])  # of the width, relative to the height
    note = f"Resized from {_by(before)} to {_by(after)} pixels"
    change = max(stretch, 1 / stretch) - 1
    if change < 0.0005:
        return note + "."
    return note + f"; {'width' if stretch > 1 else 'height'} stretched by {change:.2%}."


def _crop_note(before: Size, crop: Size) -> str:
    """What a centre crop left out or put around."""
    lost = 1 - min(crop[0], before[0]) * min(crop[1], before[1]) / (before[0] * before[1])
    note = f"The middle {_by(crop)} pixels are used"
    if crop[0] > before[0] or crop[1] > before[1]:
        note += ", with black around the picture"
    return note + (f"; {lost:.0%} of the picture at the edges is not seen." if lost >= 0.005 else ".")


def _by(size: tuple[int, ...]) -> str:
    """A (height, width) as people say it, width first."""
    return f"{size[1]:,} × {size[0]:,}"


def _named(size: Any) -> dict[str, int]:
    """The set numbers of a processor's size record."""
    names = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
    if size is None:
        return {}
    if isinstance(size, int):
        return {"height": size, "width": size}
    values = {
        name: size.get(name) if isinstance(size, Mapping) else getattr(size, name, None) for name in names
    }
    return {name: int(value) for name, value in values.items() if value is not None}


def _channels(values: Any) -> Channels:
    """Three numbers, from one or from three."""
    numbers = [float(value) for value in values] if isinstance(values, (list, tuple)) else [float(values)] * 3
    return numbers[0], numbers[-2], numbers[-1]
