"""The recurrent classifier: against float64 NumPy, and what its parts promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from attn_core.maps import DenseMap
from attn_core.models.classifier import AttentionClassifier, Scoring
from attn_core.seam import recording

SCORINGS: tuple[Scoring, Scoring] = ("additive", "scaled_dot")


def tiny(scoring: Scoring = "additive", *, seed: int = 0) -> AttentionClassifier:
    torch.manual_seed(seed)
    return (
        AttentionClassifier(30, 3, embedding=6, hidden=5, scoring=scoring, attention_width=4).double().eval()
    )


def by_hand(model: AttentionClassifier, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and weights of one text, by the formulas of the paper in NumPy."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    embedded = state["embedding.weight"][tokens]

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    def lstm(inputs: np.ndarray, suffix: str) -> np.ndarray:
        w_in, w_rec = state[f"encoder.weight_ih_l0{suffix}"], state[f"encoder.weight_hh_l0{suffix}"]
        bias = state[f"encoder.bias_ih_l0{suffix}"] + state[f"encoder.bias_hh_l0{suffix}"]
        h = c = np.zeros(w_rec.shape[1])
        states = []
        for x in inputs:
            i, f, g, o = np.split(w_in @ x + w_rec @ h + bias, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        return np.array(states)

    hidden = np.concatenate([lstm(embedded, ""), lstm(embedded[::-1], "_reverse")[::-1]], axis=1)
    if "scores.query" in state:
        scores = hidden @ state["scores.query"] / np.sqrt(hidden.shape[1])
    else:
        inner = np.tanh(hidden @ state["scores.project.weight"].T + state["scores.project.bias"])
        scores = inner @ state["scores.vector.weight"][0]
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return state["output.weight"] @ (weights @ hidden) + state["output.bias"], weights


@pytest.mark.parametrize("scoring", SCORINGS)
@given(tokens=st.lists(st.integers(1, 29), min_size=1, max_size=9))
def test_logits_and_weights_are_those_of_the_formulas(scoring, tokens):
    model = tiny(scoring)
    with torch.no_grad():
        output = model(torch.tensor([tokens]))
    logits, weights = by_hand(model, tokens)
    assert_close(output.logits[0], torch.from_numpy(logits))
    assert_close(output.weights[0], torch.from_numpy(weights))


@pytest.mark.parametrize("scoring", SCORINGS)
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4))
def test_padding_changes_nothing(scoring, lengths):
    model = tiny(scoring)
    texts = [torch.arange(1, length + 1) for length in lengths]
    batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.no_grad():
        together = model(batch)
        for row, text in enumerate(texts):
            alone = model(text[None])
            assert_close(together.logits[row], alone.logits[0])
            assert_close(together.weights[row, : len(text)], alone.weights[0])
            assert together.weights[row, len(text) :].eq(0).all()


def test_any_distribution_can_stand_in_for_attention_with_the_encoder_run_once():
    model = tiny()
    tokens = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        output = model(tokens)
        others = torch.softmax(torch.randn(1, 5, 4, dtype=torch.float64), -1)
        several = model.classify(output.hidden[:, None], others)
        for index in range(5):
            assert_close(several[:, index], model.classify(output.hidden, others[:, index]))
        assert_close(model.classify(output.hidden, output.weights), output.logits)


def test_its_attention_is_recorded_as_one_row():
    model = tiny()
    tokens = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 10]])
    with torch.no_grad(), recording() as record:
        output = model(tokens)
    (call,) = record.calls
    assert call.module is model
    assert isinstance(call.map, DenseMap)
    item = call.map.item(0)
    assert item.shape == (1, 1, 1, 3)
    assert_close(item.row(0, 0), output.weights[0, :3])


def test_nothing_is_recorded_without_being_asked():
    with torch.no_grad(), recording() as record:
        pass
    with torch.no_grad():
        tiny()(torch.tensor([[1, 2]]))
    assert record.calls == []


def test_bad_input_is_told():
    model = tiny()
    with pytest.raises(ValueError, match="input_ids must have 2 axes"):
        model(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="padding must stand"):
        model(torch.tensor([[1, 0, 2]]))
    with pytest.raises(ValueError, match="at least one token"):
        model(torch.tensor([[0, 0], [1, 2]]))
    with pytest.raises(ValueError, match="one value a token"):
        model(torch.tensor([[1, 2]]), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="scoring must be"):
        AttentionClassifier(5, scoring="cosine")  # type: ignore[arg-type]
