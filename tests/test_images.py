"""Every kind of picture file comes out upright and in its colours; every other file is refused in a sentence."""

from __future__ import annotations

import io
import resource
import struct
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from analysis.images import ACCEPTED, PictureError, read_picture

PATCHES = {"red": (220, 30, 40), "green": (40, 180, 60), "blue": (30, 60, 200), "yellow": (240, 220, 40)}


def patches(side: int = 32) -> np.ndarray:
    """(2·side, 2·side, 3): red, green above blue, yellow."""
    colours = np.array(list(PATCHES.values()), dtype=np.uint8).reshape(2, 2, 3)
    return colours.repeat(side, axis=0).repeat(side, axis=1)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def assert_patches(pixels: np.ndarray, *, tolerance: int) -> None:
    """The four patches stand where they should, each colour within ``tolerance`` of its own at the centre."""
    height, width = pixels.shape[:2]
    for index, colour in enumerate(PATCHES.values()):
        row, column = divmod(index, 2)
        centre = pixels[height * (1 + 2 * row) // 4, width * (1 + 2 * column) // 4].astype(int)
        assert np.abs(centre - np.array(colour)).max() <= tolerance, (colour, centre)


# Formats and colour --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("JPEG", {"quality": 95}, 4),
        ("WEBP", {"lossless": True}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("TIFF", {"compression": "jpeg"}, 60),
        ("GIF", {}, 0),
        ("MPO", {}, 12),
    ],
)
def test_each_accepted_format_keeps_its_colours(kind, options, tolerance):
    data = saved(Image.fromarray(patches()), kind, **options)
    picture = read_picture(data, name="patches")
    assert picture.pixels.shape == (64, 64, 3)
    assert picture.pixels.dtype == np.uint8
    assert not picture.pixels.flags.writeable
    assert picture.notes == ()
    assert_patches(picture.pixels, tolerance=tolerance)


def test_the_digest_is_of_the_files_bytes():
    import hashlib

    data = saved(Image.fromarray(patches()), "PNG")
    assert read_picture(data, name="a.png").sha256 == hashlib.sha256(data).hexdigest()
    assert read_picture(data, name="a.png").name == "a.png"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_every_orientation_comes_out_upright(kind, orientation):
    """I1. The stored picture is turned by the inverse of what the tag asks for, so upright is the original."""
    upright = patches()[:, :48]  # not square: swapped sides would show
    store = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),  # shown turned clockwise
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 97, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = Image.fromarray(np.ascontiguousarray(store[orientation](upright)))
    picture = read_picture(saved(stored, kind, exif=exif, **options))
    assert picture.pixels.shape == upright.shape
    off = np.abs(picture.pixels.astype(int) - upright.astype(int))
    assert np.percentile(off, 90) <= (8 if kind == "JPEG" else 0)
    assert any("upright" in note for note in picture.notes) == (orientation > 1)


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_that_means_nothing_is_ignored(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_picture(saved(Image.fromarray(patches()), "PNG", exif=exif))
    assert np.array_equal(picture.pixels, patches())


def test_broken_exif_data_leave_the_pixels_readable():
    data = bytearray(
        saved(Image.fromarray(patches()), "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    )
    assert_patches(read_picture(bytes(data)).pixels, tolerance=4)


def cmyk(pixels: np.ndarray) -> np.ndarray:
    """(H, W, 4) ink of each pixel, with black taken out."""
    black = 255 - pixels.max(axis=-1, keepdims=True).astype(int)
    ink = (255 - black - pixels) * 255 / np.maximum(255 - black, 1)
    return np.concatenate([np.rint(ink), black], axis=-1).astype(np.uint8)


def test_cmyk_jpeg_has_its_colours():
    """I11: Adobe writers store CMYK inverted."""
    data = saved(Image.fromarray(cmyk(patches()), mode="CMYK"), "JPEG", quality=97, subsampling=0)
    assert b"Adobe" in data
    picture = read_picture(data)
    assert_patches(picture.pixels, tolerance=8)
    assert any("CMYK" in note for note in picture.notes)


def test_ycck_jpeg_has_its_colours():
    """I11. The four planes are written as they stand in a YCCK file, then the Adobe marker says "YCCK" (2)."""
    ink = cmyk(patches())
    as_rgb = Image.fromarray(
        np.ascontiguousarray(ink[..., :3])
    )  # YCCK is YCbCr of what the file calls C, M, Y
    ycc = np.asarray(as_rgb.convert("YCbCr"))
    planes = np.concatenate([ycc, 255 - ink[..., 3:]], axis=-1)  # K is stored inverted
    data = bytearray(saved(Image.fromarray(255 - planes, mode="CMYK"), "JPEG", quality=98, subsampling=0))
    marker = data.index(b"\xff\xee")
    assert data[marker + 4 : marker + 9] == b"Adobe"
    assert data[marker + 15] == 0
    data[marker + 15] = 2
    assert_patches(read_picture(bytes(data)).pixels, tolerance=8)


def test_cmyk_tiff_has_its_colours():
    picture = read_picture(saved(Image.fromarray(cmyk(patches()), mode="CMYK"), "TIFF"))
    assert_patches(picture.pixels, tolerance=3)


def swapped_profile() -> bytes:
    """An sRGB profile whose red and blue primaries have changed places."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {}
    for index in range(struct.unpack(">I", profile[128:132])[0]):
        name, offset, size = struct.unpack(">4sII", profile[132 + 12 * index : 144 + 12 * index])
        tags[name] = slice(offset, offset + size)
    red, blue = bytes(profile[tags[b"rXYZ"]]), bytes(profile[tags[b"bXYZ"]])
    profile[tags[b"rXYZ"]], profile[tags[b"bXYZ"]] = blue, red
    description = profile[tags[b"desc"]]
    for text in ("sRGB".encode("utf-16-be"), b"sRGB"):
        description = description.replace(text, text.replace(b"s", b"x", 1))
    profile[tags[b"desc"]] = description
    return bytes(profile)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_colour_profile_is_honoured(kind):
    options = {"JPEG": {"quality": 97, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    swapped = Image.fromarray(np.ascontiguousarray(patches()[..., ::-1]))
    picture = read_picture(saved(swapped, kind, icc_profile=swapped_profile(), **options))
    assert_patches(picture.pixels, tolerance=8)
    assert any("profile" in note for note in picture.notes)


def test_a_profile_with_transparency_converts_the_colour_alone():
    rgba = np.dstack([patches()[..., ::-1], np.full((64, 64), 255, np.uint8)])
    rgba[:, :1, 3] = 0
    picture = read_picture(saved(Image.fromarray(rgba), "PNG", icc_profile=swapped_profile()))
    assert_patches(picture.pixels, tolerance=8)
    assert (picture.pixels[:, 0] == 255).all()


def test_an_srgb_profile_changes_nothing():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = read_picture(saved(Image.fromarray(patches()), "PNG", icc_profile=profile))
    assert np.array_equal(picture.pixels, patches())
    assert picture.notes == ()


def test_a_broken_profile_is_told_and_the_picture_stays():
    picture = read_picture(saved(Image.fromarray(patches()), "PNG", icc_profile=b"not a profile at all" * 20))
    assert np.array_equal(picture.pixels, patches())
    assert any("profile cannot be used" in note for note in picture.notes)


# Depth, palettes, transparency -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "RGB"])
def test_every_mode_gives_three_channels(mode):
    """I2, I4."""
    source = Image.fromarray(patches()).convert(mode)
    picture = read_picture(saved(source, "PNG"))
    expected = np.asarray(source.convert("RGB"))
    assert np.array_equal(picture.pixels, expected)


@given(
    low=st.integers(0, 60_000),
    span=st.integers(1, 5_535),
    kind=st.sampled_from(["PNG", "TIFF"]),
)
@settings(max_examples=30)
def test_sixteen_bit_grey_is_stretched_from_its_real_range(low, span, kind):
    """I7: nothing is cut at 255."""
    values = (low + np.linspace(0, span, 64).round()).astype(np.uint16).reshape(8, 8)
    picture = read_picture(saved(Image.fromarray(values), kind))
    expected = np.rint((values.astype(float) - low) / span * 255)
    assert np.abs(picture.pixels[..., 0] - expected).max() <= 1
    assert picture.pixels.min() == 0
    assert picture.pixels.max() == 255
    assert any("16-bit" in note and "stretched" in note for note in picture.notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.linspace(-0.5, 2.0, 12, dtype=np.float32), "Floating-point"),
        (np.linspace(-1e38, 3e38, 12).astype(np.float32), "Floating-point"),
        (np.linspace(-70_000, 90_000, 12).astype(np.int32), "32-bit"),
    ],
)
def test_deep_tiff_is_stretched(values, words):
    picture = read_picture(saved(Image.fromarray(values.reshape(3, 4)), "TIFF"))
    shares = (values.astype(float) - float(values[0])) / (float(values[-1]) - float(values[0]))
    assert np.abs(picture.pixels[..., 1].ravel() - shares * 255).max() <= 1
    assert any(words in note for note in picture.notes)


def test_values_that_are_not_finite_do_not_spoil_the_range():
    values = np.array([[np.nan, 1.0, 2.0], [np.inf, -np.inf, 3.0]], dtype=np.float32)
    picture = read_picture(saved(Image.fromarray(values), "TIFF"))
    assert picture.pixels[..., 0].tolist() == [[0, 0, 128], [0, 0, 255]]
    assert any("not finite" in note for note in picture.notes)
    nothing = read_picture(saved(Image.fromarray(values[:, :1]), "TIFF"))
    assert (nothing.pixels == 0).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_a_constant_deep_picture_is_middle_grey(dtype):
    picture = read_picture(saved(Image.fromarray(np.full((4, 5), 300, dtype)), "TIFF"))
    assert set(np.unique(picture.pixels)) <= {127, 128}
    assert any("every value is 300" in note for note in picture.notes)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_tiff_in_which_white_is_zero_is_not_a_negative(dtype):
    top = 255 if dtype == np.uint8 else 1000
    values = (np.linspace(0, 1, 16) * top).astype(dtype).reshape(4, 4)
    data = saved(Image.fromarray(values), "TIFF", tiffinfo={262: 1})
    entry = data.index(
        struct.pack("<HHI", 262, 3, 1)
    )  # turn "black is zero" into "white is zero" in the file
    inverted = data[: entry + 8] + struct.pack("<H", 0) + data[entry + 10 :]
    normal, negative = read_picture(data).pixels.astype(int), read_picture(inverted).pixels.astype(int)
    assert np.abs(normal + negative - 255).max() <= 1


def test_transparent_areas_are_laid_on_white():
    """I4."""
    rgba = np.dstack([patches(), np.full((64, 64), 255, np.uint8)])
    rgba[:32, :32, 3] = 0
    rgba[:32, 32:, 3] = 128
    for kind in ("PNG", "WEBP", "TIFF"):
        options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
        picture = read_picture(saved(Image.fromarray(rgba), kind, **options))
        assert (picture.pixels[:32, :32] == 255).all()
        green = np.array(PATCHES["green"])
        assert np.abs(picture.pixels[8, 40] - (green * 128 + 255 * 127) / 255).max() <= 1
        assert picture.pixels[40, 8].tolist() == list(PATCHES["blue"])
        assert any("white" in note for note in picture.notes)


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "I;16"])
def test_a_transparent_colour_is_laid_on_white(mode):
    """A palette entry, a grey or a colour that the file declares transparent."""
    values = np.arange(16, dtype=np.uint8).reshape(4, 4)
    if mode == "P":
        image = Image.fromarray(values, mode="P")
        image.putpalette([channel for level in range(256) for channel in (level, 0, 0)])
        key: object = 3
    elif mode == "RGB":
        image, key = Image.fromarray(values).convert("RGB"), (3, 3, 3)
    else:
        image, key = Image.fromarray(values.astype(np.uint16) if mode == "I;16" else values), 3
    picture = read_picture(saved(image, "PNG", transparency=key))
    assert picture.pixels[0, 3].tolist() == [255, 255, 255]
    assert picture.pixels[0, 1].tolist() != [255, 255, 255]
    assert any("white" in note for note in picture.notes)


def test_grey_with_transparency():
    pair = np.dstack([np.full((4, 4), 40, np.uint8), np.full((4, 4), 255, np.uint8)])
    pair[0, 0, 1] = 0
    picture = read_picture(saved(Image.fromarray(pair, mode="LA"), "PNG"))
    assert picture.pixels[0, 0].tolist() == [255, 255, 255]
    assert picture.pixels[1, 1].tolist() == [40, 40, 40]


def test_opaque_transparency_is_not_mentioned():
    rgba = np.dstack([patches(), np.full((64, 64), 255, np.uint8)])
    assert read_picture(saved(Image.fromarray(rgba), "PNG")).notes == ()


# Frames and sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_frame_is_used_and_told(kind):
    first = Image.fromarray(patches())
    second = Image.fromarray(np.ascontiguousarray(patches()[::-1]))
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = read_picture(saved(first, kind, save_all=True, append_images=[second], **options))
    assert_patches(picture.pixels, tolerance=0)
    assert any("first" in note for note in picture.notes)


@pytest.mark.parametrize("size", [(1, 1), (1, 60), (60, 1)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF"])
def test_tiny_and_thin_pictures_are_read(size, kind):
    """I5, G10."""
    picture = read_picture(saved(Image.new("RGB", size, (200, 10, 10)), kind))
    assert picture.pixels.shape == (size[1], size[0], 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_large_picture_is_reduced_and_told(kind):
    large = Image.fromarray(patches(400))
    picture = read_picture(saved(large, kind), longest_side=200)
    assert picture.pixels.shape == (200, 200, 3)
    assert_patches(picture.pixels, tolerance=6)
    assert picture.notes == ("Reduced from 800 × 800 to 200 × 200 pixels.",)


def test_a_large_turned_picture_tells_upright_sizes():
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = read_picture(saved(Image.new("RGB", (800, 400)), "JPEG", exif=exif), longest_side=100)
    assert picture.pixels.shape == (100, 50, 3)
    assert "Reduced from 400 × 800 to 50 × 100 pixels." in picture.notes


# Refusals --------------------------------------------------------------------------------------------------------


def chunk(name: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def declared_png(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that declares any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(2_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def declared_webp(width: int, height: int) -> bytes:
    """An extended WebP header that declares any size."""
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4)
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body)) + body


def declared_gif(width: int, height: int) -> bytes:
    data = bytearray(saved(Image.new("P", (4, 4)), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def declared_tiff(width: int, height: int) -> bytes:
    data = bytearray(saved(Image.new("L", (4, 4)), "TIFF"))
    for tag, value in ((256, width), (257, height)):
        entry = data.index(struct.pack("<HHI", tag, 4, 1))
        data[entry + 8 : entry + 12] = struct.pack("<I", value)
    return bytes(data)


def declared_jpeg(width: int, height: int) -> bytes:
    data = bytearray(saved(Image.new("RGB", (4, 4)), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        declared_png(50_000, 50_000),
        declared_png(9_000, 9_000),  # above our limit, below Pillow's
        declared_png(12_000, 9_000),  # Pillow would only warn
        declared_webp(16_383, 16_383),
        declared_webp(16_777_216, 16_777_216),
        declared_gif(50_000, 50_000),
        declared_tiff(50_000, 50_000),
        declared_tiff(9_000, 9_000),
        declared_jpeg(50_000, 50_000),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_on_its_header(data):
    """I10: before decoding, with no memory taken."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PictureError, match="pixels are read"):
        read_picture(data, name="bomb")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB


def test_pillows_own_limit_is_respected_and_left_alone(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(PictureError, match="far too many pixels"):
        read_picture(saved(Image.new("L", (40, 40)), "PNG"))
    assert Image.MAX_IMAGE_PIXELS == 100


def test_the_limits_are_parameters():
    data = saved(Image.new("L", (40, 40)), "PNG")
    with pytest.raises(PictureError, match=r"declares 40 × 40 pixels; at most 1,000 pixels are read"):
        read_picture(data, max_pixels=1000)
    with pytest.raises(PictureError, match="MiB are read"):
        read_picture(data, max_bytes=20)


FULL = {
    "PNG": {},
    "JPEG": {"quality": 95},
    "WEBP": {"lossless": True},
    "GIF": {},
    "TIFF": {"compression": "tiff_lzw"},
}


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.5, 0.9])
def test_a_file_cut_short_is_refused_in_one_line(kind, share):
    """I8."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), kind, **FULL[kind])
    with pytest.raises(PictureError) as refusal:
        read_picture(data[: int(len(data) * share)], name=f"cut.{kind.lower()}")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert read_picture(data).pixels.shape == (64, 64, 3)  # and the next one is read


FLIPS = st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=12)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(kind=st.sampled_from(list(FULL)), flips=FLIPS)
@settings(max_examples=150)
def test_a_damaged_file_gives_a_picture_or_a_refusal_and_nothing_else(kind, flips):
    data = bytearray(DAMAGED[kind])
    for place, value in flips:
        data[int(place * len(data))] = value
    try:
        picture = read_picture(bytes(data), max_pixels=4_000_000)
    except PictureError:
        return
    assert picture.pixels.dtype == np.uint8
    assert picture.pixels.ndim == 3


DAMAGED = {kind: saved(Image.fromarray(patches(10)), kind, **options) for kind, options in FULL.items()}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is text", "a text file"),
        ("schön".encode() * 2000, "a text file"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "an SVG drawing"),
        (b'<?xml version="1.0"?>\n<!-- x --><svg></svg>', "an SVG drawing"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(40), "a HEIC picture"),
        (b"\x00\x00\x00\x18ftypmif1" + bytes(40), "a HEIC picture"),
        (b"\x00\x00\x00\x18ftypavif" + bytes(40), "an AVIF picture"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(40), "a video"),
        (b"%PDF-1.7\n" + bytes(40), "a PDF document"),
        (saved(Image.new("RGB", (3, 3)), "BMP"), "a BMP picture"),
        (saved(Image.new("RGB", (3, 3)), "ICO", sizes=[(3, 3)]), "an icon"),
        (saved(Image.new("RGB", (3, 3)), "JPEG2000"), "a JPEG 2000 picture"),
        (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
        (bytes(range(128, 256)) * 4, "no picture"),
    ],
)
def test_what_is_no_picture_is_named(data, words):
    with pytest.raises(PictureError) as refusal:
        read_picture(data, name="thing")
    assert words in str(refusal.value)
    assert ACCEPTED in str(refusal.value)
    assert str(refusal.value).startswith("“thing” ")


def test_a_hostile_name_stays_on_one_short_line():
    with pytest.raises(PictureError) as refusal:
        read_picture(b"", name="a\nb\x00\u202e" + "x" * 5000)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


def test_threads_read_side_by_side():
    files = [saved(Image.fromarray(np.full((40, 40 + i, 3), 20 * i, np.uint8)), "PNG") for i in range(8)]
    wrong: list[int] = []

    def read(index: int) -> None:
        for _ in range(20):
            pixels = read_picture(files[index]).pixels
            if pixels.shape != (40, 40 + index, 3) or (pixels != 20 * index).any():
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
