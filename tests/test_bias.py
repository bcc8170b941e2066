"""Relative-position bias of real architectures is recorded as its table, and the maps stay the library's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from analysis.hf.attention import AttentionTrace
from analysis.hf.rule_masks import RuleMask
from attn_core import FactoredMap, IndexedBias, MaskRule, RelativeBias, recording
from attn_core.seam import bias_made_from
from tests.capture_helpers import captured, maps_by_kind
from tests.tiny_models import BY_NAME, VIT_LIKE, sharpen

TOLERANCE = 1e-5


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that is reached from a record, through fields, containers, closures and bound arguments."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    parts: list[Any] = []
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif hasattr(value, "func"):  # functools.partial
        parts = [value.func, *value.args, *value.keywords.values()]
    elif getattr(value, "__closure__", None):
        parts = [cell.cell_contents for cell in value.__closure__]
    for part in parts:
        yield from tensors_in(part, seen)


def bytes_of(tensors: list[Tensor]) -> int:
    """Bytes of their storages, each counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def squares(trace: AttentionTrace) -> list[tuple[int, ...]]:
    """Shapes of floating-point arrays over pairs of positions, stored in full, that the trace keeps."""
    sizes = {(m.queries, m.keys) for maps in maps_by_kind(trace).values() for m in maps}
    return [
        tuple(t.shape)
        for t in tensors_in(trace)
        if t.is_floating_point() and t.ndim >= 2 and tuple(t.shape[-2:]) in sizes
    ]


def biases(trace: AttentionTrace) -> list[Any]:
    found = [m for maps in maps_by_kind(trace).values() for m in maps]
    assert all(isinstance(m, FactoredMap) for m in found)
    return [m.bias for m in found]


def eager_weights(module: nn.Module, tensors: dict[str, Tensor]) -> Any:
    twin = type(module)._from_config(module.config, attn_implementation="eager").eval()
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        return twin(**tensors, output_attentions=True)


def test_t5_keeps_a_number_a_distance_and_layers_share_them() -> None:
    module, n, m = BY_NAME["T5"].build(), 150, 70
    generator = torch.Generator().manual_seed(0)
    ids, target = (torch.randint(5, 90, (1, length), generator=generator) for length in (n, m))
    tensors = {"input_ids": ids, "decoder_input_ids": target}
    trace, _ = captured(module, tensors)
    for one in (trace, trace.item(0)):
        assert all(isinstance(bias, RelativeBias) for bias in biases(one))
        assert squares(one) == []
        # query, key and log-sum-exp, and no more than a tenth of the smallest bias array beside them
        made_of = [t for maps in maps_by_kind(one).values() for x in maps for t in (x.query, x.key, x.lse)]
        assert bytes_of(list(tensors_in(one))) - bytes_of(made_of) < 4 * 4 * m * m / 3
    for maps in maps_by_kind(trace).values():
        assert len({id(layer.bias) for layer in maps}) == 1
    expected = eager_weights(module, tensors)
    for kind, maps in maps_by_kind(trace).items():
        for layer, weights in zip(maps, expected[f"{kind}_attentions"], strict=True):
            assert_close(layer.dense(), weights[0], rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "mask", [[0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0, 0, 1]], ids=["left", "gap"]
)
def test_t5_with_padding_on_the_left_and_inside(mask: list[int]) -> None:
    """The positions that are left do not count from 0, or not in steps of one."""
    module = BY_NAME["T5"].build()
    tensors = {
        "input_ids": torch.arange(5, 23).view(2, 9),
        "attention_mask": torch.tensor([[1] * 9, mask]),
        "decoder_input_ids": torch.arange(30, 38).view(2, 4),
    }
    trace, _ = captured(module, tensors)
    kept = torch.tensor(mask).nonzero()[:, 0]
    expected = eager_weights(module, tensors)
    for layer, weights in zip(trace.item(1).encoder, expected.encoder_attentions, strict=True):
        assert isinstance(layer.bias, RelativeBias)
        assert_close(layer.dense(), weights[1][:, kept][:, :, kept], rtol=0.0, atol=TOLERANCE)


def beit(*, shared: bool = False) -> transformers.PreTrainedModel:
    own = {"use_shared_relative_position_bias" if shared else "use_relative_position_bias": True}
    config = transformers.BeitConfig(**(VIT_LIKE | {"image_size": 48} | own))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.BeitModel(config)
    sharpen(module, seed=0, sharpness=2.0)
    return module.eval()


@pytest.mark.parametrize("shared", [False, True], ids=["a table a layer", "one for all layers"])
def test_beit_keeps_the_models_own_table_and_one_index(shared: bool) -> None:
    module = beit(shared=shared)
    pixels = {"pixel_values": torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))}
    trace, _ = captured(module, pixels)
    own = {
        part.relative_position_bias_table.data_ptr()
        for part in module.modules()
        if hasattr(part, "relative_position_bias_table")
    }
    assert len(own) == (1 if shared else 3)
    for one in (trace, trace.item(1)):
        found = biases(one)
        assert all(isinstance(bias, IndexedBias) for bias in found)
        assert {bias.table.data_ptr() for bias in found} == own
        assert len({bias.index.data_ptr() for bias in found}) == 1
        assert squares(one) == []
        made_of = [t for layer in one.encoder for t in (layer.query, layer.key, layer.lse)]
        rest = [t for t in tensors_in(one) if t.data_ptr() != found[0].index.data_ptr()]
        assert bytes_of(rest) - bytes_of(made_of) < 4 * 4 * 145 * 145 / 10  # of one layer's array
    expected = eager_weights(module, pixels).attentions
    for layer, weights in zip(trace.item(1).encoder, expected, strict=True):
        assert_close(layer.dense(), weights[1], rtol=0.0, atol=TOLERANCE)


def test_beit_on_another_grid_keeps_the_stretched_table() -> None:
    module = BY_NAME["BEiT"].build()
    pixels = {"pixel_values": torch.randn(1, 3, 24, 20, generator=torch.Generator().manual_seed(0))}
    trace, _ = captured(module, pixels)
    assert trace.encoder[0].shape == (1, 4, 31, 31)
    assert all(isinstance(bias, IndexedBias) for bias in biases(trace))
    assert squares(trace) == []
    for layer, weights in zip(trace.encoder, eager_weights(module, pixels).attentions, strict=True):
        assert_close(layer.dense(), weights[0], rtol=0.0, atol=TOLERANCE)


def test_a_bias_that_the_table_does_not_give_exactly_is_kept_as_it_is() -> None:
    module = BY_NAME["BEiT"].build()
    table = module.layers[1].relative_position_bias
    plain = table.forward

    def changed(*args: Any, **kwargs: Any) -> Tensor:
        bias = plain(*args, **kwargs).clone()
        bias[0, 2, 3, 4] += 1.0
        return bias

    table.forward = changed
    trace, _ = captured(module, BY_NAME["BEiT"].batch().tensors)
    assert [isinstance(bias, IndexedBias) for bias in biases(trace)] == [True, False, True]
    with torch.no_grad():
        expected = changed((4, 4))
    assert torch.equal(trace.encoder[1].bias[:1], expected)


def test_swin_keeps_the_table_where_no_mask_is_added_to_it() -> None:
    module = BY_NAME["Swin"].build()
    trace, _ = captured(module, BY_NAME["Swin"].batch().tensors)
    found = [layer.windows.bias for layer in trace.encoder]
    assert [isinstance(bias, IndexedBias) for bias in found] == [True, False, True, False]
    tables = [part for part in module.modules() if hasattr(part, "relative_position_bias_table")]
    for layer in (0, 2):
        assert found[layer].table.data_ptr() == tables[layer].relative_position_bias_table.data_ptr()
        assert found[layer].index.data_ptr() == tables[layer].relative_position_index.data_ptr()


def test_no_hook_is_left_and_a_gradient_still_reaches_the_table() -> None:
    for name in ("T5", "BEiT"):
        module, tensors = BY_NAME[name].build(), BY_NAME[name].batch().tensors
        parameter = next(p for part, p in module.named_parameters() if "relative" in part)

        def gradient(module=module, tensors=tensors, parameter=parameter) -> Tensor:
            (found,) = torch.autograd.grad(module(**tensors)[0].square().sum(), [parameter])
            return found

        from analysis.hf.attention import capture

        without = gradient()
        with capture(module) as trace:
            found = gradient()
        assert float(without.abs().max()) > 1e-3
        assert_close(found, without, rtol=1e-3, atol=1e-4)
        assert not any(t.requires_grad for t in tensors_in(trace))
        assert all(not part._forward_hooks for part in module.modules())


def test_adding_a_mask_that_allows_everything_leaves_the_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    bias = IndexedBias.of(
        torch.randn(5, 3, generator=generator), torch.randint(0, 5, (6, 6), generator=generator)
    )
    free, strict = (
        RuleMask.of(rule, batch=2, queries=6, keys=6, device=torch.device("cpu"))
        for rule in (MaskRule(), MaskRule(causal=True))
    )
    dense = bias.dense()
    with recording():
        bias_made_from(dense, bias)
        for total in (dense + free, free + dense, torch.add(dense, free)):
            assert torch.equal(total, dense.expand(2, -1, -1, -1))
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        assert ((dense + strict)[..., hidden] < -1e30).all()
        assert torch.equal((dense + strict)[..., ~hidden], dense[..., ~hidden].expand(2, -1, -1))
