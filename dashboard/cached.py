"""Every cache of the program but those of the Evidence views (``dashboard.evidence_cache``).

Models, traces and arrays are shared by all sessions (``cache_resource``: no copies, so nothing writes into them);
bytes for the browser are in ``cache_data``. Keys are names, digests, numbers and choices: a large array is never part
of a key, because Streamlit hashes arrays of half a million elements from a sample and would hand out stale results.
Each cache holds few entries, and what may be large is kept by its size (``dashboard.kept``), so memory stays flat
however many sessions come and go. What may take long is asked for through ``dashboard.long_runs``.

torch and transformers are imported inside the functions: the first page is painted without them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from analysis.catalogue import MINILM
from analysis.estimate import (
    SLOW_MACHINE,
    Estimate,
    MachineRate,
    ModelSize,
    forward_estimate,
    record_bytes,
    shapes_of,
)
from analysis.figure_data import Floats
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES, sample_picture_bytes
from analysis.trained import find_offered, is_ready, make_ready
from dashboard import long_runs, text_reading
from dashboard.figures import POOLED_CELLS
from dashboard.first_paint import Example, read_example
from dashboard.model_root import folder_of
from dashboard.selection import (
    Fusion,
    ImageChoices,
    ModelChoice,
    Part,
    PictureSide,
    Selection,
    TextChoices,
    TextReading,
    current,
)
from dashboard.sources import HeadNumbers, streamed_note
from dashboard.warmup import Loader, ModelRequest, Numbers, Progress

if TYPE_CHECKING:
    from analysis.images import Picture
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel
    from analysis.predictions import Prediction
    from analysis.streamed import StreamedMatrix
    from analysis.trace import Trace
    from attn_core.maps import AttentionMap

FORWARD_SECONDS = 120.0
"""Longest wait for a model that another session uses; a long run leaves it to others between two layers."""

TOKEN_LIMIT = 2048
"""Most tokens of an example, or of a text of a corpus, whatever the model can take; the rest is cut and told."""

_AT_ONCE = TextReading()

DEVICE_VARIABLE = "ATTNSCOPE_DEVICE"

PREVIEW_WORDS = "bfloat16 preview"
PREVIEW_NOTE = (
    "A fast preview: the model computes in bfloat16, which keeps three digits of a number. A weight can differ by "
    "about 0.1 from the exact one, and some 2 % of a query's weight lies elsewhere; set Numbers to Exact for figures."
)
"""Measured on the bundled models (``benchmarks.preview``): a largest difference of 0.12, and 1.6 % of a layer."""

LAB_MODEL = ModelChoice(MINILM.name)
"""Whose layers the Lab takes vectors from."""

_THREADS = 4
"""Most threads of one tensor operation, so that one user does not take every core."""


@dataclass(frozen=True)
class SharedModel:
    """A loaded model and the lock that lets one forward pass at a time through it.

    Attributes:
        request: what it was asked for by.
    """

    request: ModelRequest
    model: LoadedModel
    lock: threading.Lock

    @contextmanager
    def forward(self) -> Iterator[LoadedModel]:
        """The model for one forward pass.

        Raises:
            TimeoutError: when another pass holds the model for too long.
        """
        if not self.lock.acquire(timeout=FORWARD_SECONDS):
            raise TimeoutError(
                f"Another computation has kept {self.model.title} busy for {FORWARD_SECONDS:.0f} seconds; "
                "wait for it to end, or choose a shorter input."
            )
        try:
            yield self.model
        finally:
            self.lock.release()


# Models ------------------------------------------------------------------------------------------------------------


def device_setting() -> str:
    """Device of every model of this server, as its owner set it (``ATTNSCOPE_DEVICE``); ``auto`` where unset."""
    return os.environ.get(DEVICE_VARIABLE, "").strip() or "auto"


@st.cache_resource(show_spinner=False)
def loader() -> Loader:
    """The one loader of this server."""
    return Loader(_load_and_try)


def _load_and_try(request: ModelRequest, progress: Progress) -> None:
    """Import what a model needs, load it, and run one tiny input, so that the first real one is fast."""
    offered = find_offered(request.name)
    if offered is not None and not is_ready(offered):
        make_ready(offered, progress=progress)
    progress("importing torch", 0.0)
    torch = _import_for_good("torch")
    if torch.get_num_threads() > _THREADS:
        torch.set_num_threads(_THREADS)
    progress("importing transformers", 0.3)
    _import_for_good("analysis.hf.loading")
    shared = shared_model(*request, progress=progress)
    progress("first forward pass", 0.95)
    _try(shared)


def _import_for_good(name: str) -> Any:
    """Import a library and take what it holds out of the garbage collector's sight: it never becomes garbage.

    Streamlit collects after every run of a page, and walking torch and transformers took 0.2 s of each click. The
    import itself takes a fifth less time with the collector off.
    """
    known = name in sys.modules
    gc.disable()
    try:
        module = importlib.import_module(name)
    finally:
        gc.enable()
    if not known:
        gc.collect()
        gc.freeze()
    return module


def _try(shared: SharedModel) -> None:
    from analysis.images import Picture
    from analysis.inputs import encode_image, encode_text
    from analysis.trace import trace
    from attn_core.errors import UnsupportedModelError

    with shared.forward() as model:
        if model.modality == "text":
            inputs = encode_text(model, "warm up")
        elif model.modality != "image":
            raise UnsupportedModelError(
                f"load: {model.title} listens to sound; the pages show text and pictures. Choose a text or an image "
                "model, or use this one from Python (analysis.trace)."
            )
        else:
            grey = np.full((64, 64, 3), 127, dtype=np.uint8)
            inputs = encode_image(model, Picture(pixels=grey, name="grey", sha256="", notes=()))
        trace(model, inputs)


def _released(shared: SharedModel) -> None:
    """Let a model that fell out of the cache be loaded again, and give its memory back."""
    loader().forget(*shared.request)
    long_runs.kept().forget_model(shared.model)
    gc.collect()
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def shared_model(
    name: str, revision: str | None, numbers: Numbers = "auto", progress: Progress | None = None
) -> SharedModel:
    """The model, loaded once for all sessions.

    Raises:
        UnsupportedModelError, ModelUnavailableError: as ``analysis.models.load_model``, which opens no path here
            except folders that the server's owner opened.
        ValueError: for a device setting that this machine does not have.
    """
    return _shared_model(ModelRequest(name, revision, numbers), _progress=progress)


@st.cache_resource(max_entries=3, show_spinner=False, on_release=_released)
def _shared_model(request: ModelRequest, _progress: Progress | None) -> SharedModel:
    """By the whole request: Streamlit tells an argument that is left out from one that is given as its default."""
    from analysis.models import load_model

    folder = folder_of(request.name)
    model = load_model(
        folder or request.name,
        revision=request.revision,
        device=device_setting(),
        dtype=request.numbers,
        allow_local=folder is not None,
        progress=_progress,
    )
    if request.numbers == "bfloat16":
        model = replace(model, title=f"{model.title} ({PREVIEW_WORDS})", notes=(PREVIEW_NOTE, *model.notes))
    return SharedModel(request, model, threading.Lock())


def model_if_ready(name: str, revision: str | None, numbers: Numbers = "auto") -> SharedModel | None:
    """The model when its load has ended well, else None; starts no load and does not wait."""
    job = loader().find(name, revision, numbers)
    return shared_model(name, revision, numbers) if job is not None and job.state == "ready" else None


def warm_up(page: str) -> None:
    """Load, behind the page, the model that it asks for; after that the other page's default model, if installed.

    The Lab does without a model until a section asks for the bundled BERT, which is loaded if it is installed.

    Called at the end of a run: the page is on its way to the browser before the first import starts.
    """
    if page == "scale":  # needs no model, and a load beside a measurement would disturb it
        return
    chosen = current()
    wanted = [choices.model for choices in _in_order(page, chosen) if not choices.model.asked]
    for choice in wanted[:1] if page in ("text", "image") else []:
        if loader().request(*choice.request).state != "ready":
            return
    for choice in [LAB_MODEL] if page == "lab" else wanted[1:]:
        offered = find_offered(choice.name)
        if offered is not None and is_ready(offered):
            loader().request(*choice.request)


def _in_order(page: str, chosen: Selection) -> tuple[TextChoices | ImageChoices, ...]:
    return (chosen.image, chosen.text) if page == "image" else (chosen.text, chosen.image)


# Inputs and traces -------------------------------------------------------------------------------------------------


@st.cache_resource(show_spinner=False)
def example() -> Example:
    """The example that is shown before the model is there."""
    return read_example()


@st.cache_resource(max_entries=8, show_spinner=False)
def picture(digest: str, name: str, _data: bytes) -> Picture:
    """A picture file, decoded.

    Raises:
        PictureError: if it cannot be shown, with one plain sentence.
    """
    from analysis.images import read_picture

    return read_picture(_data, name=name)


@dataclass(frozen=True)
class Traced:
    """One forward pass and where it comes from.

    Attributes:
        key: digest of the model's name and revision, the input and the options.
        shared: the model with its lock, for further passes.
    """

    key: str
    model: LoadedModel
    inputs: Inputs
    trace: Trace
    shared: SharedModel


def streamed_notes(maps: Sequence[AttentionMap]) -> tuple[str, ...]:
    """One line where the whole map of a layer does not fit the session's budget, and so is read in tiles."""
    largest = max(maps, key=lambda held: held.heads * held.queries * held.keys)
    size = largest.heads * largest.queries * largest.keys * 4
    if fits(size):
        return ()
    return (streamed_note(largest.queries, size, current().memory_mib * 2**20),)


def prediction(traced: Traced) -> Prediction | None:
    """What the model's head says of a traced input; cheap, so it is not kept."""
    from analysis.predictions import predict

    return predict(traced.model, traced.trace)


def traced_text(
    name: str,
    revision: str | None,
    text: str,
    pair: str | None,
    reading: TextReading = _AT_ONCE,
    numbers: Numbers = "auto",
) -> Traced:
    """One text, or a pair, through a text model; for an encoder–decoder model ``pair`` is what the decoder reads.

    A text that is longer than the model takes is read as ``reading`` says.

    Raises:
        UnsupportedModelError: if the model is of another kind or keeps its attention to itself.
        MemoryBudgetError: if it would not fit what is free.
        Pending: while it runs behind the page.
    """
    shared = shared_model(name, revision, numbers)
    key = ("text", *shared.request, digest(text, pair), reading)
    return _traced(shared, key, lambda model: text_reading.encode(model, text, pair, reading))


def traced_picture(
    name: str,
    revision: str | None,
    picture_digest: str,
    side: PictureSide,
    _picture: Picture,
    numbers: Numbers = "auto",
) -> Traced:
    """One picture through an image model.

    Raises:
        UnsupportedModelError, MemoryBudgetError, Pending: as ``traced_text``.
    """

    def encode(model: LoadedModel) -> Inputs:
        from analysis.inputs import encode_image

        return encode_image(model, _picture, side=side if model.flexible_image_size else None)

    shared = shared_model(name, revision, numbers)
    return _traced(shared, ("picture", *shared.request, picture_digest, side), encode)


def _traced(
    shared: SharedModel, key: tuple[Hashable, ...], encode: Callable[[LoadedModel], Inputs]
) -> Traced:
    """One input through a model, read where it is asked for and run where it does not take long.

    Args:
        key: what the input is made from.
    """
    answers, model = long_runs.kept(), shared.model
    found = answers.find(("traced", *key))
    if found is not None:
        traced: Traced = found.value
        return traced
    known = answers.find(("inputs", *key)) or answers.put(("inputs", *key), encode(model))
    inputs: Inputs = known.value

    def work() -> Traced:
        from analysis.trace import trace

        whole = digest(model.identity, inputs.digest, *map(str, key[5:]))
        return Traced(whole, model, inputs, trace(model, inputs), shared)

    run = long_runs.Run(
        key=("traced", *key),
        what=_pass_in_words(inputs),
        kind="forward",
        estimate=input_estimate(shared, inputs),
        instead="choose a smaller picture size" if inputs.grid is not None else "choose a shorter text",
    )
    return long_runs.answer(run, work, lock=shared.lock)


def _pass_in_words(inputs: Inputs) -> str:
    if inputs.reading is None:
        return f"One forward pass over {inputs.kept_tokens:,} positions"
    windows = inputs.reading.windows
    return (
        f"A reading of {inputs.kept_tokens:,} tokens in {len(windows):,} windows of {inputs.reading.window:,}"
    )


def input_estimate(
    shared: SharedModel,
    inputs: Inputs,
    kind: Callable[[ModelSize, int, MachineRate], Estimate] = forward_estimate,
) -> Estimate:
    """What a pass over an input takes on this machine; of a document that is read in windows, all of these.

    Args:
        kind: ``forward_estimate`` or ``gradient_estimate``.
    """
    from analysis.estimate import model_size

    size = model_size(shared.model)
    return estimated(partial(_over_windows, size, inputs, kind), str(shared.model.device))


def _over_windows(
    size: ModelSize,
    inputs: Inputs,
    kind: Callable[[ModelSize, int, MachineRate], Estimate],
    rate: MachineRate,
) -> Estimate:
    if inputs.reading is None:
        return kind(size, inputs.kept_tokens + len(inputs.target_tokens or ()), rate)
    each = [kind(size, window.kept_tokens, rate) for window in inputs.reading.windows]
    record = sum(record_bytes(size, window.kept_tokens) for window in inputs.reading.windows)
    return Estimate(
        seconds=sum(window.seconds for window in each),
        memory_bytes=record + max(window.memory_bytes for window in each),
        weights=sum(window.weights for window in each),
    )


@st.cache_resource(max_entries=4, show_spinner=False)
def machine_rate(device: str) -> MachineRate:
    """What this machine does in a second, measured once."""
    from analysis.estimate import measure_rate

    return measure_rate(device)


def estimated(make: Callable[[MachineRate], Estimate], device: str = "cpu") -> Estimate:
    """An estimate on this machine, which is measured only if a slow one would take long."""
    quick = make(SLOW_MACHINE)
    return quick if quick.seconds <= long_runs.INLINE_SECONDS else make(machine_rate(device))


def forward_words(shared: SharedModel, positions: int) -> str:
    """What a forward pass over so many positions would take: "about 1 min 10 s and 0.9 GB"."""
    from analysis.estimate import in_words, model_size

    model = shared.model
    make = partial(forward_estimate, model_size(model), positions)
    return in_words(long_runs.expected("forward", estimated(make, str(model.device))))


@st.cache_data(max_entries=8, show_spinner=False)
def parity(name: str, revision: str | None, numbers: Numbers = "auto") -> dict[str, float]:
    """Largest difference of each output between a captured pass and a plain one, on the first sample."""
    from analysis.images import read_picture
    from analysis.inputs import encode_image, encode_text
    from analysis.trace import parity as compare

    with shared_model(name, revision, numbers).forward() as model:
        if model.modality == "text":
            inputs = encode_text(model, TEXT_SAMPLES[0].text)
        else:
            sample = PICTURE_SAMPLES[0].id
            inputs = encode_image(model, read_picture(sample_picture_bytes(sample), name=sample))
        return compare(model, inputs)


def budgets() -> list[tuple[str, str]]:
    """Limits of memory, as (what, how much)."""
    return [("one n × n map", f"{current().memory_mib:,} MiB"), ("tokens of an example", f"{TOKEN_LIMIT:,}")]


# Numbers -----------------------------------------------------------------------------------------------------------
# ``key`` names the source (``Traced.key``), so the maps themselves stay out of the cache's key.


@st.cache_resource(max_entries=24, show_spinner=False)
def block(
    key: str, part: Part, layer: int, rows: tuple[int, int], columns: tuple[int, int], _map: AttentionMap
) -> Floats:
    """(H, r, c) weights of all heads of a layer, between some queries and some keys."""
    return _array(_map.block(None, slice(*rows), slice(*columns)))


def matrix(key: str, part: Part, layer: int, head: int | None, _map: AttentionMap) -> Floats | StreamedMatrix:
    """(Q, K) weights of one head, or the mean over heads; above the session's budget an overview and exact parts."""
    from analysis.estimate import dense_estimate, pass_estimate

    heads = _map.heads if head is None else 1
    shape = heads, _map.queries, _map.keys
    what = f"A matrix of {_map.queries:,} × {_map.keys:,} weights"
    if fits(_map.queries * _map.keys * 4):
        estimate = estimated(partial(dense_estimate, shape))
        run = long_runs.Run(("matrix", key, part, layer, head), what, "dense", estimate)
        return long_runs.answer(run, lambda: _written_out(_map, head))

    def work() -> StreamedMatrix:
        from analysis.streamed import streamed_matrix

        return streamed_matrix(_map, head, cells=POOLED_CELLS)

    estimate = estimated(partial(pass_estimate, "written", [shape], answer_bytes=4 * POOLED_CELLS**2))
    run = long_runs.Run(
        ("streamed matrix", key, part, layer, head),
        f"An overview of {_map.queries:,} × {_map.keys:,} weights",
        "matrix",
        estimate,
        size=4 * POOLED_CELLS**2,
    )
    return long_runs.answer(run, work)


def _written_out(_map: AttentionMap, head: int | None) -> Floats:
    """All weights of a head, or the mean over heads, added up head by head so that one is held at a time."""
    if head is not None:
        return _array(_map.dense(head))
    total = _map.dense(0).double()
    for index in range(1, _map.heads):
        total += _map.dense(index)
    return _array((total / _map.heads).float())


def fits(size: int) -> bool:
    """Whether an answer of so many bytes may be written out in this session."""
    from attn_core.budget import fits as fits_here

    with long_runs.budgeted(long_runs.session_budget()):
        return fits_here(size)


def thumbnails(key: str, part: Part, cells: int, _maps: Sequence[AttentionMap]) -> Floats:
    """(L, H, b, b) every head's map, max-pooled to at most ``cells`` a side."""
    from analysis.estimate import pass_estimate

    estimate = estimated(partial(pass_estimate, "pooled", shapes_of(_maps)))
    run = long_runs.Run(("thumbnails", key, part, cells), _every_layer(_maps), "pooled", estimate)
    return long_runs.answer(run, lambda: np.stack([_array(layer.pooled(None, cells)) for layer in _maps]))


def rolled_out(
    key: str, part: Part, fusion: Fusion, discard_ratio: float, last_layer: int, _maps: Sequence[AttentionMap]
) -> Floats:
    """(N, N) attention rollout through the layers 0 to ``last_layer``.

    Raises:
        MemoryBudgetError: where a layer's maps or the product do not fit the session's budget; ``rollout_row`` does.
        Pending: while it runs behind the page.
    """
    from analysis.estimate import rollout_estimate
    from analysis.rollout import rollout

    maps = _maps[: last_layer + 1]
    estimate = estimated(partial(rollout_estimate, shapes_of(maps)))
    run = long_runs.Run(
        _rollout_key(key, part, fusion, discard_ratio, last_layer),
        f"The rollout of {maps[0].queries:,} positions through {len(maps)} layers",
        "rollout",
        estimate,
    )
    return long_runs.answer(run, lambda: _array(rollout(maps, fusion=fusion, discard_ratio=discard_ratio)))


def _rollout_key(*chosen: Hashable) -> tuple[Hashable, ...]:
    return ("rollout", *chosen)


def rollout_fits(_maps: Sequence[AttentionMap]) -> bool:
    """Whether a whole rollout may be written out in this session: the maps of one layer, and the product."""
    return fits(max(layer.heads * layer.queries * layer.keys for layer in _maps) * 4)


def rollout_row(
    key: str,
    part: Part,
    query: int | None,
    fusion: Fusion,
    discard_ratio: float,
    last_layer: int,
    _maps: Sequence[AttentionMap],
) -> Floats:
    """(N,) one row of the rollout, or its mean row for None: of the whole where that fits and is quick or there, else
    a chain of products, whose cost grows with N² and not with N³.

    Raises:
        MemoryBudgetError: above the budget with a discard ratio, whose threshold is taken over a whole map.
        Pending: while it runs behind the page.
    """
    from analysis.estimate import rollout_estimate, rollout_row_estimate
    from analysis.rollout import rollout_row as chain

    maps = _maps[: last_layer + 1]
    whole_key = _rollout_key(key, part, fusion, discard_ratio, last_layer)
    quick = estimated(partial(rollout_estimate, shapes_of(maps))).seconds <= long_runs.INLINE_SECONDS
    known = long_runs.kept().find(whole_key) is not None
    if rollout_fits(maps) and (quick or known or discard_ratio > 0.0):
        whole = rolled_out(key, part, fusion, discard_ratio, last_layer, _maps=_maps)
        row: Floats = whole.mean(axis=0) if query is None else whole[query]
        return row
    if discard_ratio > 0.0:
        from attn_core.errors import MemoryBudgetError

        layer = max(maps, key=lambda held: held.heads * held.queries * held.keys)
        raise MemoryBudgetError(
            f"rollout: to discard {discard_ratio:.0%} of the weights, the maps of a layer are needed whole, which "
            f"take {layer.heads * layer.queries * layer.keys * 4 / 2**20:,.0f} MiB and more than the memory budget; "
            "discard none, or allow more memory on the left."
        )
    run = long_runs.Run(
        ("rollout row", key, part, query, fusion, last_layer),
        f"One row of the rollout of {maps[0].queries:,} positions through {len(maps)} layers",
        "rollout row",
        estimated(partial(rollout_row_estimate, shapes_of(maps))),
    )
    return long_runs.answer(run, lambda: _array(chain(maps, query, fusion=fusion)))


def head_numbers(key: str, part: Part, layer: int, _maps: Sequence[AttentionMap]) -> HeadNumbers:
    """Figures of each head of a layer; where one layer takes long, of every layer at once."""
    numbers, _ = _layer_statistics(key, part, layer, _maps)
    return numbers


def mean_row(key: str, part: Part, layer: int, _maps: Sequence[AttentionMap]) -> Floats:
    """(H, K) weights that each key gets, averaged over the queries."""
    _, received = _layer_statistics(key, part, layer, _maps)
    return received


def _layer_statistics(
    key: str, part: Part, layer: int, maps: Sequence[AttentionMap]
) -> tuple[HeadNumbers, Floats]:
    """Figures of each head of a layer, and the mean row of each."""
    from analysis.estimate import pass_estimate

    together = ("statistics", key, part)
    if long_runs.kept().find(together) is None:
        one = estimated(partial(pass_estimate, "statistics", shapes_of(maps[layer : layer + 1])))
        if one.seconds <= long_runs.INLINE_SECONDS / 2:
            run = long_runs.Run((*together, layer), "The statistics of a layer", "statistics", one)
            return long_runs.answer(run, lambda: _statistics_of(maps[layer]))
    run = long_runs.Run(
        together,
        f"The statistics of every head of {len(maps)} layers over {maps[0].queries:,} positions",
        "statistics",
        estimated(partial(pass_estimate, "statistics", shapes_of(maps))),
    )
    return long_runs.answer(run, lambda: [_statistics_of(held) for held in maps])[layer]


def _statistics_of(held: AttentionMap) -> tuple[HeadNumbers, Floats]:
    found = held.statistics()
    numbers = HeadNumbers(_array(found.entropy), _array(found.max_weight), _array(found.mean_distance))
    return numbers, _array(found.received / held.queries)


def _every_layer(maps: Sequence[AttentionMap]) -> str:
    return f"Thumbnails of every head of {len(maps)} layers over {maps[0].queries:,} positions"


@st.cache_resource(max_entries=64, show_spinner=False)
def map_row(key: str, part: Part, layer: int, query: int, _map: AttentionMap) -> Floats:
    """(H, K) one query's weights in every head of a layer."""
    return _array(_map.row(None, query))


@st.cache_resource(max_entries=2, show_spinner=False)
def word_maps(
    key: str,
    part: Part,
    _maps: Sequence[AttentionMap],
    _rows: Sequence[tuple[int, ...]],
    _columns: Sequence[tuple[int, ...]],
) -> tuple[AttentionMap, ...]:
    """The layers' maps between words, kept dense."""
    from analysis.words import merge_words

    torch = importlib.import_module("torch")
    dense_map = importlib.import_module("attn_core.maps").DenseMap
    merged = (merge_words(_array(layer.dense()), _rows, _columns) for layer in _maps)
    return tuple(dense_map(torch.from_numpy(np.ascontiguousarray(weights))[None]) for weights in merged)


@st.cache_data(max_entries=16, max_size="256MB", show_spinner=False)
def payload(key: str, choices: tuple[Any, ...], _build: Callable[[], bytes]) -> bytes:
    """Bytes for a component, packed once for a source and the choices that it shows."""
    return _build()


def digest(*parts: str | None) -> str:
    """One short name for several texts, told apart whatever they contain."""
    joined = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _array(values: Any) -> NDArray[np.float32]:
    """A tensor as a read-only array on the processor."""
    array = np.ascontiguousarray(values.detach().cpu().float().numpy())
    array.flags.writeable = False
    return array
