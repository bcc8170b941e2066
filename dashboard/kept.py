"""Answers that are kept by the memory that they take, not by their number: a pass over a large input is large."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

MOST_ANSWERS = 512
"""However small they are."""

KEPT_SHARE = 0.25
"""Share of the memory that would be free without them which answers may hold."""

SMALL_BYTES = 16 * 2**20
"""Answers may always hold this much: asking the system what is free would cost more."""


@dataclass(frozen=True)
class Answer:
    """What was computed.

    Attributes:
        size: bytes that it holds.
    """

    value: Any
    size: int


class Kept:
    """Answers by key, the last used stay longest; the newest always stays."""

    def __init__(self, free: Callable[[], int]) -> None:
        """Args: free: bytes that this process may still take."""
        self._free = free
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._making: dict[Hashable, tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Answer | None:
        """The answer under this key, if it is still kept."""
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def put(self, key: Hashable, value: Any, *, size: int | None = None) -> Answer:
        """Keep an answer, and drop what was not used for longest where all together hold too much.

        Args:
            size: bytes, where the arrays inside do not tell (a graph holds more than one sees).
        """
        answer = Answer(value, bytes_held(value) if size is None else size)
        with self._lock:
            self._answers[key] = answer
            self._answers.move_to_end(key)
            self._drop()
        return answer

    def forget(self, key: Hashable) -> None:
        """Drop one answer."""
        with self._lock:
            self._answers.pop(key, None)

    def forget_model(self, model: object) -> None:
        """Drop all answers that hold on to a model: passes over it, which would keep its weights in memory."""
        with self._lock:
            held = [
                key for key, found in self._answers.items() if getattr(found.value, "model", None) is model
            ]
            for key in held:
                del self._answers[key]

    @property
    def size(self) -> int:
        """Bytes that all answers hold."""
        with self._lock:
            return sum(answer.size for answer in self._answers.values())

    def _drop(self) -> None:
        held = sum(answer.size for answer in self._answers.values())
        if held > SMALL_BYTES:
            most = max(SMALL_BYTES, KEPT_SHARE * (self._free() + held))
            while held > most and len(self._answers) > 1:
                held -= self._answers.popitem(last=False)[1].size
        while len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)

    @contextmanager
    def making(self, key: Hashable) -> Iterator[None]:
        """Hold the right to make one answer, so that two who want the same do not both compute it."""
        with self._lock:
            lock, users = self._making.get(key, (threading.Lock(), 0))
            self._making[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._making.pop(key)
                if users > 1:
                    self._making[key] = lock, users - 1


def bytes_held(value: Any) -> int:
    """Bytes of the arrays and tensors inside a value, each block of memory counted once; modules are left out."""
    torch = sys.modules.get("torch")
    blocks: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            base = item if item.base is None or not isinstance(item.base, np.ndarray) else item.base
            blocks[base.__array_interface__["data"][0]] = base.nbytes
        elif torch is not None and isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            blocks[storage.data_ptr()] = storage.nbytes()
        elif torch is not None and isinstance(item, torch.nn.Module):
            continue
        elif is_dataclass(item) and not isinstance(item, type):
            waiting += [getattr(item, entry.name) for entry in fields(item)]
        elif isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, tuple | list | set | frozenset):
            waiting += item
        elif isinstance(item, bytes | bytearray):
            blocks[id(item)] = len(item)
    return sum(blocks.values())
