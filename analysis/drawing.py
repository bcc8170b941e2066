"""What every exported picture is drawn with: a sheet of paper on matplotlib. The only file that imports matplotlib.

Only the object interface (``matplotlib.figure.Figure``) is used, never pyplot, so that sessions in several threads do
not meet in a shared current figure; matplotlib's settings are process-wide, so one lock (``settings``) holds them
while a file is drawn. Everything is placed in inches from the top left corner. Text is never read as mathematics.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from analysis.raster import Pixels

DOTS_PER_INCH = 200

INK, MUTED, FAINT, PAPER = "#22262b", "#69717c", "#d3d7dc", "#ffffff"
TEXT_SIZE = 8.0  # points

COLOUR_MAPS: Mapping[str, str] = {
    "viridis": "viridis",
    "cividis": "cividis",
    "magma": "magma",
    "greys": "Greys",
}

BASE_FAMILY = "DejaVu Sans"  # comes with matplotlib; Latin, Greek, Cyrillic, Arabic, Hebrew, symbols
LAST_FAMILY = "Last Resort High-Efficiency"  # comes with matplotlib; a box that names the script

PREFERRED_FAMILIES: tuple[str, ...] = (
    *("Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei"),
    *("PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "SimHei"),
    *(
        "Arial Unicode MS",
        "Noto Naskh Arabic",
        "Noto Sans Arabic",
        "Noto Sans Hebrew",
        "Noto Sans Devanagari",
    ),
    *(
        "Lohit Devanagari",
        "Nirmala UI",
        "Mangal",
        "Noto Sans Thai",
        "Noto Emoji",
        "Symbola",
        "Segoe UI Symbol",
    ),
)
"""Families tried first for characters that the base font lacks; after them any other regular font of the machine."""

_PNG_OPTIONS: Mapping[str, int] = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""Run-length coding: half the time of zlib's usual level on anti-aliased lines, and no larger."""

_SETTINGS_LOCK = threading.Lock()

_SETTINGS: Mapping[str, Any] = {
    "font.sans-serif": [BASE_FAMILY],
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "attnscope",  # the same figure gives the same bytes
    "pdf.fonttype": 42,  # TrueType, so text can be searched and edited
    "image.composite_image": False,
    "text.parse_math": False,
    "axes.unicode_minus": False,
}


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """matplotlib with our settings alone, whatever a user's matplotlibrc says; one thread at a time."""
    with _SETTINGS_LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()
        parameters: dict[str, Any] = matplotlib.rcParams  # type: ignore[assignment]  # keys are spelt out there
        parameters.update(_SETTINGS)
        yield


# Fonts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fonts:
    """Families that draw a figure's text, tried in order, and the characters that none of them has."""

    families: tuple[str, ...]
    missing: str

    def chosen(self, text: str, *, bold: bool) -> tuple[str, ...]:
        """Families for one text; bold is for Latin letters and their punctuation alone, which the base family has."""
        plain = all(character < "\u0250" or "\u2010" <= character <= "\u2026" for character in text)
        return (BASE_FAMILY, "bold") if bold and plain else self.families

    def width(self, text: str, size: float, *, bold: bool = False) -> float:
        """Width of a line of text in inches."""
        return _unit_width(text, self.chosen(text, bold=bold)) * size / 72


def _properties(families: tuple[str, ...], size: float) -> FontProperties:
    bold = families[-1] == "bold"
    names = families[:-1] if bold else families
    return FontProperties(family=list(names), size=size, weight="bold" if bold else "normal")


@functools.lru_cache(maxsize=4096)
def _unit_width(text: str, families: tuple[str, ...]) -> float:
    """Width of a text set at size 1."""
    if not text:
        return 0.0
    extent = text_to_path.get_text_width_height_descent(text, _properties(families, 100.0), ismath=False)
    return float(extent[0]) / 100


@functools.lru_cache(maxsize=4096)
def _outline(text: str, families: tuple[str, ...]) -> Path:
    """Outlines of a text set at size 100, from the left end of its baseline."""
    vertices, codes = text_to_path.get_text_path(_properties(families, 100.0), text, ismath=False)
    return Path(np.asarray(vertices).reshape(-1, 2), codes or None, readonly=True)


class _Label(Text):
    """One line of text that is not laid out a second time when drawn, since its width is already known.

    matplotlib's own ``Text`` takes about 3 ms a label, which a figure with a thousand tokens cannot afford. In a
    raster file the glyphs' outlines are filled (kept for the next figure); in SVG and PDF the text stays text.
    """

    def __init__(
        self, x: float, y: float, text: str, families: tuple[str, ...], size: float, **style: Any
    ) -> None:
        super().__init__(
            x,
            y,
            text,
            fontproperties=_properties(families, size),
            rotation_mode="anchor",
            parse_math=False,
            **style,
        )
        self._families = families

    def draw(self, renderer: Any) -> None:
        """Draw from the anchor by the known width; the middle of the letters is at the anchor's height."""
        size, angle = float(self.get_fontsize()), np.deg2rad(self.get_rotation())
        pixels = renderer.points_to_pixels(1.0)
        width = _unit_width(self.get_text(), self._families) * size * pixels
        along = {"left": 0.0, "center": -0.5, "right": -1.0}[self.get_horizontalalignment()] * width
        below = 0.36 * size * pixels  # half the height of a capital
        x, y = self.get_transform().transform(self.get_unitless_position())
        x += along * np.cos(angle) + below * np.sin(angle)
        y += along * np.sin(angle) - below * np.cos(angle)
        gc = renderer.new_gc()
        gc.set_foreground(matplotlib.colors.to_rgba(self.get_color()), isRGBA=True)
        if isinstance(renderer, RendererAgg):
            scale = size * pixels / 100
            place = Affine2D().scale(scale).rotate(angle).translate(x, y)
            gc.set_linewidth(0.0)
            gc.set_snap(False)  # a full stop is a rectangle, which would be moved to whole pixels
            outline = _outline(self.get_text(), self._families)
            renderer.draw_path(gc, outline, place, gc.get_rgb())  # type: ignore[no-untyped-call]
        else:
            top = renderer.get_canvas_width_height()[1] - y if renderer.flipy() else y
            renderer.draw_text(
                gc,
                x,
                top,
                self.get_text(),
                self.get_fontproperties(),
                self.get_rotation(),
                ismath=False,
                mtext=self,
            )
        gc.restore()
        self.stale = False


def find_fonts(text: str) -> Fonts:
    """Families on this machine that together hold the characters of a text; the base family first.

    A font counts only if matplotlib can open it (colour-bitmap emoji fonts often cannot be drawn).
    """
    base = {entry.fname for entry in fontManager.ttflist if entry.name == BASE_FAMILY and _is_regular(entry)}
    missing = {character for character in text if not character.isspace()}
    for path in base:
        missing -= _covered(path, missing)
    families = [BASE_FAMILY]
    for name, path in _other_fonts():
        if not missing:
            break
        found = _covered(path, missing)
        if found:
            families.append(name)
            missing -= found
    return Fonts((*families, "sans-serif", LAST_FAMILY), "".join(sorted(missing)))


@functools.lru_cache(maxsize=1)
def _other_fonts() -> tuple[tuple[str, str], ...]:
    """(family, path) of every other regular font of the machine, preferred families first."""
    passed_over = {BASE_FAMILY, LAST_FAMILY}
    entries = {
        entry.name: entry.fname
        for entry in fontManager.ttflist
        if _is_regular(entry) and entry.name not in passed_over and not entry.name.startswith(("STIX", "cm"))
    }
    order = {name: rank for rank, name in enumerate(PREFERRED_FAMILIES)}
    return tuple(sorted(entries.items(), key=lambda entry: (order.get(entry[0], len(order)), entry[0])))


def _is_regular(entry: Any) -> bool:
    return (
        entry.style == "normal"
        and entry.weight in (400, "normal", "regular")
        and entry.stretch in (400, "normal")
    )


def _covered(path: str, characters: Iterable[str]) -> set[str]:
    """Characters for which a font file has a glyph; none when the file cannot be opened."""
    try:
        font = get_font(path)
        return {character for character in characters if font.get_char_index(ord(character)) != 0}
    except (OSError, RuntimeError):  # FreeType's own complaint about a damaged or colour-only file
        return set()


DotShape = Literal["circle", "diamond", "square", "triangle"]

_DOTS: Mapping[DotShape, Path] = {
    "circle": Path.unit_circle(),
    "diamond": Path.unit_regular_polygon(4),
    "square": Path.unit_rectangle().transformed(Affine2D().translate(-0.5, -0.5).scale(1.7)),
    "triangle": Path.unit_regular_polygon(3),
}
"""Outlines of marks about the origin, about two units across."""


# The sheet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    """A white page; positions are inches from its top left corner."""

    canvas: Canvas
    width: float
    height: float
    fonts: Fonts

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = TEXT_SIZE,
        colour: str = INK,
        align: Literal["left", "center", "right"] = "left",
        angle: float = 0.0,
        bold: bool = False,
    ) -> None:
        """A line of text whose letters have their middle at the height ``y``; it turns about (x, y)."""
        if not text:
            return
        families = self.fonts.chosen(text, bold=bold)
        style = {"transform": self.canvas.dpi_scale_trans, "color": colour, "ha": align, "rotation": angle}
        self.canvas.add_artist(_Label(x, self.height - y, text, families, size, **style))

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: Any = "none",
        edge: Any = "none",
        line: float = 0.8,
        radius: float = 0.0,
        layer: float = 1.0,
    ) -> None:
        """A rectangle whose top left corner is (x, y); ``radius`` rounds its corners."""
        style: dict[str, Any] = {
            "facecolor": fill,
            "edgecolor": edge,
            "linewidth": line,
            "transform": self.canvas.dpi_scale_trans,
            "zorder": layer,
        }
        corner = (x, self.height - y - height)
        if radius > 0:
            shape = f"round,pad=0,rounding_size={min(radius, height / 2, width / 2)}"
            self.canvas.add_artist(FancyBboxPatch(corner, width, height, boxstyle=shape, **style))
        else:
            self.canvas.add_artist(Rectangle(corner, width, height, **style))

    def mark(self, x: float, y: float, width: float, height: float) -> None:
        """A frame that shows on every colour: white between black."""
        self.box(x, y, width, height, edge="#000000", line=2.6, layer=2.0)
        self.box(x, y, width, height, edge="#ffffff", line=1.3, layer=2.1)

    def image(self, x: float, y: float, width: float, height: float, pixels: Pixels) -> None:
        axes = self.canvas.add_axes(
            (x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height)
        )
        axes.imshow(pixels, aspect="auto", interpolation="none")
        axes.set_axis_off()

    def segments(
        self,
        points: NDArray[np.float64],
        colour: str,
        *,
        line: float,
        layer: float = 1.0,
    ) -> None:
        """Straight lines through ``points`` (n, 2, 2) in one colour."""
        style: dict[str, Any] = {"transform": self.canvas.dpi_scale_trans, "zorder": layer}
        self.canvas.add_artist(
            LineCollection(list(self._turned(points)), colors=colour, linewidths=line, **style)
        )

    def polygon(
        self,
        points: NDArray[np.float64],
        *,
        fill: Any,
        edge: Any = "none",
        line: float = 0.8,
        layer: float = 1.0,
    ) -> None:
        """A closed shape through ``points`` (n, 2)."""
        style: dict[str, Any] = {"transform": self.canvas.dpi_scale_trans, "zorder": layer}
        shape = Polygon(self._turned(points), facecolor=fill, edgecolor=edge, linewidth=line, **style)
        self.canvas.add_artist(shape)

    def dots(
        self,
        points: NDArray[np.float64],
        colour: Any,
        *,
        size: float,
        shape: DotShape = "circle",
        edge: Any = "none",
        line: float = 0.4,
        layer: float = 1.5,
    ) -> None:
        """Marks of one shape, ``size`` inches across, at ``points`` (n, 2)."""
        if not len(points):
            return
        mark = _DOTS[shape].transformed(Affine2D().scale(size / 2))
        places = [mark.transformed(Affine2D().translate(*point)) for point in self._turned(points).tolist()]
        style: dict[str, Any] = {"transform": self.canvas.dpi_scale_trans, "zorder": layer}
        self.canvas.add_artist(
            PathCollection(places, facecolors=colour, edgecolors=edge, linewidths=line, **style)
        )

    def curves(
        self, points: NDArray[np.float64], colours: NDArray[np.float64], widths: NDArray[np.float64]
    ) -> None:
        """Bézier curves with control points ``points`` (n, 4, 2), each with its colour (n, 4) and width (n,)."""
        if not len(points):
            return
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        paths = [Path(curve, codes) for curve in self._turned(points)]
        style: dict[str, Any] = {"transform": self.canvas.dpi_scale_trans, "zorder": 0.5}
        curves = PathCollection(paths, facecolors="none", edgecolors=colours, linewidths=widths, **style)
        self.canvas.add_artist(curves)

    def _turned(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points measured from the bottom, as matplotlib has them."""
        turned = points.copy()
        turned[..., 1] = self.height - turned[..., 1]
        return turned


@functools.lru_cache(maxsize=8)
def colour_table(name: str) -> Pixels:
    """(256, 3) colours of a colour map, the same that the browser components get."""
    pixels: Pixels = matplotlib.colormaps[COLOUR_MAPS[name]](np.arange(256), bytes=True)[:, :3].copy()
    pixels.flags.writeable = False
    return pixels


def blank_sheet(width: float, height: float, fonts: Fonts) -> Sheet:
    """An empty page of a size in inches."""
    return Sheet(Canvas(figsize=(width, height), facecolor=PAPER), width, height, fonts)


def rgb(colour: str) -> NDArray[np.float64]:
    """Red, green and blue of a colour name or ``#rrggbb``, 0 to 1."""
    return np.array(matplotlib.colors.to_rgb(colour))


def saved(sheet: Sheet, format: str, *, title: str, captions: Sequence[str], document: str) -> bytes:
    """The file's bytes with the document inside; without dates, so that equal figures give equal files.

    Args:
        sheet: the finished page.
        format: "png", "svg" or "pdf".
        title, captions: for the file's own fields.
        document: ASCII JSON, kept as it is.
    """
    buffer = io.BytesIO()
    summary = "\n".join(captions)
    metadata: dict[str, Any]
    if format == "png":
        metadata = {"Software": "AttnScope", "Title": title, "Description": summary, "attnscope": document}
        sheet.canvas.savefig(
            buffer, format="png", dpi=DOTS_PER_INCH, metadata=metadata, pil_kwargs=dict(_PNG_OPTIONS)
        )
        return buffer.getvalue()
    if format == "pdf":
        metadata = {"Title": title, "Subject": summary, "Keywords": document, "Creator": "AttnScope"}
        sheet.canvas.savefig(
            buffer, format="pdf", dpi=DOTS_PER_INCH, metadata=metadata | {"CreationDate": None}
        )
        return buffer.getvalue()
    metadata = {"Title": title, "Description": summary, "Creator": "AttnScope", "Date": None}
    sheet.canvas.savefig(buffer, format="svg", metadata=metadata)
    start, tag, rest = re.split(r"(<svg [^>]*>)", buffer.getvalue().decode("utf-8"), maxsplit=1)
    return f'{start}{tag}\n <metadata id="attnscope">{document}</metadata>{rest}'.encode()
