"""Bytes of a picture in, upright 8-bit sRGB pixels out, or one plain sentence that says why not.

What a file claims is checked before anything is decoded: its size in bytes, its format, and the pixels that its
header declares (so a few kilobytes cannot ask for gigabytes). Everything that was changed on the way (rotation,
colour profile, transparency, bit depth, size) is told in ``Picture.notes``. Needs Pillow and NumPy alone.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

MAX_BYTES = 40 * 2**20
"""Most bytes of an accepted file."""

MAX_PIXELS = 64_000_000
"""Most pixels that a header may declare (8,000 × 8,000)."""

LONGEST_SIDE = 4096
"""Larger pictures are reduced to this many pixels along their longer side."""

BACKGROUND = (255, 255, 255)
"""Transparent areas are laid on this colour (white)."""

ACCEPTED = "PNG, JPEG, WebP, GIF or TIFF"

_ORIENTATION, _PHOTOMETRIC = 274, 262  # EXIF and TIFF tags
_FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "TIFF",
)  # Pillow's JPEG plug-in also opens MPO, what many phones write
_DEEP_MODES = ("I", "F")  # and every I;16 variant: one channel of more than eight bits

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"\x00\x00\x01\x00", "an icon (ICO)"),
    (b"8BPS", "a Photoshop document"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%!PS", "a PostScript document"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
)

_BRANDS: tuple[tuple[bytes, str], ...] = (
    (b"avi", "an AVIF picture"),
    (b"hei", "a HEIC picture (as phones take them)"),
    (b"hev", "a HEIC picture (as phones take them)"),
    (b"mif", "a HEIC picture (as phones take them)"),
    (b"msf", "a HEIC picture (as phones take them)"),
)

# What Pillow's decoders raise on damaged files. A file comes from outside, so each is a refusal, never a crash.
_DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)


class PictureError(ValueError):
    """A file cannot be shown as a picture; the message is one sentence for the reader."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture.

    Attributes:
        pixels: (H, W, 3) uint8, upright, sRGB, read-only.
        name: what the file was called.
        sha256: of the file's bytes.
        notes: what was changed while reading.
    """

    pixels: NDArray[np.uint8]
    name: str
    sha256: str
    notes: tuple[str, ...] = ()


def read_picture(
    data: bytes,
    *,
    name: str = "",
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    longest_side: int = LONGEST_SIDE,
) -> Picture:
    """The picture in ``data``: upright (EXIF), 8 bits, sRGB, no transparency.

    PNG, JPEG (also CMYK and YCCK), WebP, GIF and TIFF (first frame or page) are read. One channel of 16 or 32 bits or
    of floating point is stretched from the range it really holds. A picture whose longer side exceeds
    ``longest_side`` is reduced.

    Args:
        data: the file's bytes.
        name: the file's name, for messages and for ``Picture.name``.
        max_pixels: most pixels that the header may declare; checked before decoding.
        max_bytes: most bytes of the file.
        longest_side: longer side of the largest picture that is kept as it is.
    Raises:
        PictureError: one sentence that says what came and what is accepted.
    """
    label = _label(name)
    if not data:
        raise PictureError(f"{label} is empty; choose a {ACCEPTED} picture.")
    if len(data) > max_bytes:
        raise PictureError(
            f"{label} has {len(data) / 2**20:.1f} MiB; at most {max_bytes / 2**20:.0f} MiB are read. Save it smaller."
        )
    notes: list[str] = []
    image = _opened(data, label, max_pixels)
    declared = image.size
    try:
        upright = _decoded(image, longest_side, notes)
        pixels = np.array(_reduced(_flattened(upright, notes), longest_side))  # (H, W, 3) uint8
    except _DECODING_ERRORS as error:
        raise PictureError(
            f"{label} is damaged or cut short and cannot be decoded ({_reason(error)}); save or download it again."
        ) from error
    height, width = pixels.shape[:2]
    if width * height < declared[0] * declared[1]:
        if (declared[0] > declared[1]) != (width > height):
            declared = declared[::-1]  # turned upright on the way
        notes.append(f"Reduced from {declared[0]:,} × {declared[1]:,} to {width:,} × {height:,} pixels.")
    pixels.flags.writeable = False
    return Picture(pixels, name, hashlib.sha256(data).hexdigest(), tuple(notes))


# Steps -----------------------------------------------------------------------------------------------------------


def _opened(data: bytes, label: str, max_pixels: int) -> Image.Image:
    """The image with its header read and checked, nothing decoded yet."""
    too_large = f"at most {max_pixels:,} pixels are read. Save it smaller."
    declared = _webp_size(data) or (0, 0)  # its decoder allocates when it is opened, so it is asked before
    if declared[0] * declared[1] > max_pixels:
        raise PictureError(f"{label} declares {declared[0]:,} × {declared[1]:,} pixels; {too_large}")
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"{label} declares far too many pixels; {too_large}") from error
    except UnidentifiedImageError as error:
        raise PictureError(f"{label} is {_what_came(data)}; {ACCEPTED} is accepted.") from error
    except _DECODING_ERRORS as error:
        raise PictureError(
            f"{label} has a damaged header ({_reason(error)}); save or download it again."
        ) from error
    width, height = image.size
    if width < 1 or height < 1:
        raise PictureError(f"{label} declares no pixels ({width} × {height}); save or download it again.")
    if width * height > max_pixels:
        raise PictureError(f"{label} declares {width:,} × {height:,} pixels; {too_large}")
    return image


def _decoded(image: Image.Image, longest_side: int, notes: list[str]) -> Image.Image:
    """The first frame, decoded and upright."""
    width, height = image.size
    if image.format == "JPEG" and max(width, height) > longest_side:
        shrink = (
            0.7 * longest_side / max(width, height)
        )  # decoded at a half, quarter or eighth that is no smaller
        image.draft(None, (max(1, round(width * shrink)), max(1, round(height * shrink))))
    if image.format != "MPO" and getattr(
        image, "is_animated", False
    ):  # an MPO's later frames belong to the camera
        notes.append(
            "Only the first page is used." if image.format == "TIFF" else "Only the first frame is used."
        )
        image.seek(0)
    tags: Any = image.tag_v2 if image.format == "TIFF" else {}  # type: ignore[attr-defined]
    turned_by_decoder = tags.get(_ORIENTATION) in range(2, 9)
    white_is_zero = tags.get(_PHOTOMETRIC) == 0
    image.load()
    if white_is_zero and _is_deep(image):  # Pillow inverts up to eight bits only
        image = _inverted(image)
    upright = _upright(image)
    if turned_by_decoder or upright is not image:
        notes.append("Turned upright by its orientation tag.")
    return upright


def _inverted(image: Image.Image) -> Image.Image:
    """A deep image with its range turned round (integers wrap on the way and come out right)."""
    values = np.asarray(image)
    finite = values[np.isfinite(values)]
    return Image.fromarray(finite.max() + finite.min() - values) if finite.size else image


def _upright(image: Image.Image) -> Image.Image:
    """The image turned by its EXIF orientation; itself when there is none that can be read."""
    try:
        turn = image.getexif().get(_ORIENTATION, 1) in range(2, 9)
        return ImageOps.exif_transpose(image) if turn else image
    except _DECODING_ERRORS:  # broken EXIF data do not make the pixels unreadable
        return image


def _flattened(image: Image.Image, notes: list[str]) -> Image.Image:
    """The image as opaque 8-bit sRGB."""
    if _is_deep(image):
        image = _stretched(image, notes)
    elif image.mode == "La":
        image = image.convert("LA")
    elif image.mode == "RGBa" or (image.has_transparency_data and image.mode not in ("LA", "RGBA")):
        image = image.convert("RGBA")
    elif image.mode == "P":
        image = image.convert("RGB")
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    if alpha is not None:
        image = image.convert(image.mode[:-1])
    colour = _srgb(image, notes)
    if alpha is None or alpha.getextrema()[0] == 255:
        return colour
    notes.append("Transparent areas are laid on white.")
    canvas = Image.new("RGB", colour.size, BACKGROUND)
    canvas.paste(colour, mask=alpha)
    return canvas


def _is_deep(image: Image.Image) -> bool:
    """Whether one channel holds more than eight bits."""
    return image.mode in _DEEP_MODES or image.mode.startswith("I;")


def _stretched(image: Image.Image, notes: list[str]) -> Image.Image:
    """One deep channel as 8-bit grey, its real range stretched to 0..255; transparent where the file says so."""
    values = np.asarray(image)  # (H, W) integers or float32
    key = image.info.get("transparency")
    visible = np.isfinite(values)
    if isinstance(key, int):
        visible &= values != key
    if not visible.any():
        notes.append("It holds no visible value; shown black.")
        return Image.new("L", image.size, 0)
    low, high = float(values[visible].min()), float(values[visible].max())
    depth = "Floating-point" if image.mode == "F" else f"{16 if image.mode.startswith('I;') else 32}-bit"
    if high > low:
        notes.append(f"{depth} greyscale: its range {low:,.6g} to {high:,.6g} is stretched to 0 to 255.")
    else:
        notes.append(f"{depth} greyscale: every value is {low:,.6g}; shown as middle grey.")
        low, high = low - 1.0, low + 1.0
    grey = np.zeros(values.shape, dtype=np.uint8)
    for top in range(
        0, len(values), 256
    ):  # in bands: a large picture would need eight times its size at once
        band = slice(top, top + 256)
        shares = (np.where(visible[band], values[band], low).astype(np.float64) - low) / (high - low)
        grey[band] = np.rint(shares * 255)
    stretched = Image.fromarray(grey)
    if isinstance(key, int):
        stretched.putalpha(Image.fromarray(visible.astype(np.uint8) * 255))
    elif not visible.all():
        notes.append("Values that are not finite are shown black.")
    return stretched


def _srgb(image: Image.Image, notes: list[str]) -> Image.Image:
    """The image in sRGB, through its own colour profile where it has one."""
    if image.mode == "LAB":
        notes.append("L*a*b* colours are converted to sRGB.")
        return _through(image, ImageCms.createProfile("LAB"))
    profile_bytes = image.info.get("icc_profile")
    if profile_bytes and image.mode in ("L", "RGB", "CMYK"):
        try:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(profile_bytes))
            description = " ".join(ImageCms.getProfileDescription(profile).split())
            if "srgb" in description.lower() and image.mode == "RGB":
                return image
            converted = _through(image, profile)
            if image.mode == "CMYK" or np.any(np.asarray(converted) != np.asarray(image.convert("RGB"))):
                notes.append(f"Colours are converted from the profile “{description[:60]}” to sRGB.")
            return converted
        except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
            notes.append("Its colour profile cannot be used; colours are taken as they are.")
    if image.mode == "CMYK":
        notes.append("CMYK colours are converted to RGB without a colour profile, so they are approximate.")
    return image if image.mode == "RGB" else image.convert("RGB")


def _through(image: Image.Image, profile: Any) -> Image.Image:
    """The image converted from ``profile`` to sRGB."""
    converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    assert converted is not None  # a copy is returned unless asked to work in place
    return converted


def _reduced(image: Image.Image, longest_side: int) -> Image.Image:
    """The image with its longer side at most ``longest_side``."""
    width, height = image.size
    if max(width, height) <= longest_side:
        return image
    shrink = longest_side / max(width, height)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


# Words -----------------------------------------------------------------------------------------------------------


def _label(name: str) -> str:
    """The file's name as a message shows it: quoted, on one line, not too long."""
    plain = "".join(character if character.isprintable() else " " for character in name).strip()
    return f"“{plain if len(plain) <= 80 else plain[:79] + '…'}”" if plain else "The file"


def _reason(error: BaseException) -> str:
    """An error's own words on one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 120 else words[:119] + "…"


def _what_came(data: bytes) -> str:
    """What a file that is no accepted picture seems to be, in words."""
    for signature, words in _SIGNATURES:
        if data.startswith(signature):
            return words
    if data[:2] == b"BM" and data[6:10] == bytes(4):
        return "a BMP picture"
    if data[4:8] == b"ftyp":
        return next((words for brand, words in _BRANDS if data[8:11] == brand), "a video or audio file")
    start = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<svg", b"<?xml", b"<!doctype svg")) and b"<svg" in start:
        return "an SVG drawing, which has no pixels"
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page or an XML document"
    if b"\0" not in data[:4096] and _is_text(data[:4096]):
        return "a text file"
    return "no picture that can be read"


def _is_text(data: bytes) -> bool:
    """Whether bytes read as UTF-8 text (the last character may be cut)."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(data) - 3 and error.reason == "unexpected end of data"
    return True


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that a WebP header declares; None for another format or a header too short."""
    if len(data) < 30 or data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None
