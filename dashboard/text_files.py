"""Reading an uploaded text file: whatever encoding it has, and told when it is not UTF-8."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

MOST_BYTES = 1024 * 1024
MEGABYTES = 1


@dataclass(frozen=True)
class TextFile:
    """The text of a file and what a reader must know of how it was read."""

    text: str
    note: str = ""


def read_text_file(data: bytes) -> TextFile:
    """The text in a file: UTF-8 with or without a byte order mark, UTF-16 or UTF-32 with one, else Latin-1.

    Raises:
        ValueError: with one plain sentence, if the file is too large, empty or not a text.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"The file has {len(data):,} bytes; the limit is {MEGABYTES} MB.")
    text, note = _decoded(data)
    if not text.strip():
        raise ValueError("The file holds no text.")
    if "\0" in text:
        raise ValueError("This is not a text file: it holds zero bytes.")
    return TextFile(text.replace("\r\n", "\n").replace("\r", "\n").strip("\n"), note)


def _decoded(data: bytes) -> tuple[str, str]:
    marks = (
        (codecs.BOM_UTF8, "utf-8-sig", ""),
        (codecs.BOM_UTF32_LE, "utf-32", "read as UTF-32"),
        (codecs.BOM_UTF32_BE, "utf-32", "read as UTF-32"),
        (codecs.BOM_UTF16_LE, "utf-16", "read as UTF-16"),
        (codecs.BOM_UTF16_BE, "utf-16", "read as UTF-16"),
    )
    encoding, note = next(
        ((name, note) for mark, name, note in marks if data.startswith(mark)), ("utf-8", "")
    )
    try:
        return data.decode(encoding), note
    except UnicodeDecodeError:
        if encoding == "utf-8":
            return data.decode("latin-1"), "not UTF-8; read as Latin-1, so accents may be wrong"
        return data.decode(encoding, errors="replace"), f"{note}, broken characters replaced"
