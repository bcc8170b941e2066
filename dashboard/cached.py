"""Every cache of the program but those of the Evidence views (``dashboard.evidence_cache``).

Models, traces and arrays are shared by all sessions (``cache_resource``: no copies, so nothing writes into them);
bytes for the browser are in ``cache_data``. Keys are names, digests, numbers and choices: a large array is never part
of a key, because Streamlit hashes arrays of half a million elements from a sample and would hand out stale results.
Each cache holds few entries, so memory stays flat however many sessions come and go.

torch and transformers are imported inside the functions: the first page is painted without them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from analysis.catalogue import MINILM
from analysis.figure_data import Floats
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES, sample_picture_bytes
from analysis.trained import find_offered, is_ready, make_ready
from dashboard.first_paint import Example, read_example
from dashboard.model_root import folder_of
from dashboard.selection import Fusion, ImageChoices, ModelChoice, Part, Selection, TextChoices, current
from dashboard.sources import HeadNumbers
from dashboard.warmup import Key, Loader, Progress

if TYPE_CHECKING:
    from analysis.images import Picture
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel
    from analysis.predictions import Prediction
    from analysis.trace import Trace
    from attn_core.maps import AttentionMap

FORWARD_SECONDS = 120.0
"""Longest wait for another session's forward pass on the same model."""

TOKEN_LIMIT = 2048
"""Most tokens of a text that the pages show, whatever the model can take; the rest is cut and told."""

DEVICE_VARIABLE = "ATTNSCOPE_DEVICE"

LAB_MODEL = ModelChoice(MINILM.name)
"""Whose layers the Lab takes vectors from."""

_THREADS = 4
"""Most threads of one tensor operation, so that one user does not take every core."""


@dataclass(frozen=True)
class SharedModel:
    """A loaded model and the lock that lets one forward pass at a time through it.

    Attributes:
        request: name and revision that it was asked for by.
    """

    request: Key
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


def _load_and_try(name: str, revision: str | None, progress: Progress) -> None:
    """Import what a model needs, load it, and run one tiny input, so that the first real one is fast."""
    offered = find_offered(name)
    if offered is not None and not is_ready(offered):
        make_ready(offered, progress=progress)
    progress("importing torch", 0.0)
    torch = _import_for_good("torch")
    if torch.get_num_threads() > _THREADS:
        torch.set_num_threads(_THREADS)
    progress("importing transformers", 0.3)
    _import_for_good("analysis.hf.loading")
    shared = shared_model(name, revision, _progress=progress)
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
    gc.collect()
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@st.cache_resource(max_entries=3, show_spinner=False, on_release=_released)
def shared_model(name: str, revision: str | None, _progress: Progress | None = None) -> SharedModel:
    """The model, loaded once for all sessions.

    Raises:
        UnsupportedModelError, ModelUnavailableError: as ``analysis.models.load_model``, which opens no path here
            except folders that the server's owner opened.
        ValueError: for a device setting that this machine does not have.
    """
    from analysis.models import load_model

    folder = folder_of(name)
    model = load_model(
        folder or name,
        revision=revision,
        device=device_setting(),
        allow_local=folder is not None,
        progress=_progress,
    )
    return SharedModel((name, revision), model, threading.Lock())


def model_if_ready(name: str, revision: str | None) -> SharedModel | None:
    """The model when its load has ended well, else None; starts no load and does not wait."""
    job = loader().find(name, revision)
    return shared_model(name, revision) if job is not None and job.state == "ready" else None


def warm_up(page: str) -> None:
    """Load, behind the page, the model that it asks for; after that the other page's default model, if installed.

    The Lab does without a model until a section asks for the bundled BERT, which is loaded if it is installed.

    Called at the end of a run: the page is on its way to the browser before the first import starts.
    """
    chosen = current()
    wanted = [choices.model for choices in _in_order(page, chosen) if not choices.model.asked]
    for choice in wanted[:1] if page in ("text", "image") else []:
        if loader().request(choice.name, choice.revision).state != "ready":
            return
    for choice in [LAB_MODEL] if page == "lab" else wanted[1:]:
        offered = find_offered(choice.name)
        if offered is not None and is_ready(offered):
            loader().request(choice.name, choice.revision)


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


def prediction(traced: Traced) -> Prediction | None:
    """What the model's head says of a traced input; cheap, so it is not kept."""
    from analysis.predictions import predict

    return predict(traced.model, traced.trace)


@st.cache_resource(max_entries=4, show_spinner=False)
def traced_text(name: str, revision: str | None, text: str, pair: str | None) -> Traced:
    """One text, or a pair, through a text model; for an encoder–decoder model ``pair`` is what the decoder reads.

    Raises:
        UnsupportedModelError: if the model is of another kind or keeps its attention to itself.
        TimeoutError: if the model stays busy.
    """
    from analysis.inputs import encode_pair, encode_text
    from analysis.trace import trace

    shared = shared_model(name, revision)
    with shared.forward() as model:
        limit = min(model.max_tokens or TOKEN_LIMIT, TOKEN_LIMIT)
        if model.is_encoder_decoder:
            inputs = encode_text(model, text, target=pair, max_tokens=limit)
        elif pair is not None:
            inputs = encode_pair(model, text, pair, max_tokens=limit)
        else:
            inputs = encode_text(model, text, max_tokens=limit)
        key = digest(name, model.revision, inputs.digest)
        return Traced(key, model, inputs, trace(model, inputs), shared)


@st.cache_resource(max_entries=4, show_spinner=False)
def traced_picture(
    name: str, revision: str | None, picture_digest: str, side: int | None, _picture: Picture
) -> Traced:
    """One picture through an image model.

    Raises:
        UnsupportedModelError, TimeoutError: as ``traced_text``.
    """
    from analysis.inputs import encode_image
    from analysis.trace import trace

    shared = shared_model(name, revision)
    with shared.forward() as model:
        inputs = encode_image(model, _picture, side=side if model.flexible_image_size else None)
        key = digest(name, model.revision, inputs.digest, str(side))
        return Traced(key, model, inputs, trace(model, inputs), shared)


@st.cache_data(max_entries=8, show_spinner=False)
def parity(name: str, revision: str | None) -> dict[str, float]:
    """Largest difference of each output between a captured pass and a plain one, on the first sample."""
    from analysis.images import read_picture
    from analysis.inputs import encode_image, encode_text
    from analysis.trace import parity as compare

    with shared_model(name, revision).forward() as model:
        if model.modality == "text":
            inputs = encode_text(model, TEXT_SAMPLES[0].text)
        else:
            sample = PICTURE_SAMPLES[0].id
            inputs = encode_image(model, read_picture(sample_picture_bytes(sample), name=sample))
        return compare(model, inputs)


def budgets() -> list[tuple[str, str]]:
    """Limits of memory, as (what, how much)."""
    known = sys.modules.get("attn_core.budget")  # importing it would import torch
    dense = f"{known.MEMORY_BUDGET / 2**20:,.0f} MiB" if known else "256 MiB"
    return [("one n × n map", dense), ("tokens of a text", f"{TOKEN_LIMIT:,}")]


# Numbers -----------------------------------------------------------------------------------------------------------
# ``key`` names the source (``Traced.key``), so the maps themselves stay out of the cache's key.


@st.cache_resource(max_entries=24, show_spinner=False)
def block(
    key: str, part: Part, layer: int, rows: tuple[int, int], columns: tuple[int, int], _map: AttentionMap
) -> Floats:
    """(H, r, c) weights of all heads of a layer, between some queries and some keys."""
    return _array(_map.block(None, slice(*rows), slice(*columns)))


@st.cache_resource(max_entries=6, show_spinner=False)
def matrix(key: str, part: Part, layer: int, head: int | None, _map: AttentionMap) -> Floats:
    """(Q, K) weights of one head, or the mean over heads, added up head by head so that one is held at a time."""
    if head is not None:
        return _array(_map.dense(head))
    total = _map.dense(0).double()
    for index in range(1, _map.heads):
        total += _map.dense(index)
    return _array((total / _map.heads).float())


@st.cache_resource(max_entries=4, show_spinner=False)
def thumbnails(key: str, part: Part, cells: int, _maps: Sequence[AttentionMap]) -> Floats:
    """(L, H, b, b) every head's map, max-pooled to at most ``cells`` a side."""
    return np.stack([_array(layer.pooled(None, cells)) for layer in _maps])


@st.cache_resource(max_entries=6, show_spinner=False)
def rolled_out(
    key: str, part: Part, fusion: Fusion, discard_ratio: float, last_layer: int, _maps: Sequence[AttentionMap]
) -> Floats:
    """(N, N) attention rollout through the layers 0 to ``last_layer``."""
    from analysis.rollout import rollout

    return _array(rollout(_maps[: last_layer + 1], fusion=fusion, discard_ratio=discard_ratio))


@st.cache_resource(max_entries=32, show_spinner=False)
def head_numbers(key: str, part: Part, layer: int, _map: AttentionMap) -> HeadNumbers:
    """Figures of each head of a layer."""
    found = _map.statistics()
    return HeadNumbers(_array(found.entropy), _array(found.max_weight), _array(found.mean_distance))


@st.cache_resource(max_entries=64, show_spinner=False)
def map_row(key: str, part: Part, layer: int, query: int, _map: AttentionMap) -> Floats:
    """(H, K) one query's weights in every head of a layer."""
    return _array(_map.row(None, query))


@st.cache_resource(max_entries=24, show_spinner=False)
def mean_row(key: str, part: Part, layer: int, _map: AttentionMap) -> Floats:
    """(H, K) weights that each key gets, averaged over the queries."""
    return _array(_map.statistics().received / _map.queries)


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
