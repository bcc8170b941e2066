"""Capture under the conditions of real use: threads, exceptions, options, unequal lengths, odd shapes and configs."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from analysis.hf.attention import IMPLEMENTATION, capture
from analysis.hf.rule_masks import RuleMask
from attn_core.errors import UnsupportedModelError
from attn_core.factored import FactoredMap
from attn_core.masks import MaskRule
from tests.capture_helpers import assert_same_state, captured, maps_by_kind, state_of
from tests.tiny_models import (
    BY_NAME,
    LLAMA_LIKE,
    VIT_LIKE,
    Architecture,
    largest_difference,
    library_weights,
    valid_weights,
)

TOLERANCE = 1e-5


def changed(name: str, **options: Any) -> transformers.PreTrainedModel:
    """The architecture of the table with other config options."""
    return BY_NAME[name].build(**options)


def eager_attentions(module: transformers.PreTrainedModel, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """``output_attentions`` of a copy that runs eager."""
    twin = type(module)._from_config(module.config, attn_implementation="eager").eval()
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        return tuple(twin(**tensors, output_attentions=True).attentions)


# Threads


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Make threads take turns every few microseconds, so that a race shows within a test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


def thread_inputs(architecture: Architecture, count: int) -> list[dict[str, Tensor]]:
    """Different inputs of one model, of different lengths for text."""
    batches = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(100 + seed)
        if "pixel_values" in architecture.batch().tensors:
            batches.append({"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)})
            continue
        ids = torch.randint(5, 90, (1, 6 + seed), generator=generator)
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if architecture.name == "T5":
            tensors["decoder_input_ids"] = ids[:, : 3 + seed]
        batches.append(tensors)
    return batches


def run_together(workers: list[Callable[[], None]]) -> None:
    """Run every worker in its own thread, all at once, and raise what one of them raised."""
    start = threading.Barrier(len(workers))

    def begin(worker: Callable[[], None]) -> None:
        start.wait(timeout=60)
        worker()

    with ThreadPoolExecutor(len(workers)) as pool:
        for future in [pool.submit(begin, worker) for worker in workers]:
            future.result(timeout=300)


@pytest.mark.usefixtures("busy_switching")
@pytest.mark.parametrize("name", ["BERT", "Mistral", "T5", "ViT", "BEiT", "DeBERTa-v2", "Longformer"])
def test_captures_in_several_threads_on_one_model_do_not_mix(name: str) -> None:
    architecture = BY_NAME[name]
    module = architecture.build()
    inputs = thread_inputs(architecture, 4)
    expected = [
        {kind: [m.dense() for m in maps] for kind, maps in maps_by_kind(captured(module, tensors)[0]).items()}
        for tensors in inputs
    ]
    before = state_of(module)

    def worker(index: int) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(25):
                trace, _ = captured(module, inputs[index])
                found = maps_by_kind(trace)
                assert found.keys() == expected[index].keys()
                for kind, maps in found.items():
                    assert len(maps) == len(expected[index][kind])
                    for layer_map, weights in zip(maps, expected[index][kind], strict=True):
                        assert_close(layer_map.dense(), weights, rtol=0.0, atol=TOLERANCE)

        return repeat

    run_together([worker(index) for index in range(len(inputs))])
    assert_same_state(before, state_of(module))


@pytest.mark.usefixtures("busy_switching")
@pytest.mark.parametrize("name", ["BERT", "Mistral", "GPT-2", "ViT", "DeBERTa-v2"])
@pytest.mark.parametrize("eager", [False, True], ids=["as built", "eager"])
def test_a_plain_forward_beside_a_capture_is_neither_changed_nor_recorded(name: str, eager: bool) -> None:
    architecture = BY_NAME[name]
    module = architecture.build(eager=eager)
    inputs = thread_inputs(architecture, 3)
    with torch.no_grad():
        expected = [module(**tensors)[0] for tensors in inputs]
    layers = dict(architecture.layers)
    before = state_of(module)
    done = threading.Event()
    passes: list[int] = []

    def plain(index: int) -> Callable[[], None]:
        def repeat() -> None:
            count = 0
            while not done.is_set() or count < 5:
                with torch.no_grad():
                    output = module(**inputs[index])[0]
                assert_close(output, expected[index], rtol=0.0, atol=TOLERANCE)
                count += 1
            passes.append(count)

        return repeat

    def capturing() -> None:
        try:
            for _ in range(40):
                trace, output = captured(module, inputs[0])
                assert_close(output[0], expected[0], rtol=0.0, atol=TOLERANCE)
                assert {kind: len(maps) for kind, maps in maps_by_kind(trace).items()} == layers
                for maps in maps_by_kind(trace).values():
                    assert all(layer_map.queries == maps[0].queries for layer_map in maps)
        finally:
            done.set()

    run_together([capturing, plain(1), plain(2)])
    assert len(passes) == 2
    assert_same_state(before, state_of(module))


def test_a_thread_started_inside_the_block_is_not_recorded() -> None:
    architecture = BY_NAME["BERT"]
    module, (mine, other) = architecture.build(), thread_inputs(architecture, 2)
    with torch.no_grad(), capture(module) as trace:
        thread = threading.Thread(target=lambda: module(**other))
        thread.start()
        thread.join()
        module(**mine)
    assert [layer_map.keys for layer_map in trace.encoder] == [6, 6, 6]


@pytest.mark.parametrize("kind", ["transformers fallback", "nn.MultiheadAttention"])
def test_a_hook_that_another_thread_still_calls_after_its_removal_does_nothing(kind: str) -> None:
    """torch lists hooks first and asks later whether they want kwargs; a removal in between tears the call."""
    module = (
        BY_NAME["Bloom"].build() if kind == "transformers fallback" else nn.MultiheadAttention(4, 2).eval()
    )
    with torch.no_grad(), capture(module) as trace:
        before, after = (list(hooks.values()) for hooks in (module._forward_pre_hooks, module._forward_hooks))
        assert len(before) == len(after) == 1

        def torn() -> tuple[Any, Any]:
            return before[0](module, (1,)), after[0](module, (1,), "output")

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torn).result(timeout=60) == (None, None)
        if kind == "transformers fallback":
            module(**BY_NAME["Bloom"].batch().tensors)
        else:
            module(*[torch.ones(1, 5, 4)] * 3)
    assert len(trace.decoder) + len(trace.encoder) == (3 if kind == "transformers fallback" else 1)


# Blocks


def test_an_inner_capture_records_alone_and_the_outer_one_goes_on() -> None:
    architecture = BY_NAME["BERT"]
    module, (first, second) = architecture.build(), thread_inputs(architecture, 2)
    other, pixels = BY_NAME["ViT"].build(), BY_NAME["ViT"].batch().tensors
    before = state_of(module), state_of(other)
    with torch.no_grad(), capture(module) as outer:
        with capture(module) as inner:
            module(**second)
        with capture(other) as of_other:
            other(**pixels)
        module(**first)
    assert [layer_map.keys for layer_map in inner.encoder] == [7, 7, 7]
    assert [layer_map.keys for layer_map in of_other.encoder] == [17, 17, 17]
    assert [layer_map.keys for layer_map in outer.encoder] == [6, 6, 6]
    assert_same_state(before[0], state_of(module))
    assert_same_state(before[1], state_of(other))


def test_another_model_called_inside_the_block_is_left_out() -> None:
    """Also one that goes through our function, because another thread captures it at the same time."""
    module, other = BY_NAME["BERT"].build(), BY_NAME["RoBERTa"].build()
    tensors = BY_NAME["BERT"].batch().tensors
    opened, finish = threading.Event(), threading.Event()

    def hold_open() -> int:
        with torch.no_grad(), capture(other) as of_other:
            opened.set()
            assert finish.wait(timeout=60)
            other(**tensors)
        return len(of_other.encoder)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold_open)
        assert opened.wait(timeout=60)
        assert other.config._attn_implementation == IMPLEMENTATION
        with torch.no_grad(), capture(module) as trace:
            other(**tensors)
            module(**tensors)
        finish.set()
        assert holding.result(timeout=60) == 3
    assert len(trace.encoder) == 3


def test_a_block_without_a_forward_pass_says_so() -> None:
    module = BY_NAME["BERT"].build()
    with pytest.raises(UnsupportedModelError, match="call the model inside the block"), capture(module):
        pass
    assert module.config._attn_implementation != IMPLEMENTATION


def test_a_module_without_attention_is_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(UnsupportedModelError, match="no attention of Linear was seen"), capture(module):
        module(torch.ones(1, 2))


def test_a_trace_outlives_its_model_and_a_captured_model_can_be_freed() -> None:
    module = BY_NAME["BERT"].build()
    trace, _ = captured(module, BY_NAME["BERT"].batch().tensors)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    assert trace.item(1).encoder[2].dense().shape == (4, 7, 7)


def test_training_with_attention_dropout_is_refused_and_nothing_stays() -> None:
    module = BY_NAME["BERT"].build().train()
    before = state_of(module)
    with pytest.raises(UnsupportedModelError, match=r"attention dropout of 0.1; call model.eval\(\) first"):
        captured(module, BY_NAME["BERT"].batch().tensors)
    assert_same_state(before, state_of(module))


def test_gradients_flow_through_a_captured_forward_and_not_into_the_trace() -> None:
    architecture = BY_NAME["BERT"]
    module, tensors = architecture.build(), architecture.batch().tensors

    def gradient() -> Tensor:
        weight = module.bert.encoder.layer[0].attention.self.query.weight
        (found,) = torch.autograd.grad(module(**tensors).logits[0, 1], [weight])
        return found

    without = gradient()
    with capture(module) as trace:
        with_capture = gradient()
    assert float(without.abs().max()) > 1e-3
    assert_close(with_capture, without, rtol=1e-3, atol=1e-6)
    assert not trace.item(0).encoder[0].dense().requires_grad
    assert all(parameter.grad is None for parameter in module.parameters())


# Options and saved configs


@pytest.mark.parametrize("requested", [None, False, True])
def test_a_model_loaded_with_defaults_gives_weights_whatever_is_requested(requested: bool | None) -> None:
    """Case M1: attentions requested of a ViT with the default implementation came back as a tuple of None."""
    architecture = BY_NAME["ViT"]
    module, tensors = architecture.build(), architecture.batch().tensors
    options = {} if requested is None else {"output_attentions": requested}
    with torch.no_grad(), capture(module) as trace:
        module(**tensors, **options)
    assert module.config._attn_implementation == "sdpa"
    assert len(trace.encoder) == module.config.num_hidden_layers
    for item in (0, 1):
        for layer_map in trace.item(item).encoder:
            weights = layer_map.dense()
            assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", ["BERT", "Llama", "CLIP vision"])
def test_a_saved_config_that_carries_the_attention_flag_loads(name: str, flag: bool, tmp_path: Any) -> None:
    """Case M4: a config saved with the flag failed to load for implementations other than eager."""
    architecture = BY_NAME[name]
    module, batch = architecture.build(), architecture.batch()
    module.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"output_attentions": flag}))
    loaded = type(module).from_pretrained(tmp_path, attn_implementation="eager" if flag else None).eval()
    trace, _ = captured(loaded, batch.tensors)
    expected, _ = captured(module, batch.tensors)
    for kind, maps in maps_by_kind(expected).items():
        for one, other in zip(maps, maps_by_kind(trace)[kind], strict=True):
            assert_close(one.item(1).dense(), other.item(1).dense())
    assert loaded.config.output_attentions is flag


def test_gpt2_scaled_by_layer_index() -> None:
    module = changed("GPT-2", scale_attn_by_inverse_layer_idx=True)
    tensors = {"input_ids": torch.arange(5, 14)[None]}
    trace, _ = captured(module, tensors)
    for layer_map, expected in zip(trace.decoder, eager_attentions(module, tensors), strict=True):
        assert_close(layer_map.dense(), expected[0], rtol=0.0, atol=TOLERANCE)


def test_a_ready_four_dimensional_mask_is_used() -> None:
    """Prefix attention of a different length for each item, handed in as a boolean and as an additive mask."""
    module = BY_NAME["BERT"].build()
    ids = torch.arange(5, 19).view(2, 7)
    allowed = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    allowed[0, :, :, :3] = True
    allowed[1, :, :, :5] = True
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = eager_attentions(module, {"input_ids": ids, "attention_mask": additive})
    for mask in (allowed, additive):
        trace, _ = captured(module, {"input_ids": ids, "attention_mask": mask})
        for item in (0, 1):
            for layer_map, weights in zip(trace.item(item).encoder, expected, strict=True):
                assert_close(layer_map.dense(), weights[item], rtol=0.0, atol=TOLERANCE)
                assert not (layer_map.dense()[:, ~allowed[item, 0]] > 0).any()


def test_double_precision_is_kept() -> None:
    module = BY_NAME["Llama"].build().double()
    tensors = BY_NAME["Llama"].batch().tensors
    trace, output = captured(module, tensors)
    assert output.logits.dtype == torch.float64
    for layer_map, expected in zip(trace.item(0).decoder, eager_attentions(module, tensors), strict=True):
        # the library's eager softmax runs in float32 whatever the model's precision
        assert layer_map.dense().dtype == torch.float64
        assert_close(layer_map.dense(), expected[0].double(), rtol=0.0, atol=TOLERANCE)
        assert_close(layer_map.dense().sum(-1), torch.ones(4, 11, dtype=torch.float64), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["BERT", "Llama", "Gemma 2", "ViT", "T5"])
def test_half_precision_errs_no_more_than_twice_the_librarys_own_eager(name: str) -> None:
    architecture = BY_NAME[name]
    batch = architecture.batch()
    tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in batch.tensors.items()}
    exact = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    kind = next(iter(architecture.layers))
    rounded = architecture.build().bfloat16()
    reference = (
        architecture.build(eager=True).bfloat16().float()
    )  # the same rounded weights, computed exactly
    trace, output = captured(rounded, tensors)
    assert next(value for value in output.values() if isinstance(value, Tensor)).dtype == torch.bfloat16
    expected = library_weights(architecture, reference, exact)[kind]
    eager = library_weights(architecture, architecture.build(eager=True).bfloat16(), tensors)[kind]
    for layer, layer_map in enumerate(maps_by_kind(trace.item(0))[kind]):
        weights = layer_map.dense()
        wanted, rough = (valid_weights(batch, kind, maps[layer].float(), 0) for maps in (expected, eager))
        assert weights.dtype == torch.float32
        assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), rtol=0.0, atol=2e-3)
        assert largest_difference(weights, wanted) <= 2 * largest_difference(rough, wanted) + 2e-3


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
def test_a_step_with_a_cache_is_the_next_row_of_the_whole_pass() -> None:
    for name in ("GPT-2", "Llama", "Mistral"):
        module = BY_NAME[name].build()
        ids = torch.arange(5, 14)[None]
        whole, _ = captured(module, {"input_ids": ids})
        with torch.no_grad():
            past = module(input_ids=ids[:, :7], use_cache=True).past_key_values
        with torch.no_grad(), capture(module) as trace:
            module(input_ids=ids[:, 7:], past_key_values=past)
        for step, full in zip(trace.decoder, whole.decoder, strict=True):
            # a sliding window's cache holds only the keys that the window still reaches
            assert step.queries == 2
            assert_close(step.dense(), full.dense()[:, 7:, 9 - step.keys :], rtol=0.0, atol=TOLERANCE)


# Shapes


def test_cross_attention_rows_are_queries_for_unequal_lengths() -> None:
    """Case M10: source and target of different lengths gave a transposed map. Also without any mask."""
    for name in ("T5", "BART", "Marian"):
        module = BY_NAME[name].build()
        tensors = {"input_ids": torch.arange(5, 14)[None], "decoder_input_ids": torch.arange(20, 24)[None]}
        trace, _ = captured(module, tensors)
        assert [(m.queries, m.keys) for m in trace.encoder] == [(9, 9)] * 3
        assert [(m.queries, m.keys) for m in trace.decoder] == [(4, 4)] * 2
        assert [(m.queries, m.keys) for m in trace.cross] == [(4, 9)] * 2
        for layer_map in trace.cross:
            assert_close(layer_map.dense().sum(-1), torch.ones(4, 4))
        for layer_map in trace.decoder:
            assert torch.equal(layer_map.dense(), layer_map.dense().tril())
        for layer_map in trace.encoder:
            assert float(layer_map.dense().triu(1).max()) > 0


def test_cross_attention_crops_the_sources_padding_when_the_target_has_no_mask() -> None:
    module, batch = BY_NAME["BART"].build(), BY_NAME["BART"].batch()
    tensors = {name: tensor for name, tensor in batch.tensors.items() if name != "decoder_attention_mask"}
    trace, _ = captured(module, tensors)
    item = trace.item(1)
    assert [(m.queries, m.keys) for m in item.cross] == [(6, 7)] * 2
    assert [(m.queries, m.keys) for m in item.decoder] == [(6, 6)] * 2


@pytest.mark.parametrize("as_built", [True, False])
def test_a_picture_that_is_not_square(as_built: bool) -> None:
    """Case M16: a 16 × 8 grid, square roots nowhere."""
    config = transformers.ViTConfig(**(VIT_LIKE | {"image_size": (64, 32)}))
    torch.manual_seed(0)
    module = transformers.ViTModel._from_config(
        config, attn_implementation=None if as_built else "eager"
    ).eval()
    pixels = {"pixel_values": torch.randn(1, 3, 64, 32)}
    trace, _ = captured(module, pixels)
    assert [(m.queries, m.keys) for m in trace.encoder] == [(1 + 16 * 8, 1 + 16 * 8)] * 3
    for layer_map, expected in zip(trace.encoder, eager_attentions(module, pixels), strict=True):
        assert_close(layer_map.dense(), expected[0], rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 4), (5, 1), (5, 2), (2, 8)])
@pytest.mark.parametrize("name", ["BERT", "ViT", "GPT-NeoX"])
def test_layers_need_not_equal_heads(name: str, layers: int, heads: int) -> None:
    """Case M17: a grid plot indexed layers by heads."""
    module = changed(name, num_hidden_layers=layers, num_attention_heads=heads)
    trace, _ = captured(module, BY_NAME[name].batch().tensors)
    (maps,) = maps_by_kind(trace).values()
    assert len(maps) == layers
    assert all(layer_map.heads == heads for layer_map in maps)
    assert trace.item(0).encoder[:1] + trace.item(0).decoder[:1]
    assert maps[-1].item(0).dense().shape[0] == heads


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_have_a_map_for_every_query_head(kv_heads: int) -> None:
    """Case M20: fewer key and value heads than query heads; head h reads group h // (H / G)."""
    options = {**LLAMA_LIKE, "num_key_value_heads": kv_heads}
    torch.manual_seed(1)
    module = transformers.LlamaModel(transformers.LlamaConfig(**options, initializer_range=0.5)).eval()
    tensors = {"input_ids": torch.arange(5, 14)[None]}
    trace, _ = captured(module, tensors)
    for layer_map, expected in zip(trace.decoder, eager_attentions(module, tensors), strict=True):
        assert (layer_map.heads, layer_map.kv_heads) == (4, kv_heads)
        assert_close(layer_map.dense(), expected[0], rtol=0.0, atol=TOLERANCE)
        for head in range(4):
            assert_close(layer_map.row(head, 8), expected[0, head, 8], rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 30])
@pytest.mark.parametrize("name", ["BERT", "Mistral", "Gemma 2", "ModernBERT", "T5", "GPT-2"])
def test_any_length_also_one_token(name: str, length: int) -> None:
    module = BY_NAME[name].build()
    ids = torch.arange(5, 5 + length)[None]
    tensors = {"input_ids": ids} | ({"decoder_input_ids": ids} if name == "T5" else {})
    trace, _ = captured(module, tensors)
    expected = (
        maps_by_kind(captured(BY_NAME[name].build(eager=True), tensors)[0])
        if name == "T5"
        else {next(iter(BY_NAME[name].layers)): eager_attentions(module, tensors)}
    )
    for kind, maps in maps_by_kind(trace).items():
        for layer_map, weights in zip(maps, expected[kind], strict=True):
            reference = weights[0] if isinstance(weights, Tensor) else weights.dense()
            assert_close(layer_map.dense(), reference, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "Llama", "Mistral"])
def test_a_batch_item_with_a_gap_in_its_mask_is_cut_to_the_real_tokens(name: str) -> None:
    """Masked tokens in the middle are left out too, and windows still count the positions between."""
    module = BY_NAME[name].build()
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0, 0, 1]])
    tensors = {"input_ids": torch.arange(5, 23).view(2, 9), "attention_mask": mask}
    trace, _ = captured(module, tensors)
    kept = mask[1].nonzero()[:, 0]
    (maps,) = maps_by_kind(trace.item(1)).values()
    for layer_map, expected in zip(maps, eager_attentions(module, tensors), strict=True):
        assert_close(layer_map.dense(), expected[1][:, kept][:, :, kept], rtol=0.0, atol=TOLERANCE)


# Memory


def test_a_rule_mask_stands_for_the_written_out_mask_in_every_operation() -> None:
    """Models look into their masks, and another thread may hand ours to the library's own attention."""
    key_valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    mask = RuleMask.of(
        MaskRule(causal=True, key_valid=key_valid), batch=2, queries=6, keys=6, device=torch.device("cpu")
    )
    allowed = torch.ones(6, 6, dtype=torch.bool).tril() & key_valid[:, None, None, :]
    assert (mask.shape, mask.dtype, mask.ndim) == ((2, 1, 6, 6), torch.bool, 4)
    with torch._C.DisableTorchFunctionSubclass():
        assert mask.untyped_storage().nbytes() == 1
    assert torch.equal(~mask, ~allowed)
    assert torch.equal(mask[:, :, 2:4, :3], allowed[:, :, 2:4, :3])
    assert torch.equal(mask.all(-1), allowed.all(-1))
    scores = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).half()
    added = scores + mask
    assert added.dtype == torch.float16
    assert torch.equal(added.softmax(-1) > 0, allowed.expand_as(added))
    assert torch.equal(added[allowed.expand_as(added)], scores[allowed.expand_as(added)])
    query = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(1))
    attend = nn.functional.scaled_dot_product_attention
    assert_close(attend(query, query, query, attn_mask=mask), attend(query, query, query, attn_mask=allowed))


def test_a_trace_holds_no_square_array() -> None:
    """Query, key and log-sum-exp only: the record of 600 tokens is far smaller than its 3 × 4 × 600² weights."""
    module = changed("BERT", max_position_embeddings=700)
    ids = torch.randint(5, 90, (1, 600), generator=torch.Generator().manual_seed(0))
    trace, _ = captured(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    held = 0
    for layer_map in trace.encoder:
        assert isinstance(layer_map, FactoredMap)
        assert layer_map.bias is None
        held += sum(t.untyped_storage().nbytes() for t in (layer_map.query, layer_map.key, layer_map.lse))
    assert held < 3 * 4 * 600 * 600 * 4 / 10
    assert_close(trace.encoder[1].row(2, 599).sum(), torch.tensor(1.0))


def test_chunks_of_neighbours_are_never_read_as_a_square_map() -> None:
    """As case M11: Reformer's weights are chunks at relative positions. Longformer's are in tests/test_bands.py."""
    config = transformers.ReformerConfig(
        attn_layers=["local", "local"],
        local_attn_chunk_length=4,
        hidden_size=16,
        attention_head_size=8,
        num_attention_heads=2,
        feed_forward_size=16,
        axial_pos_embds=False,
        vocab_size=50,
        max_position_embeddings=64,
        is_decoder=False,
    )
    model = transformers.ReformerModel(config).eval()
    with (
        pytest.raises(UnsupportedModelError, match="windows at relative positions and no map"),
        torch.no_grad(),
        capture(model),
    ):
        model(input_ids=torch.arange(5, 17)[None])


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BART"])
def test_the_steps_of_a_generation_are_stitched_into_one_map(name: str) -> None:
    """Case M8: a square for the prompt and a row a step become one lower triangle, as of one pass over the whole."""
    architecture = BY_NAME[name]
    model, inputs = architecture.build(), architecture.batch().alone(0)
    decoder = {"decoder_input_ids": inputs["decoder_input_ids"]} if "decoder_input_ids" in inputs else {}
    source = {"input_ids": inputs["input_ids"]}
    with torch.no_grad(), capture(model) as steps:
        ids = model.generate(
            **source, **decoder, max_new_tokens=4, min_new_tokens=4, do_sample=False, num_beams=1
        )
    whole = {**source, "decoder_input_ids": ids[:, :-1]} if decoder else {"input_ids": ids[:, :-1]}
    with torch.no_grad(), capture(model) as once:
        model(**whole)
    assert [len(maps) for maps in (steps.encoder, steps.decoder, steps.cross)] == [
        len(maps) for maps in (once.encoder, once.decoder, once.cross)
    ]
    for part in ("decoder", "cross"):
        for stitched, single in zip(getattr(steps, part), getattr(once, part), strict=True):
            assert_close(stitched.weights(), single.weights(), atol=1e-5, rtol=1e-5)
