"""CoNLL-U: what is read is what was written, and whatever is wrong is told with its line."""

from __future__ import annotations

import gzip
import random
import re
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.heads import treebank
from analysis.heads.treebank import MOST_SENTENCES, ParsedSentence, base_relation, read_treebank

LETTERS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=6).filter(
    lambda text: text.strip() != ""
)


def line(name: object, form: str, head: object = "_", relation: str = "_", misc: str = "_") -> str:
    return "\t".join([str(name), form, "_", "_", "_", "_", str(head), relation, "_", misc])


CONTRACTED = "\n".join(
    [
        "# text = Il n'est pas du coin.",
        line(1, "Il", 6, "nsubj"),
        line(2, "n'", 6, "advmod", "SpaceAfter=No"),
        line(3, "est", 6, "cop"),
        line(4, "pas", 6, "advmod"),
        line("4.1", "_", "_", "_"),
        line("5-6", "du", misc="Lang=fr|SpaceAfter=_"),
        line(5, "de", 7, "case"),
        line(6, "le", 7, "det:def"),
        line(7, "coin", 0, "root", "SpaceAfter=No"),
        line(8, ".", 7, "punct"),
        "",
        line("1-2", "didn't", misc="SpaceAfter=No"),
        line(1, "did", 0, "root"),
        line(2, "n't", 1, "advmod"),
        line(3, "!", 1, "punct", "SpaceAfter=No"),
    ]
)


def test_contractions_empty_nodes_and_spaces():
    french, english = read_treebank(CONTRACTED)
    assert french.text == "Il n'est pas du coin."
    assert french.words == ("Il", "n'", "est", "pas", "de", "le", "coin", ".")
    assert french.heads == (5, 5, 5, 5, 6, 6, -1, 6)
    assert french.relations[5] == "det:def"
    assert french.spans[4:6] == (None, None)
    assert [french.text[slice(*span)] for span in french.spans if span] == [
        word for word, span in zip(french.words, french.spans, strict=True) if span
    ]
    assert english == ParsedSentence(
        ("did", "n't", "!"),
        (-1, 0, 0),
        ("root", "advmod", "punct"),
        "didn't!",
        ((0, 3), (3, 6), (6, 7)),
    )


def test_other_line_ends_are_part_of_a_word():
    found = read_treebank(line(1, "a\u2028b\x85c", 0, "root"))[0]
    assert found.words == ("a\u2028b\x85c",)


def test_a_packed_file_is_not_unpacked_further_than_allowed(monkeypatch):
    monkeypatch.setattr(treebank, "MOST_BYTES", 2**20)
    bomb = gzip.compress(b"\0" * 2**26)
    tracemalloc.start()
    with pytest.raises(ValueError, match="must take at most 1 MiB unpacked but takes more"):
        read_treebank(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_subtypes_are_kept_and_can_be_stripped():
    assert base_relation("nsubj:pass") == base_relation("nsubj") == "nsubj"


@pytest.mark.parametrize(
    "source",
    [
        CONTRACTED.encode(),
        b"\xef\xbb\xbf" + CONTRACTED.encode(),
        "\ufeff" + CONTRACTED,
        CONTRACTED.replace("\n", "\r\n"),
        "\n\n" + CONTRACTED.replace("\n\n", "\n \n\n") + "\n\n\n",
        gzip.compress(CONTRACTED.encode()),
        gzip.compress(CONTRACTED[:60].encode()) + gzip.compress(CONTRACTED[60:].encode()) + b"\0" * 100,
    ],
    ids=["bytes", "marked bytes", "marked text", "CRLF", "empty lines", "gzip", "gzip in members"],
)
def test_the_same_sentences_in_other_wrappings(source):
    assert read_treebank(source) == read_treebank(CONTRACTED)


@st.composite
def sentences(draw):
    """Words with heads, relations and spaces."""
    count = draw(st.integers(1, 7))
    words = draw(st.lists(LETTERS, min_size=count, max_size=count))
    heads = [draw(st.sampled_from([h for h in range(-1, count) if h != index])) for index in range(count)]
    relations = draw(st.lists(st.sampled_from(["obj", "nsubj:pass", "det"]), min_size=count, max_size=count))
    spaces = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return words, heads, relations, spaces


@settings(max_examples=60)
@given(st.lists(sentences(), min_size=1, max_size=3))
def test_what_was_written_is_read(drawn):
    blocks = [
        "\n".join(
            line(number, word, head + 1, relation, "_" if space else "SpaceAfter=No")
            for number, (word, head, relation, space) in enumerate(zip(*sentence, strict=True), start=1)
        )
        for sentence in drawn
    ]
    found = read_treebank("\n\n".join(blocks))
    for sentence, (words, heads, relations, spaces) in zip(found, drawn, strict=True):
        assert (list(sentence.words), list(sentence.heads), list(sentence.relations)) == (
            words,
            heads,
            relations,
        )
        joined = "".join(word + " " * space for word, space in zip(words, spaces, strict=True))
        assert sentence.text == joined.rstrip(" ")
        assert [sentence.text[slice(*span)] for span in sentence.spans] == words


GOOD = [line(1, "a", 2, "det"), line(2, "b", 0, "root")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1 a _ _ _ _ 0 root _ _"], "line 1: a word must have 10 columns with tabs between them but has 1"),
        ([*GOOD, "x\ty"], "line 3: a word must have 10 columns with tabs between them but has 2"),
        ([GOOD[1]], "line 1: the ID must be 1 but is '2'"),
        ([*GOOD, line("1", "a", 2, "det")], "line 3: the ID must be 3 but is '1'"),
        ([line("٣", "a", 0, "root")], "line 1: the ID must be 1 but is '٣'"),
        ([line(1, "a", 3, "det"), GOOD[1]], "line 1: the HEAD must be another word of the 2 or 0 but is 3"),
        ([line(1, "a", 1, "det"), GOOD[1]], "line 1: the HEAD must be another word of the 2 or 0 but is 1"),
        ([line(1, "a", "_", "det")], "line 1: the HEAD must be a number but is '_'"),
        ([line(1, "a", "-1", "det")], "line 1: the HEAD must be a number but is '-1'"),
        ([line(1, "a", 0, "_")], "line 1: the DEPREL must name a relation but is '_'"),
        ([line(1, "a", 0, ":x")], "line 1: the DEPREL must name a relation but is ':x'"),
        ([line(1, " ", 0, "root")], "line 1: a form must have 1 to 1,000 characters but has 0"),
        ([line(1, "x" * 1001, 0, "root")], "line 1: a form must have 1 to 1,000 characters but has 1,001"),
        (
            [line("2-3", "ab"), *GOOD],
            "line 1: the multiword token 2-3 must stand before its first word and hold two",
        ),
        (
            [line("1-1", "a"), *GOOD],
            "line 1: the multiword token 1-1 must stand before its first word and hold two",
        ),
        ([line("1-2", "ab"), line("1-2", "ab"), *GOOD], "line 2: the multiword token 1-2 must stand before"),
        ([line("1-3", "abc"), *GOOD], "line 1: a multiword token ends at word 3 but the sentence has 2"),
        ([line("1.1", "a")], "line 1: a sentence must have at least one word but has none"),
        ([], "source must hold at least one sentence but holds none; pass a CoNLL-U file"),
        (["# sent_id = 1", ""], "source must hold at least one sentence but holds none"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(lines, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_treebank("\n".join(lines))


def test_bytes_that_are_no_text():
    with pytest.raises(ValueError, match="line 3: the file is no UTF-8; save it as UTF-8"):
        read_treebank("\n".join(GOOD).encode() + b"\n\xff")
    packed = gzip.compress("\n".join(GOOD).encode())
    with pytest.raises(ValueError, match="is a gzip file that breaks off"):
        read_treebank(packed[:-9])
    with pytest.raises(ValueError, match="is no whole gzip file"):
        read_treebank(packed[:12] + b"\xff\xff\xff" + packed[15:])
    with pytest.raises(ValueError, match="is no whole gzip file"):
        read_treebank(packed + b"more")


def test_limits_are_kept(monkeypatch):
    assert MOST_SENTENCES == 50_000
    with pytest.raises(ValueError, match="line 4: the file has more than 1 sentences; read a part of it"):
        read_treebank("\n".join([*GOOD, "", *GOOD]), most_sentences=1)
    assert len(read_treebank("\n".join(GOOD), most_sentences=1)) == 1
    with pytest.raises(ValueError, match="most_sentences must be at least 1 but is 0"):
        read_treebank("", most_sentences=0)
    many = "\n".join(line(number, "a", 0, "root") for number in range(1, 1002))
    with pytest.raises(ValueError, match="line 1001: a sentence must have at most 1,000 words but has more"):
        read_treebank(many)
    monkeypatch.setattr(treebank, "MOST_BYTES", 2**20)
    bomb = gzip.compress(b"\n" * (2**20 + 1))
    for source in (bomb, b"\n" * (2**20 + 1), "\n" * (2**20 + 1), b"\x1f\x8b" + b"\0" * 2**20):
        with pytest.raises(ValueError, match="must take at most 1 MiB unpacked but takes more"):
            read_treebank(source)


def test_many_empty_members_take_time_in_proportion():
    start = time.process_time()
    with pytest.raises(ValueError, match="must hold at least one sentence but holds none"):
        read_treebank(gzip.compress(b"") * 20_000)
    assert time.process_time() - start < 5


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.text(max_size=200))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08\x00")
@example("\t" * 9)
@example("\t\t\t\t\t\t\t\t\t" + "\n1")
def test_garbage_is_refused_in_words(source):
    with pytest.raises(ValueError, match=r"^read_treebank: "):
        read_treebank(source)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused_in_words(seed):
    chosen = random.Random(seed)
    damaged = bytearray(CONTRACTED.encode())
    for _ in range(chosen.randint(1, 5)):
        place = chosen.randrange(len(damaged))
        damaged[place : place + chosen.randint(0, 2)] = bytes(
            chosen.choice(b"\t\n0123456789-.|_a\xc3") for _ in range(chosen.randint(0, 3))
        )
    try:
        found = read_treebank(bytes(damaged))
    except ValueError as error:
        found, refusal = (), str(error)
    else:
        refusal = "read_treebank: "
    assert refusal.startswith("read_treebank: ")
    for sentence in found:
        count = len(sentence.words)
        assert count == len(sentence.heads) == len(sentence.relations) == len(sentence.spans)
        assert all(-1 <= head < count for head in sentence.heads)


def test_a_whole_treebank(optional_data):
    folder = optional_data / "data" / "ud-ewt"
    if not folder.is_dir():
        pytest.skip(f"no treebank in {folder}")
    packed = (folder / "en_ewt-ud-dev.conllu.gz").read_bytes()
    found = read_treebank(packed)
    assert len(found) == 2_001
    assert sum(len(sentence.words) for sentence in found) == 25_147
    assert all(sum(head < 0 for head in sentence.heads) == 1 for sentence in found)
    own = re.findall(r"^# text = (.*)$", gzip.decompress(packed).decode(), flags=re.MULTILINE)
    differing = [pair for pair in zip(own, found, strict=True) if pair[0].strip() != pair[1].text]
    assert differing == []
    assert sum(span is None for sentence in found for span in sentence.spans) < 20
