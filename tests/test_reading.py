"""Documents read in windows: held to the library's own answers window by window, merged in float64 NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.evidence.passes import forward_pass
from analysis.inputs import Inputs, encode_pair, encode_text
from analysis.models import LoadedModel
from analysis.reading import encode_document, owned_spans, window_starts
from analysis.trace import trace
from attn_core import reading_map
from attn_core.budget import memory_budget
from attn_core.errors import UnsupportedModelError
from tests.input_helpers import BART, BERT, GPT2, SENTENCES, byte_level, loaded, word_piece
from tests.oracles.reading import document_map, owner_of, starts_of

TEXT = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A classifier of 64 positions."""
    folder = tmp_path_factory.mktemp("bert")
    return loaded(folder, "BertForSequenceClassification", "BertConfig", word_piece(), num_labels=3, **BERT)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A decoder of 64 positions without special tokens."""
    return loaded(tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel", "GPT2Config", byte_level(), **GPT2)


@given(st.integers(1, 30), st.integers(1, 60), st.data())
def test_windows_and_owners_are_those_of_the_definition(room: int, more: int, data: st.DataObject) -> None:
    length, stride = room + more, data.draw(st.integers(1, room))
    starts = window_starts(length, room, stride)
    assert starts == starts_of(length, room, stride)
    for causal in (False, True):
        spans = owned_spans(starts, room, length, causal=causal)
        assert [first for first, _ in spans[1:]] == [stop for _, stop in spans[:-1]]
        for index, (first, stop) in enumerate(spans):
            assert stop > first
            for token in {first, stop - 1}:
                assert owner_of(token, starts, room, causal=causal) == index


def library_windows(
    model: LoadedModel, inputs: Inputs, before: int, after: int, room: int, starts: list[int]
) -> list[dict[str, np.ndarray]]:
    """What the library's eager attention says of each window."""
    fields = {name: tensor[0].tolist() for name, tensor in inputs.tensors.items()}
    module = type(model.module)._from_config(model.module.config, attn_implementation="eager")
    module.load_state_dict(model.module.state_dict())
    module.train(False)
    found = []
    for start in starts:
        held = {
            name: values[:before]
            + values[before + start : before + start + room]
            + values[len(values) - after :]
            for name, values in fields.items()
        }
        with torch.no_grad():
            output = module(
                **{name: torch.tensor([values]) for name, values in held.items()}, output_attentions=True
            )
        layers = torch.stack([weights[0] for weights in output.attentions]).double().numpy()
        logits = output.logits[0].double().numpy()
        found.append({"layers": layers, "logits": logits})
    return found


def check_maps(inputs: Inputs, model: LoadedModel, *, before: int, after: int, causal: bool) -> list[dict]:
    """The maps of the trace against the merge of the library's; returns the library's answers."""
    reading = inputs.reading
    assert reading is not None
    ids = inputs.tensors["input_ids"][0].tolist()
    length, room = len(ids) - before - after, reading.window - before - after
    starts = starts_of(length, room, reading.stride)
    assert len(starts) == len(reading.windows) > 2
    library = library_windows(model, inputs, before, after, room, starts)
    traced = trace(model, inputs)
    maps = traced.decoder if causal else traced.encoder
    assert len(maps) == len(library[0]["layers"])
    for layer, found in enumerate(maps):
        expected = document_map(
            [each["layers"][layer] for each in library],
            starts, length, before=before, after=after, causal=causal,
        )  # fmt: skip
        whole = torch.from_numpy(expected).float()
        assert_close(found.dense(), whole, atol=2e-6, rtol=1e-4)
        assert_close(found.dense().sum(-1), torch.ones(found.heads, len(ids)))
        assert_close(found.pooled(None, 7), torch.nn.functional.adaptive_max_pool2d(whole, (7, 7)))
        assert_close(found.row(1, 5), whole[1, 5], atol=2e-6, rtol=1e-4)
    return library


@pytest.mark.parametrize("stride", [None, 3, 10])
def test_windows_of_an_encoder_are_merged_as_written_out(bert: LoadedModel, stride: int | None) -> None:
    inputs = encode_document(bert, TEXT, window=12, stride=stride)
    library = check_maps(inputs, bert, before=1, after=1, causal=False)
    traced = trace(bert, inputs)
    each = np.stack([window["logits"] for window in library])
    assert traced.window_logits is not None
    assert traced.logits is not None
    assert_close(traced.window_logits, torch.from_numpy(each).float(), atol=1e-5, rtol=1e-4)
    assert_close(traced.logits, torch.from_numpy(each.mean(0)).float(), atol=1e-5, rtol=1e-4)
    assert any("mean of the logits" in note for note in traced.notes)


@pytest.mark.parametrize(("first", "second"), [(SENTENCES[4], TEXT), (TEXT, SENTENCES[4])])
def test_windows_of_a_pair_cut_the_longer_text_and_hold_the_other_whole(
    bert: LoadedModel, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    inputs = encode_document(bert, first, second, window=28, stride=5)
    reading, tokens = inputs.reading, inputs.tokens
    assert reading is not None
    assert tokens is not None
    sizes = [sum(token.segment == side and not token.special for token in tokens) for side in (0, 1)]
    before, after = (sizes[0] + 2, 1) if sizes[1] > sizes[0] else (1, sizes[1] + 2)
    assert reading.shared == (*range(before), *range(len(tokens) - after, len(tokens)))
    check_maps(inputs, bert, before=before, after=after, causal=False)
    monkeypatch.setattr(
        reading_map, "MOST_KEPT", 1
    )  # as for a question of so many rows that they are not kept
    check_maps(inputs, bert, before=before, after=after, causal=False)
    letter, cut = ("A", "B") if sizes[1] > sizes[0] else ("B", "A")
    (told,) = [note for note in inputs.notes if note.startswith("Read ")]
    assert f"The rows of [CLS], [SEP] and sentence {letter} are the mean over the windows." in told
    assert f"Sentence {cut} is cut into windows; each has sentence {letter} whole." in told
    for index, window in enumerate(reading.windows):
        assert window.kept_tokens == 28
        assert reading.span(index) == (before + 5 * index, before + 5 * index + 27 - before - after) or (
            index == len(reading.windows) - 1
        )
    alone = forward_pass(bert, reading.windows[1])  # an ordinary pair
    assert {token.segment for token in alone.inputs.tokens or ()} == {0, 1}


def test_a_pair_that_fits_gives_exactly_the_ordinary_one(bert: LoadedModel) -> None:
    document, pair = encode_document(bert, *SENTENCES[3:5]), encode_pair(bert, *SENTENCES[3:5])
    assert document.reading is None
    assert (document.digest, document.tokens, document.notes) == (pair.digest, pair.tokens, pair.notes)


@pytest.mark.parametrize("stride", [None, 5])
def test_windows_of_a_decoder_are_merged_by_what_stands_before(gpt2: LoadedModel, stride: int | None) -> None:
    inputs = encode_document(gpt2, TEXT[:160], window=16, stride=stride)
    library = check_maps(inputs, gpt2, before=0, after=0, causal=True)
    traced = trace(gpt2, inputs)
    reading = inputs.reading
    assert reading is not None
    assert traced.logits is not None
    size = len(inputs.tokens or ())
    starts = starts_of(size, 16, reading.stride)
    for position in range(size):
        owner = owner_of(position, starts, 16, causal=True)
        assert reading.owner(position) == owner
        expected = torch.from_numpy(library[owner]["logits"][position - starts[owner]]).float()
        assert_close(traced.logits[position], expected, atol=1e-5, rtol=1e-4)


def test_a_document_that_fits_gives_exactly_the_ordinary_trace(bert: LoadedModel) -> None:
    document, text = encode_document(bert, SENTENCES[0]), encode_text(bert, SENTENCES[0])
    assert document.reading is None
    assert (document.digest, document.tokens, document.notes) == (text.digest, text.tokens, text.notes)
    one, other = trace(bert, document), trace(bert, text)
    assert one.window_logits is None
    assert torch.equal(one.logits, other.logits)
    assert all(torch.equal(a.dense(), b.dense()) for a, b in zip(one.encoder, other.encoder, strict=True))


def test_a_window_alone_is_an_ordinary_text_with_the_words_of_the_document(bert: LoadedModel) -> None:
    inputs = encode_document(bert, TEXT, window=12)
    reading, tokens = inputs.reading, inputs.tokens
    assert reading is not None
    assert tokens is not None
    for index, window in enumerate(reading.windows):
        held = reading.columns[index].tolist()
        assert window.reading is None
        assert window.tokens == tuple(tokens[position] for position in held)
        assert window.spans == tuple((inputs.spans or ())[position] for position in held)
        assert window.kept_tokens == window.total_tokens == 12
        assert reading.span(index) == (held[1], held[-2])
    assert len({window.digest for window in reading.windows}) == len(reading.windows)
    assert trace(bert, reading.windows[1]).encoder[0].shape[2:] == (12, 12)


def test_hidden_states_are_the_owners_and_special_ones_the_mean(tmp_path: Path) -> None:
    model = loaded(tmp_path, "BertModel", "BertConfig", word_piece(), **BERT)
    inputs = encode_document(model, TEXT, window=12)
    reading = inputs.reading
    assert reading is not None
    traced = trace(model, inputs)
    parts = [trace(model, window).hidden for window in reading.windows]
    assert traced.hidden is not None
    assert_close(traced.hidden[0], torch.stack([part[0] for part in parts]).mean(0))
    owner = reading.owner(20)
    assert owner is not None
    place = reading.columns[owner].tolist().index(20)
    assert_close(traced.hidden[20], parts[owner][place])
    assert reading.owner(0) is None


def test_how_it_was_read_is_told_and_makes_another_input(bert: LoadedModel) -> None:
    half, third = encode_document(bert, TEXT, window=12), encode_document(bert, TEXT, window=12, stride=3)
    assert half.digest != third.digest
    assert half.kept_tokens == half.total_tokens == len(half.tokens or ())
    (told,) = [note for note in half.notes if note.startswith("Read ")]
    assert f"Read {half.total_tokens} tokens in {len(half.reading.windows)} windows of 12, stride 5" in told
    assert "neighbours share 5 tokens" in told
    spans = [half.reading.span(index) for index in range(len(half.reading.windows))]
    shared = [before[1] + 1 - after[0] for before, after in itertools.pairwise(spans)]
    assert set(shared[:-1]) == {5} != {shared[-1]}
    assert f"neighbours share 5 tokens, the last two {shared[-1]}." in told
    tokens = encode_document(bert, SENTENCES[0]).total_tokens
    two = encode_document(bert, SENTENCES[0], window=tokens - 1)
    assert f"they share {tokens - 4} tokens." in " ".join(two.notes)
    assert "[CLS] and [SEP] are the mean over the windows" in told


def test_logits_of_every_token_are_left_out_where_they_would_not_fit(gpt2: LoadedModel) -> None:
    inputs = encode_document(gpt2, TEXT[:160], window=16)
    with memory_budget(1000):
        traced = trace(gpt2, inputs)
    assert traced.logits is None
    assert any("would take more than the memory budget" in note for note in traced.notes)


def test_what_cannot_be_read_in_windows_is_refused(bert: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stride must be between 1 and 10"):
        encode_document(bert, TEXT, window=12, stride=11)
    with pytest.raises(ValueError, match="stride must be between 1 and 10"):
        encode_document(bert, TEXT, window=12, stride=0)
    with pytest.raises(ValueError, match="leave room for the 2 special tokens and one more but is 2"):
        encode_document(bert, TEXT, window=2)
    with pytest.raises(
        ValueError, match=r"the \d+ tokens that every window has and one more .* shorter second"
    ):
        encode_document(bert, TEXT, TEXT, window=20)
    bart = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", byte_level(roberta=True), **BART)
    with pytest.raises(UnsupportedModelError, match="choose a model of one stack"):
        encode_document(bart, TEXT)


def test_one_pass_over_a_whole_document_is_refused(bert: LoadedModel) -> None:
    """The model has no position for its tokens; the error would come from deep inside."""
    inputs = encode_document(bert, TEXT * 2)
    assert inputs.reading is not None
    with pytest.raises(UnsupportedModelError, match=r"read in \d+ windows .*; open one window alone"):
        forward_pass(bert, inputs)
    forward_pass(bert, replace(inputs.reading.windows[0]))
