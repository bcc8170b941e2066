"""Case M11: attention within windows and to global tokens, in absolute positions, held to float64 formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from analysis.hf.attention import AttentionTrace, capture
from analysis.rollout import rollout, rollout_row
from attn_core import BandedMap, DenseMap
from tests.oracles import bands as oracle
from tests.tiny_models import BERT_LIKE, BY_NAME, sharpen

TOLERANCE = 1e-5
WINDOWS = [4, 8, 4]


def longformer(name: str = "LongformerModel") -> transformers.PreTrainedModel:
    """A tiny random Longformer with layers of different windows."""
    config = transformers.LongformerConfig(**BERT_LIKE, attention_window=list(WINDOWS), sep_token_id=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, name)(config)
    sharpen(module, seed=0, sharpness=2.0)
    return module.eval()


def texts(tokens: int, *, batch: int = 2) -> Tensor:
    return torch.randint(5, 90, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def layers_of(module: nn.Module) -> list[nn.Module]:
    names = ("LongformerSelfAttention", "LEDEncoderSelfAttention")
    return [part for part in module.modules() if type(part).__name__ in names]


def run(module: nn.Module, tensors: dict[str, Tensor]) -> tuple[AttentionTrace, list[dict[str, Any]]]:
    """The captured trace, and what went into each windowed layer and came out of it."""
    seen: list[dict[str, Any]] = []

    def note(
        _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any], output: tuple[Tensor, ...]
    ) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        seen.append({**kwargs, "hidden": hidden, "context": output[0]})

    handles = [part.register_forward_hook(note, with_kwargs=True) for part in layers_of(module)]
    with torch.no_grad(), capture(module) as trace:
        module(**tensors)
    for handle in handles:
        handle.remove()
    return trace, seen


def exact(part: nn.Module, seen: dict[str, Any], item: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Weights (H, N, N), context (N, M) and values of a layer from its own parameters, in float64."""
    hidden = seen["hidden"][item].double().numpy()
    names = [f"{name}{kind}" for name in ("query", "key", "value") for kind in ("", "_global")]
    projections = {
        name: tuple(
            p.detach().double().numpy() for p in (getattr(part, name).weight, getattr(part, name).bias)
        )
        for name in names
    }
    weights, context = oracle.windowed_attention(
        hidden,
        projections,  # type: ignore[arg-type]
        heads=part.num_heads,
        reach=part.one_sided_attn_window_size,
        valid=~seen["is_index_masked"][item].numpy(),
        is_global=seen["is_index_global_attn"][item].numpy(),
    )
    values = {
        kind: torch.from_numpy(hidden @ projections[f"value{kind}"][0].T + projections[f"value{kind}"][1])
        for kind in ("", "_global")
    }
    return torch.from_numpy(weights), torch.from_numpy(context), values


GLOBAL = {
    "none": [[], []],
    "first of both": [[0], [0]],
    "one item alone": [[], [3]],
    "different numbers": [[0, 5, 6], [4]],
    "every token": [list(range(11)), list(range(11))],
}
PADDING = {
    "none": [[1] * 11, [1] * 11],
    "right": [[1] * 11, [1] * 7 + [0] * 4],
    "left": [[1] * 11, [0] * 3 + [1] * 8],
    "gap": [[1] * 11, [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0]],
}


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING)
@pytest.mark.parametrize("chosen", GLOBAL.values(), ids=GLOBAL)
@pytest.mark.parametrize("family", ["Longformer", "LED"])
def test_weights_and_contexts_are_those_of_the_layers_own_parameters(
    family: str, chosen: list[list[int]], padding: list[list[int]]
) -> None:
    module = longformer() if family == "Longformer" else BY_NAME["LED"].build()
    mask, tokens = torch.tensor(padding), 11
    global_mask = torch.zeros(2, tokens, dtype=torch.long)
    for item, positions in enumerate(chosen):
        global_mask[item, positions] = 1
    trace, seen = run(
        module,
        {"input_ids": texts(tokens), "attention_mask": mask, "global_attention_mask": global_mask},
    )
    assert [m.reach for m in trace.encoder] == [w // 2 for w in WINDOWS]
    assert all(m.shape == (2, 4, tokens, tokens) for m in trace.encoder)
    for item in range(2):
        kept = mask[item].nonzero()[:, 0]
        found = trace.item(item).encoder
        for part, layer_seen, layer in zip(layers_of(module), seen, found, strict=True):
            assert (
                layer_seen["hidden"].shape[1] == 16
            )  # padded by the model to a multiple of its longest window
            weights, context, values = exact(part, layer_seen, item)
            ours = layer.dense()
            assert ours.shape == (4, len(kept), len(kept))
            assert_close(ours.sum(-1), torch.ones(4, len(kept)), rtol=0.0, atol=TOLERANCE)
            assert_close(ours, weights[:, kept][:, :, kept].float(), rtol=0.0, atol=TOLERANCE)
            of_kind = [
                (ours.double() @ value[kept].view(-1, 4, 8).transpose(0, 1)).transpose(0, 1).flatten(1)
                for value in (values[""], values["_global"])
            ]
            is_global = (global_mask * mask)[item, kept].bool()
            ours_context = torch.where(is_global[:, None], of_kind[1], of_kind[0]).float()
            assert_close(ours_context, layer_seen["context"][item, kept], rtol=0.0, atol=TOLERANCE)
            assert_close(context[kept].float(), layer_seen["context"][item, kept], rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("LongformerModel", ()),
        ("LongformerForMaskedLM", ()),
        ("LongformerForSequenceClassification", (0,)),
        ("LongformerForTokenClassification", ()),
        ("LongformerForQuestionAnswering", (0, 1, 2)),
    ],
)
def test_the_librarys_own_choice_of_global_tokens_is_kept_and_told(
    name: str, positions: tuple[int, ...]
) -> None:
    ids = texts(11, batch=1)
    ids[0, [3, 9, 10]] = 2  # separators: the question is what stands before the first
    module = longformer(name)
    trace, seen = run(module, {"input_ids": ids})
    item = trace.item(0)
    for part, layer_seen, layer in zip(layers_of(module), seen, item.encoder, strict=True):
        assert layer.global_positions() == positions
        assert_close(
            layer.dense(), exact(part, layer_seen, 0)[0][:, :11, :11].float(), rtol=0.0, atol=TOLERANCE
        )
    assert "holds its window" in trace.notes[0]
    assert "the 2 or 4 (by layer) tokens on either side" in item.notes[1]
    told = {(): "no token has global attention", (0,): "attend to all: 0,", (0, 1, 2): "attend to all: 0–2,"}
    assert told[positions] in item.notes[1]
    assert item.item(0).notes == item.notes


def test_notes_count_in_what_is_left_of_an_item() -> None:
    trace, _ = run(
        longformer(),
        {
            "input_ids": texts(11),
            "attention_mask": torch.tensor(PADDING["left"]),
            "global_attention_mask": torch.tensor([[1, 1] + [0] * 9, [0] * 5 + [1, 0, 1, 1, 1, 0]]),
        },
    )
    assert [trace.item(item).notes[-1].split(": ")[-1] for item in range(2)] == [
        "0, 1, counted from 0.",
        "2, 4–6, counted from 0.",
    ]


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 24])
def test_any_length_also_below_and_at_a_multiple_of_the_window(tokens: int) -> None:
    ids = texts(tokens, batch=1)
    for chosen in (torch.zeros_like(ids), torch.zeros_like(ids).index_fill(1, torch.tensor([tokens - 1]), 1)):
        module = longformer()
        trace, seen = run(module, {"input_ids": ids, "global_attention_mask": chosen})
        for part, layer_seen, layer in zip(layers_of(module), seen, trace.item(0).encoder, strict=True):
            weights = exact(part, layer_seen, 0)[0][:, :tokens, :tokens]
            assert_close(layer.dense(), weights.float(), rtol=0.0, atol=TOLERANCE)


def test_rollout_of_bands_is_rollout_of_the_same_maps() -> None:
    batch = BY_NAME["Longformer"].batch()
    trace, _ = run(BY_NAME["Longformer"].build(), batch.tensors)
    for item in range(2):
        maps = trace.item(item).encoder
        assert all(isinstance(layer, BandedMap) for layer in maps)
        dense = [DenseMap(layer.dense()[None]) for layer in maps]
        expected = rollout(dense)
        assert_close(rollout(maps), expected)
        assert_close(rollout_row(maps, 3), expected[3])
        assert np.isclose(float(expected.sum()), expected.shape[0], atol=1e-4)


def test_a_layout_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that handed out one column more would shift every weight by one key."""
    from attn_core.errors import UnsupportedModelError

    module = longformer()
    encoder = module.encoder
    plain = encoder.forward

    def wider(*args: Any, **kwargs: Any) -> Any:
        output = plain(*args, **kwargs)
        output.attentions = tuple(nn.functional.pad(w, (0, 1)) for w in output.attentions)
        return output

    monkeypatch.setattr(encoder, "forward", wider)
    with pytest.raises(UnsupportedModelError, match="lays them out in a way that is not known here"):
        run(module, {"input_ids": texts(11)})
