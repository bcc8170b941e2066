"""Perceptually uniform colour maps as tables of 256 colours, without matplotlib.

The colours are matplotlib's own ``viridis``, ``cividis``, ``magma`` and ``Greys``, so that a figure has the same
colours on the screen and in a file. Viridis and cividis are safe for colour-blind readers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import ColourMapName

COLOUR_MAP_NAMES: tuple[ColourMapName, ...] = get_args(ColourMapName)

_TABLE = Path(__file__).with_name("colour_maps.csv")


def colour_table(name: ColourMapName) -> NDArray[np.uint8]:
    """The (256, 3) red, green and blue bytes of a colour map, from its low end to its high end (read-only).

    Raises:
        ValueError: for a name that is not in ``COLOUR_MAP_NAMES``.
    """
    if name not in COLOUR_MAP_NAMES:
        raise ValueError(
            f"colour_table: name must be one of {', '.join(COLOUR_MAP_NAMES)} but is {name!r}; pass one of them."
        )
    return _tables()[name]


@functools.cache
def _tables() -> dict[str, NDArray[np.uint8]]:
    names, *rows = (line.split(",") for line in _TABLE.read_text(encoding="ascii").splitlines())
    tables = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        table = np.frombuffer(bytes.fromhex("".join(column)), dtype=np.uint8).reshape(256, 3)
        table.flags.writeable = False
        tables[name] = table
    return tables
