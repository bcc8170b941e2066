"""The Stanford Sentiment Treebank (Socher et al. 2013) as training and test material.

Every node of every tree is a phrase with a label from 0 (very negative) to 4 (very positive). The binary task keeps
sentences that are not neutral: 0 and 1 are negative, 3 and 4 positive.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES = {"train": "trees.train.txt.gz", "dev": "trees.dev.txt.gz", "test": "trees.test.txt.gz"}

_SPOKEN = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "``": '"',
    "''": '"',
    "\\/": "/",
    "\\*": "*",
}
_NODE = re.compile(r"\(|\)|[^\s()]+")


@dataclass(frozen=True)
class Phrase:
    """A phrase.

    Attributes:
        words: as the treebank writes them.
        label: 0 to 4.
        whole: it is a whole sentence.
    """

    words: tuple[str, ...]
    label: int
    whole: bool

    @property
    def text(self) -> str:
        """The phrase as people write it."""
        return written(self.words)


def read_trees(folder: Path, part: str) -> Iterator[list[Phrase]]:
    """The phrases of each tree, the sentence first.

    Raises:
        FileNotFoundError: if the file is not in the folder.
    """
    with gzip.open(folder / FILES[part], "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield _phrases(line)


def _phrases(line: str) -> list[Phrase]:
    """Phrases of one bracketed tree such as ``(3 (2 Great) (2 fun))``."""
    found: list[tuple[int, int, int, int]] = []  # order of opening, label, first word, last word + 1
    words: list[str] = []
    open_nodes: list[tuple[int, int, int]] = []
    tokens = _NODE.findall(line)
    index = order = 0
    while index < len(tokens):
        token = tokens[index]
        if token == "(":
            open_nodes.append((order, int(tokens[index + 1]), len(words)))
            order += 1
            index += 2
            continue
        if token == ")":
            opened, label, first = open_nodes.pop()
            found.append((opened, label, first, len(words)))
        else:
            words.append(token)
        index += 1
    return [
        Phrase(tuple(words[first:last]), label, whole=opened == 0)
        for opened, label, first, last in sorted(found)
    ]


def sentences(folder: Path, part: str) -> list[tuple[Phrase, int]]:
    """Sentences of the binary task with 0 for negative and 1 for positive."""
    roots = (tree[0] for tree in read_trees(folder, part))
    return [(root, int(root.label > 2)) for root in roots if root.label != 2]


def written(words: tuple[str, ...]) -> str:
    """Treebank words as people write them: ``do n't`` → ``don't``, no space before a comma."""
    text = " ".join(_SPOKEN.get(word, word) for word in words)
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m))\b", r"\1", text)
    text = re.sub(r" ([,.;:?!%)\]]+)", r"\1", text)
    return re.sub(r"([(\[$]) ", r"\1", text)
