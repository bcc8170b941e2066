"""tiles.c, compiled once where there is a C compiler: what is read off a tile while it is in the cache.

The same is stated in torch in ``attn_core.flash.tiles``, for float64, for other devices, and where nothing could be
compiled. The library links to the OpenMP runtime that torch has loaded, so both share one pool of threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("tiles.c")

COMPILERS = ("cc", "gcc", "clang")

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")

COMPILE_SECONDS = 60

_log = logging.getLogger(__name__)

_SIZE, _SWITCH, _ADDRESS = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p

SUMS_FIELDS = (
    "entropy",
    "largest",
    "strongest",
    "largest_open",
    "strongest_open",
    "distance",
    "direction",
    "matched",
    "band",
    "others",
    "squares",
    "liked",
    "received",
)
PLACES_FIELDS = (
    "row_y",
    "row_x",
    "column_y",
    "column_x",
    "counted",
    "barred",
    "likeness",
    "row_numbers",
    "column_numbers",
    "earlier",
    "offsets",
    "left",
)


class SumsArguments(ctypes.Structure):
    """``Sums`` of tiles.c."""

    _fields_ = (*((name, _ADDRESS) for name in SUMS_FIELDS), ("received_stride", _SIZE))


class PlacesArguments(ctypes.Structure):
    """``Places`` of tiles.c."""

    _fields_ = (
        *((name, _ADDRESS) for name in PLACES_FIELDS),
        ("lefts", _SIZE),
        ("left_head_stride", _SIZE),
        ("kinds", _SIZE),
        ("offset_count", _SIZE),
        ("first_column", _SIZE),
        ("first_place", _SIZE),
        ("flat", _SWITCH),
    )


_TILE = (_ADDRESS, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE)
_SIGNATURES = {
    "tile_sums": (*_TILE, ctypes.POINTER(PlacesArguments), ctypes.POINTER(SumsArguments)),
    "tile_weights": _TILE,
    "tile_pooled": (
        *(_ADDRESS, _SIZE, _SIZE, _SIZE, _SIZE),
        *(_SIZE, _ADDRESS, _SIZE, _ADDRESS),
        *(_ADDRESS, _SIZE, _SIZE, _SWITCH),
    ),
    "tile_strongest": (*_TILE, _SIZE, _SIZE, _ADDRESS, _ADDRESS),
    "tile_relevance": (_ADDRESS, *_TILE, _ADDRESS, _SWITCH, _ADDRESS),
    "tile_products": (_ADDRESS, *(_SIZE,) * 4, _ADDRESS, *(_SIZE,) * 4, _ADDRESS),
    "strip_attention": (
        *(_ADDRESS, *(_SIZE,) * 5),
        *(_ADDRESS, _ADDRESS, *(_SIZE,) * 3, ctypes.c_float, _SIZE),
        *(_ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE),
    ),
    "panel_width": (),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, or None where they cannot be had; the reason is logged once."""
    try:
        path = _built()
        found = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes, function.restype = arguments, _SIZE if name == "panel_width" else None
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        _log.info("tiles are computed in torch: %s", error)
        return None
    return found


def _built() -> Path:
    """The shared library for this source, compiler and processor, compiled now if it was not before.

    Raises:
        OSError: without a compiler, or a folder to write to.
        subprocess.SubprocessError: if the compiler fails.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise OSError(f"no C compiler found ({', '.join(COMPILERS)})")
    source = SOURCE.read_bytes()
    told = "\0".join((compiler, *FLAGS, platform.machine(), _processor()))
    name = f"tiles-{hashlib.sha256(source + told.encode()).hexdigest()[:16]}.so"
    folder = _cache_folder()
    path = folder / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            new = Path(work) / name
            _compile(compiler, new)
            new.replace(path)  # in one step: another process may compile the same
    return path


def _compile(compiler: str, target: Path) -> None:
    """With OpenMP where the compiler has it, else for one thread."""
    for openmp in ("-fopenmp", "-fopenmp-simd"):
        command = [compiler, *FLAGS, openmp, str(SOURCE), "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        if done.returncode == 0:
            return
    raise subprocess.SubprocessError(
        f"{compiler} could not compile {SOURCE.name}: {done.stderr.strip()[-500:]}"
    )


def _cache_folder() -> Path:
    """Where compiled code is kept between runs: the user's own cache, which nobody else may write to."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "attnscope"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _processor() -> str:
    """What tells this processor from another on which the compiled code might not run."""
    known = Path("/proc/cpuinfo")
    if known.exists():
        lines = known.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.processor()
