"""A corpus from an uploaded file: one text a line, or a table with a column of texts. Standard library alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MOST_TEXTS = 2000
"""Most texts that are read of a file."""

MOST_CHARACTERS = 5000
"""Longest text that is read whole; a longer one is cut."""

LINES = "lines"
"""Name of the one column of a file of lines."""


@dataclass(frozen=True)
class Corpus:
    """Texts of a file.

    Attributes:
        columns: texts by the column's name; a file of lines has one, ``LINES``. Empty texts are left out.
        notes: what was left out or cut.
    """

    columns: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @property
    def likely(self) -> str:
        """The column with the longest texts: most likely the one that is meant."""

        def length(name: str) -> float:
            texts = self.columns[name]
            return sum(map(len, texts)) / len(texts)

        return max(self.columns, key=length)


def read_corpus(text: str, *, table: bool) -> Corpus:
    """The texts in a file's text.

    Args:
        text: decoded, lines ended by ``\\n``.
        table: comma-, semicolon- or tab-separated with a header line (.csv, .tsv); else one text a line.
    Raises:
        ValueError: in one plain sentence, if there is no text, or the table cannot be read.
    """
    columns, notes = _table(text) if table else ({LINES: text.split("\n")}, [])
    found: dict[str, tuple[str, ...]] = {}
    for name, entries in columns.items():
        texts = [entry.strip() for entry in entries if entry.strip()]
        if texts:
            found[name] = tuple(each[:MOST_CHARACTERS] for each in texts[:MOST_TEXTS])
            if len(texts) > MOST_TEXTS:
                notes.append(f"Of {len(texts):,} texts the first {MOST_TEXTS:,} are read.")
            cut = sum(len(each) > MOST_CHARACTERS for each in texts[:MOST_TEXTS])
            if cut:
                notes.append(
                    f"{cut} of the texts {'is' if cut == 1 else 'are'} cut at {MOST_CHARACTERS:,} characters."
                )
    if not found:
        raise ValueError("The file holds no text: write one text a line, or a table with a header line.")
    return Corpus(MappingProxyType(found), tuple(dict.fromkeys(notes)))


def _table(text: str) -> tuple[dict[str, list[str]], list[str]]:
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(f"The table cannot be read: {error}. Save it as CSV with UTF-8 text.") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise ValueError("The table has no rows below its header line; its first line must name the columns.")
    names = [name.strip() or f"column {index + 1}" for index, name in enumerate(rows[0])]
    names = [
        name if names.index(name) == index else f"{name} ({index + 1})" for index, name in enumerate(names)
    ]
    short = sum(len(row) != len(names) for row in rows[1:])
    notes = [f"{short} of the rows have another number of cells than the header."] if short else []
    columns = {name: [row[index] for row in rows[1:] if index < len(row)] for index, name in enumerate(names)}
    return columns, notes
