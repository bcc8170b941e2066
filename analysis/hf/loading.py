"""A folder of files → a ``LoadedModel``: the one place where transformers builds a model or tokenizer from files."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import logging as library_logging

from analysis.hf import families
from analysis.hf.files import Weights, read_json, read_weights, refuse_by_names, safe_config
from analysis.hf.memory import check_memory
from analysis.hf.trained import familiarity_of, with_trained_part
from analysis.models import LoadedModel, Modality, Progress, Source
from analysis.predictions import Kind
from attn_core.errors import UnsupportedModelError

# What a folder can make the library raise; any of these becomes one sentence.
_BUILD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ImportError,
    RuntimeError,
    ZeroDivisionError,
    RecursionError,
    SafetensorError,
    StrictDataclassError,
)

_TASKS = (
    ("ForSequenceClassification", "sequence-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForQuestionAnswering", "question-answering"),
    ("ForMaskedLM", "masked-lm"),
    ("ForCausalLM", "causal-lm"),
    ("LMHeadModel", "causal-lm"),
    ("ForImageClassification", "image-classification"),
    ("ForImageClassificationWithTeacher", "image-classification"),
    ("MTModel", "seq2seq-lm"),
    ("ForConditionalGeneration", "seq2seq-lm"),
)
_MODALITIES: dict[str, Modality] = {
    "input_ids": "text",
    "pixel_values": "image",
    "input_features": "audio",
    "input_values": "audio",
}
_TWO_TOWERS = frozenset({"clip", "siglip"})
_PROCESSORS: dict[Modality, Any] = {
    "text": AutoTokenizer,
    "image": AutoImageProcessor,
    "audio": AutoFeatureExtractor,
}

CLASSIFIES_WHOLE = frozenset({"sequence-classification", "image-classification"})
"""Tasks with one row of logits for the whole input."""

# Building a model patches initialisers of torch for its duration, so one is built at a time.
_building = threading.Lock()
_reporter: ContextVar[Progress | None] = ContextVar("analysis.hf.loading reporter", default=None)


def load_folder(
    source: Source, *, device: torch.device, dtype: torch.dtype | None, report: Progress
) -> LoadedModel:
    """Load what lies in ``source.folder``.

    Raises:
        UnsupportedModelError: refused, or the library cannot build it; says why and what to do.
    """
    report("reading configuration", 0.0)
    names = {path.name for path in source.folder.iterdir()}
    raw = read_json(source.folder / "config.json")
    refuse_by_names(names, what=source.title)
    weights = read_weights(source.folder)
    config, notes = read_config(raw, source)
    model_class, task = choose_class(config, source)
    target = dtype or automatic_dtype(weights, device)
    check_memory(weights.numbers * target.itemsize, what=source.title, device=device)
    report("loading weights", 0.0)
    module, task, more = _build(model_class, task, config, source, target, report)
    report("preparing", 0.0)
    if source.part is not None:
        module, task = with_trained_part(module, source.part)
    nn.Module.to(module, device)
    nn.Module.eval(module).requires_grad_(False)
    processor, missing = read_processor(source, _MODALITIES[module.main_input_name], module.config)
    notes += [*more, *missing, *dtype_notes(weights, target)]
    loaded = _describe(module, task, processor, source, notes, device=device, dtype=target)
    report("preparing", 1.0)
    if source.part is None:
        return loaded
    return dataclasses.replace(
        loaded,
        temperature=source.part.temperature,
        head="classifier",
        familiarity=familiarity_of(source.part),
    )


def read_config(raw: dict[str, Any], source: Source) -> tuple[PreTrainedConfig, list[str]]:
    """The library's own configuration of the model, without the fields that choose code, kernels or outputs.

    A model of two towers (CLIP, SigLIP) becomes its picture tower.

    Raises:
        UnsupportedModelError: the architecture is not the library's own, is quantised, or is made of several models.
    """
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        wanted = f"the architecture {family!r}" if family else "no model_type in its config.json"
        code = " Its own code is not run, since remote code could do anything." if "auto_map" in raw else ""
        raise UnsupportedModelError(
            f"load_model: {source.title} has {wanted}, which transformers {transformers.__version__} does not know."
            f"{code} Choose a model of an architecture that the library contains."
        )
    if raw.get("quantization_config"):
        raise UnsupportedModelError(
            f"load_model: {source.title} is quantised; choose the same model in float32, bfloat16 or float16."
        )
    try:
        config = CONFIG_MAPPING[family].from_dict(safe_config(raw))
    except _BUILD_ERRORS as error:
        raise UnsupportedModelError(
            f"load_model: the config.json of {source.title} is not valid: {_first_line(error)}"
        ) from error
    notes = (
        ["The model names code of its own; the library's code is used instead."] if "auto_map" in raw else []
    )
    if family in _TWO_TOWERS:
        config = config.vision_config
        notes.append(f"{family} has a text and a picture tower; the picture tower is shown.")
    elif {"vision_config", "audio_config"} & config.sub_configs.keys() or (
        config.model_type in ("vision-encoder-decoder", "speech-encoder-decoder", "vision-text-dual-encoder")
    ):
        raise UnsupportedModelError(
            f"load_model: {source.title} ({family}) takes several kinds of input together; choose a model of text or "
            "of pictures."
        )
    return config, notes


def choose_class(config: PreTrainedConfig, source: Source) -> tuple[type[PreTrainedModel], str]:
    """The library's class for the checkpoint's head, or its headless model, and the task's name.

    Raises:
        UnsupportedModelError: if the library has no such model, or it has no attention or another kind of input.
    """
    named = next(iter(getattr(config, "architectures", None) or ()), "")
    found: Any = getattr(transformers, str(named), None)
    own = (
        isinstance(found, type) and issubclass(found, PreTrainedModel) and found.config_class is type(config)
    )
    task = next((task for suffix, task in _TASKS if str(named).endswith(suffix)), None)
    if task == "seq2seq-lm" and not config.is_encoder_decoder:
        task = None
    chosen = found if own and task else _headless(config) or (found if own else None)
    if chosen is None:
        raise UnsupportedModelError(
            f"load_model: transformers has no model for {source.title} ({config.model_type}, {named or 'no class'})."
        )
    _check_kind(chosen, config, source)
    return chosen, (task if own and task else None) or "none"


def _headless(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The library's model without a head for this configuration."""
    found: Any = MODEL_MAPPING.get(type(config), None)
    chosen: type[PreTrainedModel] | None = found[0] if isinstance(found, (list, tuple)) else found
    return chosen


def _check_kind(model_class: type[PreTrainedModel], config: PreTrainedConfig, source: Source) -> None:
    if model_class.main_input_name not in _MODALITIES:
        raise UnsupportedModelError(
            f"load_model: {source.title} takes {model_class.main_input_name}; choose a model of text or of pictures."
        )
    layers, _, heads, _ = families.stack_sizes(config)
    if not layers or not heads:
        raise UnsupportedModelError(
            f"load_model: {source.title} ({config.model_type}) has no attention layers that its configuration "
            "tells of; choose a transformer."
        )


def _build(
    model_class: type[PreTrainedModel],
    task: str,
    config: PreTrainedConfig,
    source: Source,
    dtype: torch.dtype,
    report: Progress,
) -> tuple[PreTrainedModel, str, list[str]]:
    """The module with every weight from the files; falls back to the headless model where the head has none."""
    module, missing = _from_files(model_class, config, source, dtype, report)
    notes: list[str] = []
    if missing and task != "none" and all(not _in_base(name, module) for name in missing):
        notes.append(f"The files hold no weights for the {task} head, so the model is shown without it.")
        base = _headless(config)
        if base is None:
            raise _incomplete(source, missing)
        module, missing = _from_files(base, config, source, dtype, report)
        task = "none"
    poolers = [name for name in missing if "pooler" in name.split(".")]
    if len(poolers) < len(missing):
        raise _incomplete(source, missing)
    if poolers:
        notes.append(
            "The files hold no weights for the pooler, so its output means nothing; attention is unaffected."
        )
    return module, task, notes


def _in_base(name: str, module: PreTrainedModel) -> bool:
    return name.startswith(f"{module.base_model_prefix}.")


def _incomplete(source: Source, missing: list[str]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"load_model: the files of {source.title} lack {len(missing)} weights, such as {missing[0]}, which would be "
        "random; fetch the model again, or save it with save_pretrained(folder)."
    )


def _from_files(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    source: Source,
    dtype: torch.dtype,
    report: Progress,
) -> tuple[PreTrainedModel, list[str]]:
    """Build and fill a model; returns it with the names of weights that the files lack."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    if not model_class._can_set_attn_implementation():
        options["attn_implementation"] = "eager"  # its weights are asked for with output_attentions
    try:
        with _building, _reporting(report):
            loaded: Any = model_class.from_pretrained(
                source.folder, config=config, dtype=dtype, output_loading_info=True, **options
            )
    except _BUILD_ERRORS as error:
        raise UnsupportedModelError(
            f"load_model: {source.title} could not be built as {model_class.__name__}: {_first_line(error)}"
        ) from error
    module, loading = loaded
    return module, sorted(loading["missing_keys"])


@contextmanager
def _reporting(report: Progress) -> Iterator[None]:
    token = _reporter.set(report)
    try:
        yield
    finally:
        _reporter.reset(token)


class _Bar:
    """Stands in for the library's progress bar: reports to whoever loads in this thread, draws nothing."""

    def __init__(self, report: Progress, items: Any, total: int | None) -> None:
        self._report, self._items, self._total = report, items, total

    def __iter__(self) -> Iterator[Any]:
        total = self._total or (len(self._items) if hasattr(self._items, "__len__") else 0)
        for done, item in enumerate(self._items):
            yield item
            self._report("loading weights", (done + 1) / total if total else 0.0)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _progress_bar(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The library's hook for progress bars. Outside of a load of ours, the bar is the library's own."""
    report = _reporter.get()
    if report is None:
        return factory(*arguments, **options)
    items = arguments[0] if arguments else options.get("iterable", ())
    return _Bar(report, items if items is not None else (), options.get("total"))


class _OwnWords(logging.Filter):
    """Keeps back the library's tables of missing weights during a load of ours, which tells them in its own words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _reporter.get() is None or record.levelno > logging.WARNING


library_logging.set_tqdm_hook(_progress_bar)
logging.getLogger("transformers.modeling_utils").addFilter(_OwnWords())


def read_processor(source: Source, modality: Modality, config: PreTrainedConfig) -> tuple[Any, list[str]]:
    """Tokenizer or image processor of the folder; None with a note if there is none."""
    what = {"text": "tokenizer", "image": "image processor", "audio": "feature extractor"}[modality]
    if not _has_processor(source.folder, modality):
        return None, [f"The folder holds no {what}."]
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if modality == "text":
        options["config"] = config
    try:
        return _PROCESSORS[modality].from_pretrained(source.folder, **options), []
    except _BUILD_ERRORS as error:
        return None, [f"The {what} could not be loaded: {_first_line(error)}"]


def _has_processor(folder: Path, modality: Modality) -> bool:
    """Whether the files are there; without a vocabulary the library would make up an empty tokenizer."""
    patterns = ["preprocessor_config.json", "processor_config.json"]
    if modality == "text":
        patterns = ["tokenizer.json", "vocab.*", "*.model", "*.spm", "*.tiktoken"]
    return any(path for pattern in patterns for path in folder.glob(pattern))


def automatic_dtype(weights: Weights, device: torch.device) -> torch.dtype:
    """Float32 on the CPU, where half precision is slow; elsewhere the stored type."""
    stored = {"BF16": torch.bfloat16, "F16": torch.float16}.get(weights.dtype, torch.float32)
    return torch.float32 if device.type == "cpu" else stored


def dtype_notes(weights: Weights, dtype: torch.dtype) -> list[str]:
    """What to tell where weights are computed in another type than they are stored in."""
    stored = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(weights.dtype)
    computed = str(dtype).removeprefix("torch.")
    if stored is None or stored == computed:
        return []
    return [f"Weights are stored as {stored} and computed in {computed}."]


def _describe(
    module: PreTrainedModel,
    task: str,
    processor: Any,
    source: Source,
    notes: list[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> LoadedModel:
    """Collect what the record says of the module."""
    config = module.config
    modality = _MODALITIES[module.main_input_name]
    layers, decoder_layers, heads, kv_heads = families.stack_sizes(config)
    is_image = modality == "image"
    seam = all(
        type(part)._can_set_attn_implementation()
        for part in module.modules()
        if isinstance(part, PreTrainedModel)
    )
    if (note := families.heads_differ(config)) is not None:
        notes.append(note)
    patch = families.size_pair(getattr(config, "patch_size", None)) if is_image else None
    if modality == "audio":
        notes.append("The app offers no audio input; the model can be used from Python.")
    return LoadedModel(
        name=source.name,
        title=source.title,
        revision=source.revision,
        module=module,
        modality=modality,
        family=config.model_type,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        kv_heads=kv_heads,
        max_tokens=families.max_tokens(config, module, processor) if modality == "text" else None,
        labels=_labels(config) if task.endswith("classification") else None,
        task="speech-seq2seq" if modality == "audio" and task == "seq2seq-lm" else task,
        is_encoder_decoder=bool(config.is_encoder_decoder),
        is_causal=modality == "text" and families.is_causal(config),
        image_size=families.size_pair(getattr(config, "image_size", None)) if is_image else None,
        patch_size=patch[0] if patch is not None and patch[0] == patch[1] else None,
        prefix_tokens=families.prefix_tokens(module) if is_image else 0,
        flexible_image_size=is_image and families.flexible_image_size(config, module),
        processor=processor,
        attention_inputs=families.attention_inputs(config, module),
        device=device,
        dtype=dtype,
        seam=seam,
        bundled=source.bundled,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        notes=(*source.notes, *notes),
        kind=_kind(config) if task in CLASSIFIES_WHOLE else None,
    )


def _kind(config: PreTrainedConfig) -> Kind:
    """What the logits of a classification head mean, as the library trains and reads them."""
    if config.num_labels == 1 or config.problem_type == "regression":
        return "value"
    return "sigmoid" if config.problem_type == "multi_label_classification" else "softmax"


def _labels(config: PreTrainedConfig) -> tuple[str, ...] | None:
    labels: Any = config.id2label
    return tuple(str(labels[index]) for index in sorted(labels)) if labels else None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0][:240]}" if lines else type(error).__name__
