"""Products by oneDNN: PyTorch's own numbers, only where they pay, and nothing left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from analysis.evidence import products
from analysis.evidence.gradients import integrated_gradients
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from analysis.inputs import encode_text
from tests import input_helpers as tiny


@pytest.fixture
def quick(monkeypatch):
    """As on a processor where it is quicker; skips where PyTorch was built without oneDNN."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        pytest.skip("PyTorch was built without oneDNN")
    monkeypatch.setattr(products, "is_quicker", lambda: True)
    taken: list[tuple[int, ...]] = []

    def counted(entering, weight, bias):
        taken.append(tuple(entering.shape))
        return real(entering, weight, bias)

    real = products._product
    monkeypatch.setattr(products, "_product", counted)
    return taken


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("shape", [(32, 48), (3, 17, 48), (1, 2, 33, 48)])
@pytest.mark.parametrize("biased", [True, False])
def test_products_and_gradients_have_at_most_twice_the_error_of_pytorchs_own(quick, shape, biased):
    weight, bias = drawn(64, 48, seed=1), drawn(64, seed=2) if biased else None
    pull = drawn(*shape[:-1], 64, seed=3)

    def both(dtype):
        entering = drawn(*shape).to(dtype).requires_grad_()
        out = nn.functional.linear(entering, weight.to(dtype), None if bias is None else bias.to(dtype))
        return out.detach(), *torch.autograd.grad(out, entering, pull.to(dtype))

    plain, exact = both(torch.float32), both(torch.float64)
    with products.quick_products():
        found = both(torch.float32)
    assert len(quick) == 2
    for ours, theirs, truth in zip(found, plain, exact, strict=True):
        error, allowed = ((each - truth).abs().max() for each in (ours, theirs))
        assert error <= 2 * allowed + torch.finfo(torch.float32).eps * truth.abs().max()


def test_what_is_trained_or_small_or_finer_is_left_to_pytorch(quick):
    frozen = {"weight": drawn(8, 4), "bias": drawn(8)}
    with products.quick_products():
        nn.functional.linear(drawn(20, 4), frozen["weight"].clone().requires_grad_(), frozen["bias"])
        nn.functional.linear(drawn(20, 4), frozen["weight"], frozen["bias"].clone().requires_grad_())
        nn.functional.linear(drawn(3, 4), **frozen)
        nn.functional.linear(drawn(20, 4, dtype=torch.float64), frozen["weight"].double())
        assert quick == []
        nn.functional.linear(drawn(20, 4), frozen["weight"], frozen["bias"])
        with torch.no_grad():
            nn.functional.linear(drawn(20, 4), frozen["weight"].clone().requires_grad_())
    assert quick == [(20, 4), (20, 4)]
    nn.functional.linear(drawn(20, 4), frozen["weight"])
    assert len(quick) == 2


def test_a_second_derivative_is_pytorchs_own(quick):
    weight, entering = drawn(8, 4), drawn(20, 4).requires_grad_()

    def second():
        out = nn.functional.linear(entering, weight).square().sum()
        (first,) = torch.autograd.grad(out, entering, create_graph=True)
        return torch.autograd.grad(first.sum(), entering)[0]

    expected = second()
    with products.quick_products():
        found = second()
    assert quick
    assert_close(found, expected)


def test_integrated_gradients_are_the_same_by_both(quick, tmp_path, monkeypatch):
    model = tiny.loaded(
        tmp_path, "BertForSequenceClassification", "BertConfig", tiny.word_piece(), num_labels=3, **tiny.BERT
    )
    run, target = forward_pass(model, encode_text(model, tiny.SENTENCES[0])), class_logit(1)
    found = integrated_gradients(run, target).scores
    assert quick
    monkeypatch.setattr(products, "is_quicker", lambda: False)
    counted = len(quick)
    plain = integrated_gradients(run, target).scores
    assert len(quick) == counted
    assert (found - plain).abs().max() <= 1e-4 * plain.abs().max()
