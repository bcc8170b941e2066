"""Words out of tokens, and weights between words: nothing lost, nothing counted twice, rows keep their sum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figure_data import TokenLabel
from analysis.words import (
    character_words,
    merge_labels,
    merge_words,
    part_sign,
    token_words,
    word_groups,
)

TEXT = st.text(
    alphabet=st.one_of(
        st.sampled_from("ab  \n'’.,-_<1😀👩💻🇩🇪\u200d\u0301我喜カひภا\u202e\u00a0\ue000"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)


def split(text: str) -> list[str]:
    """The words of a text by ``character_words``."""
    words: dict[int, str] = {}
    for character, word in zip(text, character_words(text), strict=True):
        if word >= 0:
            words[word] = words.get(word, "") + character
    return [words[key] for key in sorted(words)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop, l'homme", ["Don't", "stop", ",", "l'homme"]),
        ("the dogs' 'quoted'", ["the", "dogs", "'", "'", "quoted", "'"]),
        ("state-of-the-art", ["state", "-", "of", "-", "the", "-", "art"]),
        ("3.14 and 1,000. a.b", ["3.14", "and", "1,000", ".", "a", ".", "b"]),
        ("a<b<c foo_bar", ["a", "<", "b", "<", "c", "foo_bar"]),
        ("我们喜欢 Karadžić。", ["我", "们", "喜", "欢", "Karadžić", "。"]),
        ("カタカナひら", ["カタカナ", "ひ", "ら"]),
        ("great😀 👩‍💻x", ["great", "😀", "👩‍💻", "x"]),
        ("🇩🇪🇫🇷", ["🇩🇪", "🇫🇷"]),
        ("👍🏽!", ["👍🏽", "!"]),
        ("cafe\u0301 हिन्दी", ["cafe\u0301", "हिन्दी"]),
        ("کتاب‌ها", ["کتاب‌ها"]),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("\u200fx", ["\u200fx"]),
        ("", []),
        (" \n\t\u202f", []),
    ],
)
def test_a_word_is_what_a_reader_takes_for_one(text, words):
    assert split(text) == words


@given(TEXT)
def test_every_character_but_white_space_is_in_one_word(text):
    words = character_words(text)
    assert len(words) == len(text)
    assert all((word < 0) == (not split(character)) for word, character in zip(words, text, strict=True))
    inside = [word for word in words if word >= 0]
    assert inside == sorted(inside)
    assert set(inside) == set(range(len(set(inside))))
    for first, word in zip(words, words[2:], strict=False):
        assert first < 0 or word < 0 or word >= first


def test_a_long_text_takes_time_in_proportion():
    import time

    def seconds(length: int) -> float:
        text = "🇩🇪a\u0301 我don't" * length
        start = time.process_time()
        character_words(text)
        return time.process_time() - start

    seconds(100)
    assert seconds(8_000) < 40 * max(
        seconds(1_000), 1e-3
    )  # 8 times the length; squared growth would be 64 times


# Tokens ----------------------------------------------------------------------------------------------------------


@st.composite
def cut_texts(draw):
    """A text and spans that run forward over it; they may repeat, overlap by characters, be empty or cover spaces."""
    text = draw(TEXT.filter(bool))
    spans: list[tuple[int, int] | None] = []
    position = 0
    while position < len(text) and len(spans) < 30:
        kind = draw(st.integers(0, 9))
        end = min(len(text), position + draw(st.integers(1, 4)))
        if kind == 0:
            spans.append((position, position))
        elif kind == 1 and spans and spans[-1] is not None:
            spans.append(spans[-1])  # T5: the same span again
        elif kind == 2:
            spans.append(None)
        else:
            spans.append((position, end))
            position = end - (kind == 3 and end - position > 1)  # T4: the next piece begins inside this one
    return text, spans


@given(cut_texts())
def test_words_of_tokens_never_go_back_and_share_no_characters(case):
    text, spans = case
    words = token_words(text, spans)
    inside = [word for word in words if word is not None]
    assert [word is None for word in words] == [span is None for span in spans]
    assert inside == sorted(inside)
    assert set(inside) == set(range(len(set(inside))))
    characters = character_words(text)
    owner: dict[int, int] = {}
    for span, word in zip(spans, words, strict=True):
        for position in range(*span) if span else ():
            if characters[position] >= 0:
                assert (
                    owner.setdefault(characters[position], word) == word
                )  # a word of the text is never split


def test_a_repeated_span_is_one_word():
    """T5: BART cuts Karadžić into pieces two of which have the same span."""
    text = "Karadžić."
    spans = [(0, 5), (5, 6), (5, 6), (6, 7), (7, 8), (7, 8), (8, 9)]
    assert token_words(text, spans) == [0, 0, 0, 0, 0, 0, 1]


def test_tokens_over_several_characters_join_them():
    assert token_words("我们喜欢", [(0, 2), (2, 4)]) == [0, 1]
    assert token_words("我们喜欢", [(0, 1), (1, 3), (3, 4)]) == [0, 1, 2]
    assert token_words("我们喜欢", [(0, 2), (1, 3), (3, 4)]) == [0, 0, 1]


def test_white_space_tokens_stand_alone_and_empty_ones_join_what_follows():
    assert token_words("a  b", [(0, 1), (1, 3), (3, 4)]) == [0, 1, 2]
    assert token_words("a b", [(0, 1), (2, 2), (2, 3)]) == [0, 1, 1]
    assert token_words("a\u202fb", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]) == [0, 1, 1, 1, 2]


def label(
    text: str, *, word: int | None = 0, special: bool = False, segment: int = 0, **more: object
) -> TokenLabel:
    return TokenLabel(text, text, word=word, special=special, segment=segment, **more)


def test_groups_hold_every_token_once():
    tokens = (
        label("[CLS]", word=None, special=True),
        label("un", word=0),
        label("fold", word=0, continues=True),
        label("it", word=1),
        label("[SEP]", word=None, special=True),
        label("un", word=0, segment=1),
        label("do", word=0, segment=1, continues=True),
        label("[SEP]", word=None, special=True, segment=1),
    )
    assert word_groups(tokens) == [(0,), (1, 2), (3,), (4,), (5, 6), (7,)]
    assert word_groups(()) == []


def test_words_of_two_segments_that_touch_stay_apart():
    """GPT-2 puts nothing between the two sentences of a pair."""
    tokens = (label("a", word=0), label("b", word=0, segment=1))
    assert word_groups(tokens) == [(0,), (1,)]


def test_merged_labels_show_the_word_as_typed():
    tokens = (
        TokenLabel("Karad", "Karad", word=0),
        TokenLabel("ž", "Å", word=0, continues=True),
        TokenLabel(part_sign("ž", 2, 2), "¾", word=0, continues=True),
        TokenLabel("i", "i", word=0, continues=True, unknown=True),
        TokenLabel("ć", "Ä", word=0, continues=True),
        TokenLabel(part_sign("ć", 2, 2), "ĩ", word=0, continues=True),
        TokenLabel("␣", "Ġ", word=1),
        TokenLabel("e", "e", word=1, continues=True),
        TokenLabel("◌\u0301", "x", word=1, continues=True),
        TokenLabel("␣", "Ġ", word=2),
    )
    merged = merge_labels(tokens, word_groups(tokens))
    assert [one.text for one in merged] == ["Karadžić", "e\u0301", "␣"]
    assert [one.piece for one in merged] == ["Karad Å ¾ i Ä ĩ", "Ġ e x", "Ġ"]
    assert [one.unknown for one in merged] == [True, False, False]
    assert not any(one.continues for one in merged)


def test_a_typed_fraction_is_no_part_sign():
    """Only a token that continues a word is taken for a part, and a typed one has no space inside."""
    tokens = (TokenLabel("(2/3)", "(2/3)", word=0), TokenLabel("x", "x", word=0, continues=True))
    assert merge_labels(tokens, word_groups(tokens))[0].text == "(2/3)x"


# Weights ---------------------------------------------------------------------------------------------------------


@st.composite
def grouped_weights(draw):
    """Attention weights (H, Q, K) with rows that sum to one, and groups that name every position once."""
    heads, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = generator.dirichlet(np.full(keys, 0.5), size=(heads, queries)).astype(np.float32)

    def groups(length: int) -> list[tuple[int, ...]]:
        order = draw(st.permutations(range(length)))
        cuts = sorted(draw(st.sets(st.integers(1, max(length - 1, 1)), max_size=length)) - {length})
        edges = [0, *[cut for cut in cuts if cut < length], length]
        return [tuple(order[a:b]) for a, b in pairwise(edges) if a < b]

    return weights, groups(queries), groups(keys)


@given(grouped_weights())
def test_merged_rows_sum_to_one_and_equal_the_definition(case):
    """Clark et al. 2019: to a word the sum, from a word the mean; stated once more in loops."""
    weights, rows, columns = case
    merged = merge_words(weights, rows, columns)
    assert merged.dtype == weights.dtype
    assert merged.shape == (len(weights), len(rows), len(columns))
    np.testing.assert_allclose(merged.sum(-1), 1.0, atol=1e-6)
    for r, row_group in enumerate(rows):
        for c, column_group in enumerate(columns):
            sums = [[sum(head[q, k] for k in column_group) for q in row_group] for head in weights]
            expected = np.mean(sums, axis=1)  # (H,)
            np.testing.assert_allclose(merged[:, r, c], expected, atol=1e-6)


def test_one_matrix_and_groups_that_leave_keys_out():
    weights = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    merged = merge_words(weights, [(0, 1)], [(1, 2)])
    np.testing.assert_allclose(merged, [[0.75]])
    assert merge_words(weights, [], [(0,)]).shape == (0, 1)
    assert merge_words(weights, [(0,)], []).shape == (1, 0)


def test_the_weights_that_come_in_are_not_written_to():
    weights = np.array([[0.5, 0.5], [0.5, 0.5]])
    weights.flags.writeable = False
    merge_words(weights, [(0, 1)], [(0, 1)])


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([()], [(0, 1)], "groups_rows must hold no empty group"),
        ([(0,)], [(0, 2)], "groups_columns must name positions 0 to 1 but names 2"),
        ([(-1,)], [(0, 1)], "groups_rows must name positions 0 to 1 but names -1"),
        ([(0,), (0, 1)], [(0, 1)], "counted twice"),
    ],
)
def test_groups_that_do_not_fit_are_refused(rows, columns, message):
    with pytest.raises(ValueError, match=message):
        merge_words(np.full((2, 2), 0.5), rows, columns)


def test_a_vector_is_refused_with_its_shape():
    """T17."""
    with pytest.raises(ValueError, match=r"weights must be \(..., Q, K\) but has shape \(2,\)"):
        merge_words(np.array([0.9, 0.1]), [(0,)], [(0,)])
