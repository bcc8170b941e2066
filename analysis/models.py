"""``load_model``: a bundled name, a Hub id or a local folder → a frozen ``LoadedModel``.

Only safetensors weights and the model code of the transformers library are loaded: no pickles, no remote code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from analysis import catalogue
from analysis.errors import ModelUnavailableError
from analysis.predictions import Familiarity, Kind
from analysis.trained import (
    OFFERED,
    FromScratchModel,
    TrainedModel,
    TrainedPart,
    find_from_scratch,
    find_trained,
    verified_part,
)
from attn_core.errors import UnsupportedModelError

Progress = Callable[[str, float], None]
Modality = Literal["text", "image", "audio"]

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and all that a view or a method needs to know of it.

    Attributes:
        name: what it was asked for by; ``title``: what a reader sees; ``revision``: commit, version or digest.
        module: frozen and in evaluation mode; shared by all sessions, so nothing may be changed on it.
        family: the library's name of the architecture (``bert``, ``dinov2`` ...).
        layers: attention layers of the encoder, or of the only stack; ``decoder_layers``: of the decoder of an
            encoder-decoder, else 0.
        heads, kv_heads: of a layer (the largest number, with a note, where layers differ).
        max_tokens: longest input in tokens, special tokens included; None if the model sets no limit.
        labels: class names in order, None without a classification head.
        image_size: (height, width) of the pictures it was trained on; ``patch_size`` in pixels.
        prefix_tokens: tokens before the patches (CLS, distillation, registers).
        flexible_image_size: takes other picture sizes than ``image_size``.
        processor: tokenizer or image processor, None if the folder has none.
        attention_inputs: names of the modules whose output enters the self-attention of each layer (of the encoder,
            where there are two stacks); () where there is no such module.
        seam: attention goes through the library's attention interface.
        parameters: number of weights.
        notes: what a reader must know.
        kind: what the head's logits mean, where there is a classification head (``analysis.predictions.Kind``).
        temperature: that makes its probabilities as often right as they say; 1 where none was fitted.
        head: name of the module that turns features into logits; None where that is not known.
        familiarity: where the features of its training examples lie; None where that is not known.
    """

    name: str
    title: str
    revision: str
    module: nn.Module
    modality: Modality
    family: str
    layers: int
    decoder_layers: int
    heads: int
    kv_heads: int
    max_tokens: int | None
    labels: tuple[str, ...] | None
    task: str
    is_encoder_decoder: bool
    is_causal: bool
    image_size: tuple[int, int] | None
    patch_size: int | None
    prefix_tokens: int
    flexible_image_size: bool
    processor: Any
    attention_inputs: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    seam: bool
    bundled: bool
    parameters: int
    notes: tuple[str, ...] = ()
    kind: Kind | None = None
    temperature: float = 1.0
    head: str | None = None
    familiarity: Familiarity | None = None

    @property
    def identity(self) -> str:
        """What tells its numbers from those of every other model: name, revision and what it computes in."""
        return f"{self.name}@{self.revision} in {self.dtype}"


@dataclass(frozen=True)
class Source:
    """Where a model's files lie.

    Attributes:
        folder: local folder, to be looked through before anything is loaded from it.
        notes: what to tell of the way there.
        part: a trained part to merge into what the folder holds.
        own_code: the model of ``attn_core.models`` is to compute it, not the library's.
    """

    name: str
    title: str
    revision: str
    folder: Path
    bundled: bool
    notes: tuple[str, ...] = ()
    part: TrainedPart | None = None
    own_code: bool = False


def load_model(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    allow_local: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """The model of that name, frozen and ready.

    Args:
        name_or_path: a bundled name (``minilm``), a Hub id (``org/name``, ``org/name@revision``) or a local folder.
        revision: branch, tag or commit on the Hub; None for ``main``.
        device: ``auto`` (CUDA, else MPS, else CPU), or ``cpu``, ``cuda:1`` ...
        dtype: ``auto`` (float32 on the CPU; on an accelerator half precision where the weights are stored so), or
            ``float32``, ``float64``, ``bfloat16``, ``float16``.
        allow_local: False where a stranger writes the name: no path is opened then.
        progress: called with a stage and how much of that stage is done (0 to 1).
    Raises:
        UnsupportedModelError: refused or not usable here; the message says why and what to do.
        ModelUnavailableError: not installed, not found, changed, or the Hub does not answer.
        ValueError: for an unknown device or dtype.
    """
    report = progress or (lambda stage, done: None)
    target_device = resolve_device(device)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ValueError(f"load_model: dtype must be auto, {', '.join(_DTYPES)} but is {dtype!r}.")
    report("importing libraries", 0.0)
    from analysis.hf.loading import load_folder

    source = _find(name_or_path, revision, allow_local=allow_local, report=report)
    if source.part is not None and source.part.model.backbone is None:
        from analysis.hf.recurrent import load_recurrent

        return load_recurrent(source, device=target_device, dtype=_DTYPES.get(dtype) or torch.float32)
    if source.own_code:
        from analysis.hf.from_scratch import load_from_scratch

        return load_from_scratch(source, device=target_device, dtype=_DTYPES.get(dtype), report=report)
    return load_folder(source, device=target_device, dtype=_DTYPES.get(dtype), report=report)


def resolve_device(device: str) -> torch.device:
    """The device of that name; ``auto`` takes CUDA, else MPS, else the CPU.

    Raises:
        ValueError: if there is no such device here.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"load_model: device must be auto, cpu, cuda or mps and be present but is {device!r} "
            f"({str(error).splitlines()[0]}); choose auto."
        ) from error
    return found


def _find(name_or_path: str | Path, revision: str | None, *, allow_local: bool, report: Progress) -> Source:
    """Turn a name into a folder that holds its files."""
    trained = find_trained(str(name_or_path))
    if trained is not None:
        return _trained(trained, revision, report)
    own = find_from_scratch(str(name_or_path))
    if own is not None:
        return _from_scratch(own, revision, report)
    bundled = catalogue.find_bundled(str(name_or_path))
    if bundled is not None:
        if revision not in (None, bundled.version):
            raise ModelUnavailableError(
                f"load_model: {bundled.name} is bundled in version {bundled.version}; leave revision out."
            )
        report("checking", 0.0)
        return Source(bundled.name, bundled.title, bundled.origin, catalogue.verify(bundled), bundled=True)
    if isinstance(name_or_path, Path) or _looks_like_path(name_or_path):
        return _local(Path(name_or_path).expanduser(), revision, allow_local=allow_local)
    if allow_local and Path(name_or_path).is_dir():
        return _local(Path(name_or_path), revision, allow_local=True)
    repository, _, pinned = name_or_path.partition("@")
    if pinned and revision not in (None, pinned):
        raise ValueError(f"load_model: revision is given twice, {pinned!r} and {revision!r}.")
    from analysis.hf.hub import fetch

    return fetch(repository, pinned or revision, report=report)


def _trained(model: TrainedModel, revision: str | None, report: Progress) -> Source:
    """Files of the backbone, and the trained part, both hashed."""
    if revision not in (None, model.version):
        raise ModelUnavailableError(
            f"load_model: {model.name} comes in version {model.version}; leave revision out."
        )
    report("checking", 0.0)
    return Source(
        model.name,
        model.title,
        model.origin,
        model.path if model.backbone is None else catalogue.verify(model.backbone),
        bundled=True,
        part=verified_part(model),
    )


def _from_scratch(model: FromScratchModel, revision: str | None, report: Progress) -> Source:
    """Files of the backbone, hashed, for our own code."""
    if revision not in (None, model.backbone.version):
        raise ModelUnavailableError(
            f"load_model: {model.name} comes in version {model.backbone.version}; leave revision out."
        )
    report("checking", 0.0)
    folder = catalogue.verify(model.backbone)
    note = f"Computed by our own code, {model.code}, with the weights of {model.backbone.title}."
    return Source(model.name, model.title, model.origin, folder, bundled=True, notes=(note,), own_code=True)


def _looks_like_path(name: str) -> bool:
    return bool(re.match(r"^([./~\\]|[A-Za-z]:[\\/])", name)) or "\\" in name or name.count("/") > 1


def _local(folder: Path, revision: str | None, *, allow_local: bool) -> Source:
    if not allow_local:
        raise UnsupportedModelError(
            "load_model: folders of this machine cannot be opened from here; choose a bundled model "
            f"({bundled_names()}) or a Hub id such as org/name."
        )
    if revision is not None:
        raise ValueError("load_model: revision is for Hub ids; a local folder has none.")
    if not folder.is_dir():
        raise ModelUnavailableError(
            f"load_model: there is no folder {folder}; give a folder with config.json and model.safetensors, "
            f"a Hub id such as org/name, or a bundled model ({bundled_names()})."
        )
    from analysis.hf.files import content_digest

    return Source(str(folder), folder.resolve().name, content_digest(folder), folder, bundled=False)


def bundled_names() -> str:
    """The bundled names, for messages."""
    return ", ".join(model.name for model in OFFERED)


def describe(model: LoadedModel) -> list[tuple[str, str]]:
    """Label and value of what is known of a model, for a table."""
    rows: list[tuple[str, str | None]] = [
        ("name", model.name),
        ("title", model.title),
        ("revision", model.revision),
        ("architecture", f"{model.family} ({type(model.module).__name__})"),
        ("modality", model.modality),
        ("task", model.task),
        ("layers", f"{model.layers}" + (f" + {model.decoder_layers}" if model.is_encoder_decoder else "")),
        ("heads", f"{model.heads} (key/value heads: {model.kv_heads})"),
        ("causal", "yes" if model.is_causal else None),
        ("longest input", f"{model.max_tokens} tokens" if model.max_tokens else None),
        ("labels", f"{len(model.labels)}: {', '.join(model.labels[:5])} ..." if model.labels else None),
        ("picture size", "×".join(map(str, model.image_size)) if model.image_size else None),
        ("patch size", str(model.patch_size) if model.patch_size else None),
        ("prefix tokens", str(model.prefix_tokens) if model.modality == "image" else None),
        ("any picture size", "yes" if model.flexible_image_size else None),
        ("parameters", f"{model.parameters:,}"),
        ("device, dtype", f"{model.device}, {str(model.dtype).removeprefix('torch.')}"),
        ("attention", "attention interface" if model.seam else "output_attentions (fallback)"),
        *(("note", note) for note in model.notes),
    ]
    return [(label, value) for label, value in rows if value is not None]
