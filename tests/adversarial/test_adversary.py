"""The loss of Wiegreffe & Pinter's adversary: the numbers of other people's programs, and what must hold of any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.adversarial.adversary import adversary_loss
from analysis.adversarial.distances import LN2, jensen_shannon
from tests.adversarial.oracle_model import oracle_arrays, oracle_model


@pytest.fixture(scope="module")
def expected():
    return {name: torch.from_numpy(array) for name, array in oracle_arrays().items()}


def answers_of(name: str, tokens):
    """Attention (B, N) and sigmoid output (B, 1) of an oracle model."""
    model = oracle_model(name)
    hidden = model.encode(tokens)
    weights = model.attend(hidden, model.inside(tokens))
    return weights, model.decode(hidden, weights[:, None])[:, 0]


@pytest.mark.parametrize(
    ("name", "attention", "prediction"),
    [
        ("jw_bilstm_seed0", "attention", "prediction"),
        ("jw_bilstm_seed0", "wp_base_attention", "wp_base_prediction"),
        ("jw_bilstm_seed0_adversary", "wp_adversary_attention", "wp_adversary_prediction"),
    ],
)
def test_the_oracle_models_attend_and_answer_as_the_program_did(expected, name, attention, prediction):
    weights, answered = answers_of(name, expected["tokens"])
    assert_close(weights.detach(), expected[attention], rtol=1e-8, atol=1e-15)
    assert_close(answered.detach().flatten(), expected[prediction].flatten(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("stored", [True, False])
def test_the_loss_is_the_programs(expected, stored):
    if stored:
        base = expected["wp_base_attention"], expected["wp_base_prediction"][:, None]
        adversary = expected["wp_adversary_attention"], expected["wp_adversary_prediction"][:, None]
    else:
        base = answers_of("jw_bilstm_seed0", expected["tokens"])
        adversary = answers_of("jw_bilstm_seed0_adversary", expected["tokens"])
    inside = oracle_model().inside(expected["tokens"])
    found = adversary_loss(
        adversary[1], base[1], adversary[0], base[0], inside, trade_off=float(expected["wp_lambda"])
    )
    assert_close(found.tvd.sum().detach(), expected["wp_tvd"], rtol=1e-8, atol=0)
    assert_close(found.kl.sum().detach(), expected["wp_kl_adversary_base"], rtol=1e-8, atol=0)
    assert_close(found.loss.sum().detach(), expected["wp_loss"], rtol=1e-8, atol=0)
    divergence = jensen_shannon(adversary[0], base[0]).detach()
    assert_close(
        divergence, expected["wp_jsd_per_text"], rtol=0, atol=1e-8
    )  # the program adds 1e-10 in its log


def test_both_classes_are_twice_as_far_apart_as_the_programs_one_output(expected):
    base, adversary = expected["wp_base_prediction"], expected["wp_adversary_prediction"]
    weights = expected["wp_base_attention"]
    both = [torch.stack([1 - each, each], -1) for each in (adversary, base)]
    found = adversary_loss(both[0], both[1], weights, weights, weights > 0, trade_off=0.0)
    assert_close(found.tvd.sum(), 2 * expected["wp_tvd"], rtol=1e-8, atol=0)


@st.composite
def texts(draw):
    """Two models' predictions (B, C) and attention (B, N) with padding of some rows, in float64."""
    batch, classes, longest = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = torch.tensor([draw(st.integers(1, longest)) for _ in range(batch)])
    inside = torch.arange(longest) < lengths[:, None]
    sharpness = draw(st.sampled_from([0.1, 1.0, 20.0]))

    def distribution(*shape):
        return sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)

    predictions = [distribution(batch, classes).softmax(-1) for _ in range(2)]
    logits = [distribution(batch, longest).masked_fill(~inside, -torch.inf) for _ in range(2)]
    return (*predictions, *logits, inside)


@given(texts(), st.sampled_from([0.0, 1e-3, 1.0]))
def test_the_loss_is_the_formula(drawn, trade_off):
    said, base_said, logits, base_logits, inside = drawn
    weights, base = logits.softmax(-1), base_logits.softmax(-1)
    found = adversary_loss(said, base_said, weights, base, inside, trade_off=trade_off)
    for row in range(len(said)):
        kept = inside[row].numpy()
        p, q = weights[row].numpy()[kept], base[row].numpy()[kept]
        kl = sum(float(a * np.log(a / b)) for a, b in zip(p, q, strict=True) if a > 0)
        tvd = 0.5 * float(np.abs(said[row].numpy() - base_said[row].numpy()).sum())
        assert float(found.kl[row]) == pytest.approx(kl, rel=1e-9, abs=1e-12)
        assert float(found.tvd[row]) == pytest.approx(tvd, rel=1e-9, abs=1e-15)
        assert float(found.loss[row]) == pytest.approx(tvd - trade_off * kl, rel=1e-9, abs=1e-12)
    assert (found.kl >= -1e-12).all()
    assert (found.tvd <= 1 + 1e-12).all()


@given(texts())
def test_against_itself_there_is_nothing_to_lose(drawn):
    said, _, logits, _, inside = drawn
    weights = logits.softmax(-1)
    found = adversary_loss(said, said, weights, weights, inside, trade_off=0.5)
    assert_close(found.loss, torch.zeros_like(found.loss), rtol=0, atol=0)
    assert_close(found.kl, torch.zeros_like(found.kl), rtol=0, atol=0)


@given(texts(), st.integers(1, 4))
def test_padding_changes_nothing_whatever_stands_there(drawn, more):
    said, base_said, logits, base_logits, inside = drawn
    weights, base = logits.softmax(-1), base_logits.softmax(-1)
    expected_loss = adversary_loss(said, base_said, weights, base, inside, trade_off=0.1).loss
    weights, base = (torch.where(inside, each, 7.0) for each in (weights, base))
    longer = [torch.nn.functional.pad(each, (0, more), value=3.0) for each in (weights, base)]
    wider = torch.nn.functional.pad(inside, (0, more), value=False)
    found = adversary_loss(said, base_said, *longer, wider, trade_off=0.1).loss
    assert_close(found, expected_loss, rtol=0, atol=1e-15)


@given(texts(), st.permutations(range(9)))
def test_the_order_of_words_does_not_matter(drawn, order):
    said, base_said, logits, base_logits, inside = drawn
    weights, base = logits.softmax(-1), base_logits.softmax(-1)
    moved = [place for place in order if place < inside.shape[1]]
    found, again = (
        adversary_loss(said, base_said, weights[:, to], base[:, to], inside[:, to], trade_off=0.1).loss
        for to in (list(range(inside.shape[1])), moved)
    )
    assert_close(again, found, rtol=1e-10, atol=1e-12)


@given(texts())
def test_gradients_are_finite_with_padding_and_with_weights_that_vanish(drawn):
    said, base_said, logits, base_logits, inside = drawn
    sharp = (100 * logits.nan_to_num(neginf=0.0)).requires_grad_()
    weights = sharp.masked_fill(~inside, -torch.inf).softmax(-1)  # some are exactly 0
    spoken = said.clone().requires_grad_()
    base = base_logits.softmax(-1)
    loss = adversary_loss(spoken, base_said, weights, base, inside, trade_off=0.1).loss.sum()
    gradients = torch.autograd.grad(loss, (sharp, spoken))
    assert all(torch.isfinite(each).all() for each in gradients)
    assert (gradients[0][~inside] == 0).all()


def test_a_step_down_the_loss_moves_attention_away_from_the_base():
    logits = torch.tensor([[0.3, 0.1, -0.2]], dtype=torch.float64, requires_grad=True)
    base, said = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), torch.tensor([[0.4, 0.6]])
    inside = torch.ones(1, 3, dtype=torch.bool)

    def loss(at):
        return adversary_loss(said, said, at.softmax(-1), base, inside, trade_off=1.0)

    (gradient,) = torch.autograd.grad(loss(logits).loss.sum(), logits)
    before, after = loss(logits).kl.item(), loss(logits - 0.1 * gradient).kl.item()
    assert after > before > 0


def test_the_most_that_attention_can_differ_is_ln_2_in_one_measure_and_unbounded_in_the_other():
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    said, inside = torch.tensor([[0.5, 0.5]]), torch.ones(1, 2, dtype=torch.bool)
    found = adversary_loss(said, said, far, near, inside, trade_off=1.0)
    assert found.loss.item() == -torch.inf
    assert adversary_loss(said, said, far, near, inside, trade_off=0.0).loss.item() == 0
    assert jensen_shannon(far, near).item() == pytest.approx(LN2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prediction": torch.ones(2)}, "adversary_loss: prediction must have 2 axes"),
        ({"weights": torch.ones(2)}, "adversary_loss: weights must have 2 axes"),
        ({"base_prediction": torch.ones(2, 3)}, r"base_prediction must be \(2, 2\) .* but is \(2, 3\)"),
        ({"base_weights": torch.ones(2, 4)}, r"must be \(2, N\) but are \(2, 3\), \(2, 4\) and \(2, 3\)"),
        ({"inside": torch.ones(2, 4, dtype=torch.bool)}, "one row a text"),
        ({"prediction": torch.ones(3, 2), "base_prediction": torch.ones(3, 2)}, r"must be \(3, N\)"),
        ({"trade_off": -0.1}, "trade_off must be at least 0 but is -0.1"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {
        "prediction": torch.full((2, 2), 0.5),
        "base_prediction": torch.full((2, 2), 0.5),
        "weights": torch.full((2, 3), 1 / 3),
        "base_weights": torch.full((2, 3), 1 / 3),
        "inside": torch.ones(2, 3, dtype=torch.bool),
        "trade_off": 0.1,
    } | change
    trade_off = arguments.pop("trade_off")
    with pytest.raises(ValueError, match=message):
        adversary_loss(**arguments, trade_off=trade_off)
