"""Forward passes for the tests of the attention family: of oracles, of tiny text models, and with given weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from analysis.evidence.passes import ForwardPass, Layer, forward_pass
from analysis.evidence.targets import Outputs
from analysis.figure_data import TokenLabel
from analysis.inputs import Inputs, encode_text
from analysis.models import LoadedModel, load_model
from attn_core.maps import DenseMap
from attn_core.seam import Recorded
from tests import input_helpers as tiny
from tests.evidence.oracle_models import ORACLES, small_vit
from tests.tiny_models import sharpen

SENTENCE = "the house is old and the bread is good"

LLAMA = {
    "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 40, "max_position_embeddings": 64, "attention_bias": True,
}  # fmt: skip
DEBERTA = tiny.BERT | {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "max_relative_positions": -1, "position_biased_input": False, "num_labels": 3,
}  # fmt: skip
T5 = tiny.T5 | {"is_encoder_decoder": True}

FAMILIES: Mapping[str, tuple[str, str, Any, dict[str, Any], float]] = {
    "bert": (
        "BertForSequenceClassification",
        "BertConfig",
        tiny.word_piece,
        tiny.BERT | {"num_labels": 3},
        2.0,
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", tiny.byte_level, tiny.GPT2, 2.0),
    "llama": ("LlamaForCausalLM", "LlamaConfig", tiny.byte_level, LLAMA, 2.0),
    "deberta": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        tiny.word_piece,
        DEBERTA,
        2.0,
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", tiny.unigram, tiny.BART, 1.5),
    "t5": ("T5ForConditionalGeneration", "T5Config", tiny.unigram, T5, 0.8),
}


def save(folder: Path, family: str) -> Path:
    """A tiny model of a family in a folder, with peaked attention and every bias non-zero."""
    model, config, processor, options, sharpness = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, model)(getattr(transformers, config)(**options))
    sharpen(module, seed=0, sharpness=sharpness)
    module.save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def run_of_text(folder: Path, **options: Any) -> ForwardPass:
    """A pass of the sentence through the model in a folder, in float64."""
    model = load_model(folder, device="cpu", dtype="float64")
    return forward_pass(model, encode_text(model, SENTENCE, **options))


def reference(run: ForwardPass, folder: Path, target: Any) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """(attention, gradient) of every layer by kind, (L, H, Q, K), from the library's eager attention and autograd."""
    module = load_model(folder, device="cpu", dtype="float64").module.requires_grad_()
    if run.model.seam:
        module.set_attn_implementation("eager")
    output = module(**run.inputs.tensors, output_attentions=True)
    if run.model.is_encoder_decoder:
        names = {
            "encoder": "encoder_attentions",
            "decoder": "decoder_attentions",
            "cross": "cross_attentions",
        }
    else:
        names = {next(iter(run.layers)): "attentions"}
    number = target.value(Outputs(output.logits, None, torch.arange(0)))[0]
    found = {}
    for kind, name in names.items():
        weights = output[name]
        gradients = torch.autograd.grad(number, weights, retain_graph=True)
        found[kind] = (_stacked(weights), _stacked(gradients))
    return found


def _stacked(layers: tuple[Tensor, ...]) -> NDArray[Any]:
    found: NDArray[Any] = torch.stack([layer.detach()[0].double() for layer in layers]).numpy()
    return found


@cache
def tiny_bert(dtype: str = "float64") -> LoadedModel:
    """The oracles' random BERT: hidden 32, 2 layers, 2 heads, 3 labels."""
    return load_model(ORACLES / "models" / "bert_tiny_seed0", device="cpu", dtype=dtype)


def text_inputs(ids: NDArray[Any]) -> Inputs:
    """Token ids whose first and last are special."""
    last = len(ids) - 1
    tokens = tuple(TokenLabel(str(i), str(i), special=i in (0, last)) for i in range(len(ids)))
    return Inputs(
        tensors={
            "input_ids": torch.from_numpy(np.asarray(ids))[None],
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        },
        tokens=tokens,
        target_tokens=None,
        grid=None,
        picture=None,
        source="oracle",
        digest="oracle",
        notes=(),
        total_tokens=len(ids),
        kept_tokens=len(ids),
    )


def run_with(weights: Tensor) -> ForwardPass:
    """A pass whose encoder attends by these weights (L, H, N, N); its first and last tokens are special."""
    model = small_vit()
    layers = tuple(
        Layer(kept := DenseMap(stored=layer[None]), Recorded(model.module, kept, weights=layer[None]))
        for layer in weights
    )
    inputs = text_inputs(np.arange(weights.shape[-1]))
    outputs = Outputs(None, None, torch.arange(weights.shape[-1]))
    return ForwardPass(model, inputs, outputs, {"encoder": layers}, (), torch.zeros(1))
