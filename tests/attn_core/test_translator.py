"""The translator: against the papers' formulas in float64 NumPy, and step by step against all at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from attn_core import editing, recording, uniform
from attn_core.models.translator import SCORINGS, SourceStates, Translator

KINDS = [
    *((scoring, "gru", False) for scoring in SCORINGS),
    ("additive", "lstm", False),
    ("general", "lstm", True),
    ("dot", "gru", True),
    ("concat", "gru", True),
    (None, "lstm", False),
]
"""Scoring, cell, input feeding."""


def tiny(scoring="additive", cell="gru", feeding=False, *, seed=0, **options) -> Translator:
    torch.manual_seed(seed)
    model = Translator(
        9, 7, embedding=4, hidden=6, scoring=scoring, cell=cell, input_feeding=feeding, attention_width=5,
        dropout=0.0, **options,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():  # far enough from zero that every term matters
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    return model.double().eval()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class ByHand:
    """The formulas once more, for one sentence, in NumPy."""

    def __init__(self, model: Translator) -> None:
        self.weight = {name: value.numpy() for name, value in model.state_dict().items()}
        self.scoring, self.kind, self.feeding = model.scoring, model.cell, model.input_feeding

    def cell(self, name, x, h, c):
        """One step of a recurrent cell: the new state and the new inner state of an LSTM."""
        part = [self.weight[f"{name.replace('.', f'.{each}_', 1)}"] for each in ("weight_ih", "weight_hh")]
        bias = [self.weight[f"{name.replace('.', f'.{each}_', 1)}"] for each in ("bias_ih", "bias_hh")]
        entering, before = part[0] @ x + bias[0], part[1] @ h + bias[1]
        if self.kind == "lstm":
            i, f, g, o = np.split(entering + before, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        (r1, z1, n1), (r2, z2, n2) = np.split(entering, 3), np.split(before, 3)
        z = sigmoid(z1 + z2)
        return (1 - z) * np.tanh(n1 + sigmoid(r1 + r2) * n2) + z * h, c

    def read(self, words, suffix):
        """States of one direction, in the order in which it reads."""
        h = c = np.zeros(self.weight[f"encoder.weight_hh_l0{suffix}"].shape[1])
        states = []
        for word in words:
            h, c = self.cell(f"encoder.l0{suffix}", self.weight["source_embedding.weight"][word], h, c)
            states.append(h)
        return states

    def scores_of(self, query, states):
        weight = self.weight
        if self.scoring == "additive":
            w, u = weight["attention.query_projection.weight"], weight["attention.key_projection.weight"]
            inner = [np.tanh(w @ query + weight["attention.query_projection.bias"] + u @ h) for h in states]
            return np.array([weight["attention.vector.weight"][0] @ each for each in inner])
        if self.scoring == "dot":
            return np.array([query @ h for h in states])
        if self.scoring == "general":  # ours projects the query: h · (W q)
            return np.array([h @ (weight["attention.query_projection.weight"] @ query) for h in states])
        pairs = [weight["attention.pair_projection.weight"] @ np.concatenate([query, h]) for h in states]
        return np.array([weight["attention.vector.weight"][0] @ np.tanh(pair) for pair in pairs])

    def look(self, query, states):
        scores = self.scores_of(query, states)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        return weights, weights @ np.array(states)

    def __call__(self, source, target):
        """Scores (T, V) of the next words and weights (T, S)."""
        weight = self.weight
        forward, backward = self.read(source, ""), self.read(source[::-1], "_reverse")
        states = [np.concatenate(pair) for pair in zip(forward, backward[::-1], strict=True)]
        first = np.tanh(weight["start.weight"] @ backward[-1] + weight["start.bias"])
        h, c = np.split(first, 2) if self.kind == "lstm" else (first, None)
        fed, rows, maps = np.zeros(4), [], []
        for word in target:
            embedded = weight["target_embedding.weight"][word]
            if self.scoring in ("additive", None):
                if self.scoring is None:
                    weights, context = np.zeros(len(source)), np.concatenate([forward[-1], backward[-1]])
                else:
                    weights, context = self.look(h, states)
                h, c = self.cell("decoder.l0", np.concatenate([embedded, context]), h, c)
                entering = np.concatenate([h, embedded, context])
                read = (weight["readout.weight"] @ entering + weight["readout.bias"]).reshape(-1, 2).max(1)
            else:
                h, c = self.cell("decoder.l0", np.concatenate([embedded, fed][: 1 + self.feeding]), h, c)
                weights, context = self.look(h, states)
                read = np.tanh(weight["attentional.weight"] @ np.concatenate([context, h]))
                fed = read
            rows.append(weight["target_embedding.weight"] @ read + weight["output_bias"])
            maps.append(weights)
        return np.array(rows), np.array(maps)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=8)
@given(
    source=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    target=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 5),
)
def test_scores_and_weights_are_those_of_the_papers(kind, source, target, seed):
    model = tiny(*kind, seed=seed)
    with torch.no_grad(), recording() as record:
        scores = model(torch.tensor([source]), torch.tensor([target]))
    expected, weights = ByHand(model)(source, target)
    assert_close(scores[0], torch.from_numpy(expected))
    if kind[0] is None:
        assert record.calls == []
    else:
        assert_close(record.calls[0].map.weights()[0, 0], torch.from_numpy(weights))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_equal_the_whole_target_and_padding_changes_nothing(kind):
    model = tiny(*kind)
    sources = [[3, 4, 5, 6, 2], [7, 8], [1]]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in sources], batch_first=True)
    target = torch.tensor([[2, 3, 4, 1], [2, 4, 6, 3], [2, 5, 5, 1]])
    with torch.no_grad(), recording() as record:
        together = model(ids, target)
        state, steps = model.begin(model.encode(ids)), []
        for column in range(target.shape[1]):
            steps.append(model.step(target[:, column], state))
            state = steps[-1].state
    assert_close(torch.stack([step.scores for step in steps], dim=1), together)
    for row, source in enumerate(sources):
        with torch.no_grad():
            assert_close(model(torch.tensor([source]), target[row : row + 1])[0], together[row])
    if kind[0] is None:
        assert [step.attention for step in steps] == [None] * 4
        return
    whole, *single = record.calls  # one map of all steps, then one for each step
    assert whole.module is model.attention
    assert whole.map.shape == (3, 1, 4, 5)
    weights = whole.map.weights()[:, 0]  # (B, T, S)
    assert_close(weights.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    assert weights[1, :, 2:].eq(0).all()
    assert weights[2, :, 1:].eq(0).all()
    assert len(single) == 4
    for column, (call, step) in enumerate(zip(single, steps, strict=True)):
        assert_close(call.map.weights()[:, 0, 0], weights[:, column])
        assert step.attention is not None
        assert_close(step.attention, weights[:, column])
    assert whole.map.item(1).shape == (1, 1, 4, 2)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_words_to_come_change_nothing_and_every_weight_learns(kind):
    model = tiny(*kind)
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[2, 3, 4, 5]])
    scores = model(source, target)
    changed = model(source, torch.tensor([[2, 3, 6, 6]]))
    assert_close(changed[:, :2], scores[:, :2])
    assert not torch.allclose(changed[:, 2], scores[:, 2])
    gradients = torch.autograd.grad(scores.square().sum(), list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, each in zip(names, gradients, strict=True) if not each.abs().sum() > 0] == []


def test_without_attention_the_last_state_is_all_there_is():
    words = torch.tensor([2])
    for scoring in (None, "additive", "general"):
        model = tiny(scoring)
        with torch.no_grad():
            source = model.encode(torch.tensor([[3, 4, 5]]))
            other = SourceStates(source.states.roll(1, dims=1) * 2, source.valid, source.last)
            scores, changed = (model.step(words, model.begin(each)).scores for each in (source, other))
        assert torch.equal(scores, changed) == (scoring is None)


@pytest.mark.parametrize("scoring", ["additive", "concat"])
def test_the_alignment_can_be_asked_for_with_its_graph(scoring):
    model = tiny(scoring)
    source, target = torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([[2, 3], [2, 4]])
    vectors, weights = model.vectors_and_weights(source, target)
    assert_close(vectors, model.vectors(source, target))
    with torch.no_grad(), recording() as record:
        model(source, target)
    assert_close(weights.detach(), record.calls[0].map.weights()[:, 0])
    (gradient,) = torch.autograd.grad(weights[0, :, 0].sum(), [model.attention.vector.weight])
    assert gradient.abs().sum() > 0
    with pytest.raises(ValueError, match="scoring must be additive or concat but is 'dot'"):
        tiny("dot").vectors_and_weights(source, target)


def test_one_way_reading_starts_from_the_last_word():
    model = tiny(None, bidirectional=False)
    with torch.no_grad():
        source = model.encode(torch.tensor([[3, 4, 5, 0], [3, 4, 5, 6]]))
        assert_close(source.last, torch.stack([source.states[0, 2], source.states[1, 3]]))
        assert_close(model.begin(source).hidden, torch.tanh(model.start(source.last)))
    assert source.states.shape == (2, 4, 6)
    assert source.states[0, 3].eq(0).all()


def test_luong_attention_can_be_edited_through_the_seam():
    model, source = tiny("general"), torch.tensor([[3, 4, 5, 6]])
    state = model.begin(model.encode(source))
    with (
        torch.no_grad(),
        editing(lambda module: uniform(torch.tensor([[True]])) if module is model.attention else None),
    ):
        step = model.step(torch.tensor([2]), state)
    assert step.attention is not None
    assert_close(step.attention, torch.full((1, 4), 0.25, dtype=torch.float64))
    assert not torch.allclose(step.scores, model.step(torch.tensor([2]), state).scores)


def test_states_are_picked_by_item():
    model = tiny("dot", "lstm", True)
    source = model.encode(torch.tensor([[3, 4], [5, 0]]))
    state = model.step(torch.tensor([2, 2]), model.begin(source)).state
    order = torch.tensor([1, 1, 0])
    picked = state.items(order)
    for name in ("hidden", "cell", "fed"):
        assert_close(getattr(picked, name), getattr(state, name)[order])
    assert picked.source.valid.tolist() == [[True, False], [True, False], [True, True]]
    assert_close(picked.source.last, source.last[order])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring": "cosine"}, "scoring must be additive, dot, general, concat or None but is 'cosine'"),
        ({"cell": "rnn"}, "cell must be gru or lstm but is 'rnn'"),
        ({"hidden": 5}, "hidden must be even for a bidirectional encoder but is 5"),
        ({"input_feeding": True}, "input_feeding must be False with scoring='additive'"),
    ],
)
def test_options_that_cannot_be_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        Translator(5, 5, **options)


def test_bad_input_is_told():
    model = tiny()
    with pytest.raises(ValueError, match="source_ids must have 2 axes"):
        model(torch.tensor([1, 2]), torch.tensor([[2]]))
    with pytest.raises(ValueError, match="padding must stand at the end"):
        model(torch.tensor([[1, 0, 2]]), torch.tensor([[2]]))
    with pytest.raises(ValueError, match="at least one word a row"):
        model(torch.tensor([[0, 0], [1, 2]]), torch.tensor([[2], [2]]))
    with pytest.raises(ValueError, match=r"target_ids must be \(1, T\) with T at least 1 but is \(1, 0\)"):
        model(torch.tensor([[1]]), torch.empty(1, 0, dtype=torch.long))
    with pytest.raises(ValueError, match=r"target_ids must be \(1, T\)"):
        model(torch.tensor([[1]]), torch.tensor([[2], [2]]))
