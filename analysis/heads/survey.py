"""Statistics of every head of a model over one input or over many: batches in, a ``Survey`` out.

``Surveyor`` adds inputs up one batch at a time, so that a run that was stopped keeps what it has. Each input's own
numbers are kept, L · H a statistic, and a bootstrap over the inputs tells how far a value can be trusted.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.heads.measures import Queries, Sums, measure
from analysis.heads.positions import Layout, layouts_of, piece_counts
from analysis.hf.attention import AttentionTrace, Kind, capture
from analysis.tokenising import takes
from attn_core.errors import UnsupportedModelError
from attn_core.maps import AttentionMap

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel
    from analysis.reading import Reading

MOST_INPUTS = 2000
"""Most inputs of a survey: each one's numbers are kept."""

BATCH_POSITIONS = 1024
"""Positions of a batch: more is hardly faster on a processor."""

Progress = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class HeadTable:
    """Statistics of one kind of attention over the inputs of a survey.

    Attributes:
        totals: (T, L, H) by key of ``STATISTICS``, one row an input.
        counts: (T,) by the same keys: over how many queries each total is.
    """

    totals: Mapping[str, NDArray[np.float32]]
    counts: Mapping[str, NDArray[np.float32]]

    @property
    def inputs(self) -> int:
        """T."""
        return len(next(iter(self.counts.values()), ()))

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)."""
        _, layers, heads = next(iter(self.totals.values())).shape
        return layers, heads

    def value(self, key: str, *, each: bool = False) -> NDArray[np.float64]:
        """(L, H): mean over all queries of all inputs; NaN where no query had it.

        Args:
            each: mean over inputs of each one's own mean, as Clark et al. have it, inputs without a query left out.
        """
        totals, counts = self.totals[key].astype(np.float64), self.counts[key].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            if each:
                kept = counts > 0
                return np.asarray((totals[kept] / counts[kept, None, None]).mean(0))
            return np.asarray(totals.sum(0) / counts.sum())

    def values(self) -> dict[str, NDArray[np.float64]]:
        """(L, H) by key."""
        return {key: self.value(key) for key in self.totals}

    def resampled(
        self, keys: Sequence[str], *, samples: int = 200, seed: int = 0, draws: int | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """(S, L, H) by key: the value over inputs that are drawn again with replacement (Efron 1979); the same inputs
        for every key.

        Args:
            draws: inputs of a sample, None for T. As many as are independent of each other: the spread of the samples
                is that of a mean over so many (Bickel, Götze & van Zwet 1997).
        Raises:
            ValueError: if ``draws`` is below 1 or above T.
        """
        drawn = self.inputs if draws is None else draws
        if not 1 <= drawn <= self.inputs:
            raise ValueError(
                f"HeadTable.resampled: draws must be between 1 and the {self.inputs:,} inputs but is {drawn}; pass "
                "how many of them are independent."
            )
        random = np.random.default_rng(seed)
        times = random.multinomial(drawn, np.full(self.inputs, 1 / self.inputs), size=samples)  # (S, T)
        found = {}
        for key in keys:
            totals, counts = self.totals[key], times @ self.counts[key].astype(np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                flat = times @ totals.reshape(len(totals), -1).astype(np.float64) / counts[:, None]
            found[key] = flat.reshape(samples, *totals.shape[1:])
        return found


@dataclass(frozen=True, eq=False)
class Survey:
    """What the heads of a model do over some inputs.

    Attributes:
        tables: by kind of attention.
        inputs: how many it is over; ``tokens``: how many positions.
        notes: what a reader must know.
    """

    tables: Mapping[Kind, HeadTable]
    inputs: int
    tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """Of one batch: (B, L, H) and (B,) by statistic."""

    totals: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]


class Surveyor:
    """Adds inputs up; any thread may ask for the ``survey`` of what is there.

    Args:
        queries, smoothing: as in ``measure``.
    """

    def __init__(self, *, queries: Queries = "own", smoothing: float = 0.0) -> None:
        self._options = {"queries": queries, "smoothing": smoothing}
        self._rows: dict[Kind, list[_Rows]] = {}
        self._inputs = self._tokens = 0
        self._notes: dict[str, None] = {}
        self._lock = threading.Lock()

    @property
    def inputs(self) -> int:
        """How many are in it."""
        return self._inputs

    def add(
        self,
        maps: Mapping[Kind, Sequence[AttentionMap]],
        layouts: Mapping[Kind, Layout],
        *,
        hidden: Mapping[Kind, Sequence[Tensor]] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Add a batch.

        Args:
            maps: layers by kind; padding may be among the positions, as ``layouts`` says.
            hidden: (B, N, M) what enters each layer, for pictures.
        """
        of_kinds: dict[Kind, list[Sums]] = {}
        for kind, layers in maps.items():
            entered = (hidden or {}).get(kind) or (None,) * len(layers)
            of_kinds[kind] = [
                measure(layer, layouts[kind], hidden=state, **self._options)  # type: ignore[arg-type]
                for layer, state in zip(layers, entered, strict=True)
            ]
        valid = next(iter(layouts.values())).columns.valid
        with self._lock:
            for kind, sums in of_kinds.items():
                totals = {key: torch.stack([each.totals[key] for each in sums], 1) for key in sums[0].totals}
                self._rows.setdefault(kind, []).append(_Rows(totals, sums[0].counts))
            self._inputs += len(valid)
            self._tokens += int(valid.sum())
            self._notes |= dict.fromkeys(notes)

    def tell(self, note: str) -> None:
        """Keep a sentence for the reader of the survey."""
        with self._lock:
            self._notes[note] = None

    def survey(self) -> Survey:
        """What is there so far.

        Raises:
            ValueError: if nothing was added.
        """
        with self._lock:
            if not self._inputs:
                raise ValueError("Surveyor.survey: no input was added; add at least one.")
            tables = {kind: _table(rows) for kind, rows in self._rows.items()}
            return Survey(MappingProxyType(tables), self._inputs, self._tokens, tuple(self._notes))


def _table(rows: Sequence[_Rows]) -> HeadTable:
    """One table of batches; a batch without a statistic (no segments, no rarest token) counts 0 queries of it."""
    totals: dict[str, NDArray[np.float32]] = {}
    counts: dict[str, NDArray[np.float32]] = {}
    for key in dict.fromkeys(key for batch in rows for key in batch.totals):
        totals[key] = torch.cat([_or_zeros(batch.totals, key) for batch in rows]).numpy()
        counts[key] = torch.cat([_or_zeros(batch.counts, key) for batch in rows]).numpy()
    return HeadTable(MappingProxyType(totals), MappingProxyType(counts))


def _or_zeros(found: Mapping[str, Tensor], key: str) -> Tensor:
    return found[key] if key in found else torch.zeros_like(next(iter(found.values())))


def survey_inputs(
    model: LoadedModel,
    inputs: Sequence[Inputs],
    *,
    surveyor: Surveyor | None = None,
    frequencies: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Run a model over inputs and add their statistics up.

    Args:
        inputs: texts or pictures, at most ``MOST_INPUTS``; texts of one length go through the model together.
        surveyor: to add to; what it holds stays there also when ``progress`` stops the run.
        frequencies: of pieces, for the rarest token; None counts them in ``inputs``.
        progress: told 0 to 1 after each batch; what it raises stops the run and comes out of it.
    Raises:
        ValueError: for no input, or too many.
        UnsupportedModelError: if the model's attention cannot be seen.
    """
    if not 0 < len(inputs) <= MOST_INPUTS:
        raise ValueError(
            f"survey_inputs: inputs must be 1 to {MOST_INPUTS:,} but are {len(inputs):,}; take a sample of them."
        )
    surveyor = Surveyor() if surveyor is None else surveyor
    cut = sum(each.kept_tokens < each.total_tokens for each in inputs)
    if cut:
        surveyor.tell(
            f"{cut:,} of {len(inputs):,} texts are longer than the model takes; their ends were cut off."
        )
    counts = frequencies if frequencies is not None else piece_counts([each.tokens or () for each in inputs])
    done = 0
    for batch in batches(inputs):
        tensors = stacked(batch)
        layouts = layouts_of(batch, frequencies=counts)
        trace, hidden = _run(model, tensors, pictures=batch[0].grid is not None)
        _add(surveyor, trace, hidden, layouts, batch)
        done += len(batch)
        if progress is not None:
            progress(done / len(inputs))
    return surveyor.survey()


def independent_windows(reading: Reading) -> int:
    """How many windows of a document may count as independent: as fit into its text side by side, at least 1.

    Windows that share tokens repeat each other, so a finer stride makes more of them but tells no more.
    """
    (first, _), (_, last) = reading.span(0), reading.span(len(reading.windows) - 1)
    return max((last + 1 - first) // (reading.window - len(reading.shared)), 1)


def _add(
    surveyor: Surveyor,
    trace: AttentionTrace,
    hidden: tuple[Tensor, ...],
    layouts: Mapping[Kind, Layout],
    batch: Sequence[Inputs],
) -> None:
    maps: dict[Kind, tuple[AttentionMap, ...]] = {
        "encoder": trace.encoder, "decoder": trace.decoder, "cross": trace.cross
    }  # fmt: skip
    maps = {kind: layers for kind, layers in maps.items() if layers}
    grids = {layer.keys for layers in maps.values() for layer in layers}
    notes: tuple[str, ...] = trace.notes
    if batch[0].grid is not None and len(grids) > 1:  # Swin: later layers hold merged patches
        count = layouts["encoder"].columns.count
        kept = tuple(layer for layer in maps["encoder"] if layer.keys == count)
        maps, hidden = {"encoder": kept}, ()
        notes += (
            f"Only the first {len(kept)} layers hold the picture's own patches; the others are left out.",
        )
    if any(len({layer.heads for layer in layers}) > 1 for layers in maps.values()):
        raise UnsupportedModelError(
            "survey_inputs: the layers of this model have different numbers of heads, which one table cannot hold; "
            "choose another model."
        )
    entering: dict[Kind, Sequence[Tensor]] = {
        kind: hidden[: len(layers)]
        for kind, layers in maps.items()
        if kind != "cross" and len(hidden) > len(layers)
    }
    surveyor.add(maps, layouts, hidden=entering, notes=notes)


def batches(inputs: Sequence[Inputs]) -> Iterator[list[Inputs]]:
    """Inputs that may go through a model together: one text kind and about one length, or pictures of one size.

    Texts come sorted by length, so that there is little padding; encoder-decoders take one at a time.
    """

    def together(each: Inputs) -> tuple[object, ...]:
        names = tuple(sorted(each.tensors))
        alone = each.target_tokens is not None or not set(names) <= _PADDED
        return (names, None if each.grid is None else (each.grid, each.tensors["pixel_values"].shape), alone)

    order = sorted(inputs, key=lambda each: (str(together(each)), each.kept_tokens))
    for (_, _, alone), group in itertools.groupby(order, key=together):
        batch: list[Inputs] = []
        for each in group:
            longest = max(each.kept_tokens, 1)
            if batch and ((alone and each.grid is None) or longest * (len(batch) + 1) > BATCH_POSITIONS):
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch


_PADDED = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}.keys()
"""Tensors of a text that can be padded at its end."""


def stacked(batch: Sequence[Inputs]) -> dict[str, Tensor]:
    """The tensors of a batch, texts padded at their ends and masked there.

    A single input goes in as it is.
    """
    if len(batch) == 1:
        return dict(batch[0].tensors)
    if batch[0].grid is not None:
        whole = dict(batch[0].tensors)
        return whole | {"pixel_values": torch.cat([each.tensors["pixel_values"] for each in batch])}
    length = max(each.kept_tokens for each in batch)
    padded = {
        name: torch.cat(
            [torch.nn.functional.pad(each.tensors[name], (0, length - each.kept_tokens)) for each in batch]
        )
        for name in batch[0].tensors
    }
    if "attention_mask" not in padded:
        real = torch.tensor([[index < each.kept_tokens for index in range(length)] for each in batch])
        padded["attention_mask"] = real.long().to(padded["input_ids"].device)
    return padded


def _run(
    model: LoadedModel, tensors: Mapping[str, Tensor], *, pictures: bool
) -> tuple[AttentionTrace, tuple[Tensor, ...]]:
    """One forward pass; for pictures also what enters each layer, where the model hands it out."""
    given = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    options = {"output_hidden_states": True} if pictures and _hands_out_states(model) else {}
    with torch.no_grad(), capture(model.module) as trace:
        output = model.module(**given, **options)
    states = getattr(output, "hidden_states", None) if options else None
    return trace, tuple(states or ())


def _hands_out_states(model: LoadedModel) -> bool:
    """Whether the library's model can return the states between its layers."""
    return model.seam and (takes(model.module, "output_hidden_states") or takes(model.module, "kwargs"))
