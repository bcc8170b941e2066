"""What lies in a model's folder, looked through before anything is loaded: no pickles, no code, no surprises.

Reads JSON and the headers of safetensors files only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_core.errors import UnsupportedModelError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_FOREIGN = {
    ".gguf": "GGUF",
    ".onnx": "ONNX",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
}
_HASH_LIMIT = (
    512 * 2**20
)  # bytes of weights that are hashed whole; above, names, sizes and times stand for them
_JSON_LIMIT = 64 * 2**20

# Fields of config.json that choose code, kernels, files or outputs. They are never taken from a downloaded file.
_DROPPED_FIELDS = frozenset(
    {
        "auto_map",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "custom_pipelines",
        "distributed_config",
        "fusion_config",
        "kernel_config",
        "output_attentions",
        "_output_attentions",
        "output_hidden_states",
        "return_dict",
        "transformers_weights",
        "torchscript",
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
    }
)


@dataclass(frozen=True)
class Weights:
    """The weight files of a folder, their headers read.

    Attributes:
        files: safetensors files.
        numbers: how many numbers they hold.
        dtype: the stored type that most numbers have, as safetensors spells it (``F32``, ``BF16`` ...).
    """

    files: tuple[Path, ...]
    numbers: int
    dtype: str


def refuse_by_names(names: Collection[str], *, what: str) -> None:
    """Raise unless files of these names can be loaded safely; ``names`` are those of the top folder.

    Raises:
        UnsupportedModelError: says what there is instead of safetensors, and what to do.
    """
    if ".metadata" in names:
        raise UnsupportedModelError(
            f"load_model: {what} is a distributed checkpoint with pickled metadata, which could run code; "
            "save it with save_pretrained(folder) and load that folder."
        )
    if "adapter_config.json" in names:
        raise UnsupportedModelError(
            f"load_model: {what} holds an adapter (PEFT, LoRA); merge it into its model with merge_and_unload(), "
            "save that with save_pretrained(folder), and load the folder."
        )
    if WEIGHTS in names or INDEX in names:
        return
    pickles = sorted(name for name in names if name.endswith(_PICKLES) and name != "training_args.bin")
    if pickles:
        raise UnsupportedModelError(
            f"load_model: {what} has its weights only as a pickle ({pickles[0]}), and opening a pickle can run code; "
            "convert it where you trust it, with from_pretrained(...) and save_pretrained(folder), which writes "
            "model.safetensors, and load that folder."
        )
    foreign = next(
        (label for suffix, label in _FOREIGN.items() if any(n.endswith(suffix) for n in names)), None
    )
    if foreign is not None:
        raise UnsupportedModelError(
            f"load_model: {what} holds {foreign} weights only; choose the same model with model.safetensors."
        )
    others = sorted(name for name in names if name.endswith(".safetensors"))
    if others:
        raise UnsupportedModelError(
            f"load_model: {what} has no {WEIGHTS} (it holds {others[0]}); save it with save_pretrained(folder)."
        )
    raise UnsupportedModelError(
        f"load_model: {what} holds no weights; it must contain config.json and {WEIGHTS}, as "
        "save_pretrained(folder) writes them."
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UnsupportedModelError: if the file is missing, too large, or not a JSON object.
    """
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise UnsupportedModelError(f"load_model: {path.name} is larger than {_JSON_LIMIT >> 20} MiB.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedModelError(
            f"load_model: {path.parent} holds no {path.name}; it must contain config.json and {WEIGHTS}, as "
            "save_pretrained(folder) writes them."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"load_model: {path.name} cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"load_model: {path.name} must hold a JSON object.")
    return content


def safe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config without the fields that choose code, kernels, files or outputs, at any depth."""
    return {name: _cleaned(value) for name, value in config.items() if name not in _DROPPED_FIELDS}


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return safe_config(value)
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def read_weights(folder: Path) -> Weights:
    """Find the weight files and read their headers, which hold names, types and sizes but no numbers.

    Raises:
        UnsupportedModelError: if a file is missing, cut off, or named outside the folder.
    """
    files = tuple(folder / name for name in weight_names(folder))
    counts: dict[str, int] = {}
    for path in files:
        for name, tensor in _header(path).items():
            if name != "__metadata__":
                counts[tensor["dtype"]] = counts.get(tensor["dtype"], 0) + math.prod(tensor["shape"])
    return Weights(
        files=files,
        numbers=sum(counts.values()),
        dtype=max(counts, key=lambda dtype: counts[dtype], default="F32"),
    )


def weight_names(folder: Path) -> list[str]:
    """Names of the weight files: one, or the shards that the index names."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UnsupportedModelError(f"load_model: {INDEX} names no shards.")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise UnsupportedModelError(
                f"load_model: {INDEX} names {name!r}, which is no safetensors file beside it."
            )
    return names


def _header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file: 8 bytes of length, then JSON; checked against the file's size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length < min(size, _JSON_LIMIT) else None
        if not isinstance(header, dict):
            raise ValueError("no header")
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except FileNotFoundError as error:
        raise UnsupportedModelError(f"load_model: the weight file {path.name} is missing.") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnsupportedModelError(
            f"load_model: {path.name} is not a readable safetensors file ({error})."
        ) from error
    if size != 8 + length + end:
        raise UnsupportedModelError(
            f"load_model: {path.name} has {size} bytes but its header promises {8 + length + end}; it was cut off "
            "or changed, so fetch it again."
        )
    return header


def content_digest(folder: Path) -> str:
    """A short digest of config and weights: two folders with the same digest hold the same model.

    Weights of more than 512 MiB are not read for it; their names, sizes and times of change stand for them.
    """
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    whole = sum(path.stat().st_size for path in paths) <= _HASH_LIMIT
    for path in [folder / "config.json", *paths]:
        if not path.is_file():
            continue
        if whole or path.suffix == ".json":
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        else:
            status = path.stat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    return f"{'sha256' if whole else 'files'}:{digest.hexdigest()[:16]}"
