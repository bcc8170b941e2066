"""Words, vocabularies, small weights and the shipped translators."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import math
import re
import unicodedata
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close

from analysis import translation
from analysis.errors import ModelUnavailableError
from analysis.int8_rows import from_int8_rows, int8_rows
from analysis.trained import verified_part
from analysis.translation import (
    MOST_WORDS,
    LoadedTranslator,
    forced,
    load_translator,
    search,
    step_by_step,
    translate,
    translator_of,
)
from analysis.translation_words import END, SPECIAL, UNKNOWN, Vocabulary, join_words, split_words
from analysis.translators import TRANSLATORS
from attn_core import recording
from attn_core.errors import UnsupportedModelError
from attn_core.models.translator import Translator
from scripts import evaluate_translator, train_translator
from scripts.evaluate_translator import bleu, exact, recall
from scripts.train_translator import batches, dressed, numbered, word_loss
from scripts.translation_data import Sentence, joined, read_corpus

NAMES = tuple(model.name for model in TRANSLATORS)

# Words.


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "I don't know.", "I do n't know ."),
        ("en", "We can’t, it's 6:30 a.m.!", "We ca n't , it 's 6:30 a.m. !"),
        ("en", "It's five o'clock, isn't it?", "It 's five o'clock , is n't it ?"),
        ("en", 'A well-known man said "no".', 'A well-known man said " no " .'),
        ("en", "He's Tom's; they'd've left...", "He 's Tom 's ; they 'd 've left ..."),
        ("en", "It costs $10 (or 5%).", "It costs $ 10 ( or 5 % ) ."),
        ("fr", "Je t'aime !", "Je t' aime !"),
        ("fr", "Qu’est-ce que c’est ?", "Qu' est -ce que c' est ?"),
        ("fr", "Donne-le-moi aujourd'hui.", "Donne -le -moi aujourd'hui ."),
        ("fr", "Va-t'en ! Y a-t-il quelqu'un ?", "Va -t' en ! Y a -t-il quelqu' un ?"),
        ("fr", "Peut-être là-bas, grand-mère.", "Peut-être là-bas , grand-mère ."),
        ("fr", "Il dit : « Lorsqu'il l'a… »", "Il dit : « Lorsqu' il l' a … »"),
        ("fr", "À 6h30, J'ai 1,5 litre.", "À 6h30 , J' ai 1,5 litre ."),
    ],
)
def test_texts_are_cut_into_words_and_put_together_again(language, text, words):
    assert split_words(text, language) == words.split()
    assert join_words(words.split(), language) == text.replace("’", "'")


@pytest.mark.parametrize(
    ("language", "loose", "text"),
    [
        ("fr", "Vraiment?Oui!", "Vraiment ? Oui !"),
        ("fr", "Stop\u202f!  Viens\xa0: vite", "Stop ! Viens : vite"),
        ("fr", "« oui»", "« oui »"),
        ("en", "Really ? Yes  !", "Really? Yes!"),
        ("en", "( no )", "(no)"),
    ],
)
def test_spaces_are_those_of_the_language(language, loose, text):
    assert join_words(split_words(loose, language), language) == text


PIECES = st.sampled_from(
    [
        *"abnstmlqdçéÀI0 -'’.,!?:;\"«»()$%…_²",
        "n't",
        "qu'",
        "-moi",
        "-t-il",
        "'s",
        "a.m.",
        "..",
        " ",
        "ﬀ",
        "e\u0301",
    ]
)


@pytest.mark.parametrize("language", ["en", "fr"])
@given(text=st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=12))
def test_no_letter_is_lost_and_cutting_again_gives_the_same_words(language, text):
    words = split_words(text, language)
    plain = unicodedata.normalize("NFC", text).translate(str.maketrans("’‘ʼ‐‑“”", "'''--\"\""))
    assert "".join(words) == "".join(plain.split())
    assert split_words(join_words(words, language), language) == words
    for word in words:
        assert split_words(word, language) == [word]


def test_the_data_comes_back_as_it_was(optional_data):
    """Every pair of the data, spaces as the languages have them; 30 of 152,074 texts are spelled otherwise."""
    different = 0
    with gzip.open(optional_data / "data" / "fra-eng" / "eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t")[:2] for line in file][::10]
    for texts in lines:
        for language, text in zip(("en", "fr"), texts, strict=True):
            plain = unicodedata.normalize("NFC", text).translate(str.maketrans("’‘‐", "''-"))
            plain = " ".join(plain.split())
            if language == "fr":
                plain = re.sub(r"«\s*", "« ", re.sub(r"\s*([!?:;»])(?!\d)", r" \1", plain))
            words = split_words(text, language)
            different += join_words(words, language) != plain
            assert split_words(join_words(words, language), language) == words
    assert different <= 6


def test_words_stay_apart_where_they_would_become_others():
    assert join_words([".", ".", "Tom"], "en") == ". . Tom"
    assert join_words(["Tom", ".", "..."], "fr") == "Tom . ..."


def test_an_unknown_language_is_told():
    with pytest.raises(ValueError, match="language must be en or fr but is 'de'"):
        split_words("ja", "de")
    with pytest.raises(ValueError, match="language must be en or fr but is 'de'"):
        join_words(["ja"], "de")


def test_a_vocabulary_knows_a_word_in_the_form_it_mostly_has_inside_sentences():
    sentences = ["The cat sees Tom .", "The dog sees Tom . The end .", "Tom sees the cat .", "Once"]
    vocabulary = Vocabulary.of((sentence.split() for sentence in sentences), at_least=2)
    assert vocabulary.words == (*SPECIAL, ".", "the", "sees", "Tom", "cat")
    assert vocabulary.numbers(["THE", "tom", "dog", "once", "."]) == [5, 7, 1, 1, 4]
    assert vocabulary.number(END) == vocabulary.number("<s>") == 1  # nobody types a mark
    with pytest.raises(ValueError, match="words must begin with <pad>, <unk>, <s>, </s>"):
        Vocabulary(("a", "b"))
    with pytest.raises(ValueError, match="name each word once"):
        Vocabulary((*SPECIAL, "a", "A"))


# Small weights.


@given(rows=st.integers(1, 6), columns=st.integers(1, 9), seed=st.integers(0, 99), size=st.floats(1e-6, 1e3))
def test_a_weight_in_one_byte_is_off_by_half_a_step_at_most(rows, columns, seed, size):
    generator = torch.Generator().manual_seed(seed)
    tensors = {"w": torch.randn(rows, columns, generator=generator) * size, "b": torch.ones(3)}
    tensors["w"][0] = 0
    small = int8_rows(tensors)
    assert small["w"].dtype == torch.int8
    whole = from_int8_rows(small)
    assert set(whole) == {"w", "b"}
    assert_close(whole["b"], tensors["b"], rtol=0, atol=0)
    step = tensors["w"].abs().amax(-1, keepdim=True) / 127
    # Half a step, and what float32 rounds in dividing and multiplying by the scale.
    assert bool(((whole["w"] - tensors["w"]).abs() <= step * (0.5 + 127 * 2**-22)).all())


def test_whole_numbers_without_their_scales_are_told():
    small = int8_rows({"w": torch.ones(2, 3)})
    with pytest.raises(ValueError, match=r"tensors must hold w.scale with 2 scales"):
        from_int8_rows({"w": small["w"]})


# The shipped translators.


@cache
def shipped(name: str = "translator-additive") -> LoadedTranslator:
    return load_translator(name)


def test_they_ship_within_their_size_and_are_the_pinned_ones():
    assert NAMES == ("translator-additive", "translator-dot", "translator-general", "translator-none")
    assert sum(model.size for model in TRANSLATORS) < 12_000_000
    for model in TRANSLATORS:
        assert (model.path / "README.md").is_file()
        assert {file.name for file in model.files} == {"trained.json", "weights.safetensors"}
        assert all((model.path / file.name).stat().st_size == file.size for file in model.files)
        loaded = shipped(model.name)
        assert f"translator-{loaded.scoring or 'none'}" == model.name
        assert not loaded.module.training
        assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    words = {(shipped(name).english.words, shipped(name).french.words) for name in NAMES}
    assert len(words) == 1  # the same data


def test_what_is_no_translator_is_told(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"name must be one of translator-additive.*but is 'bert'"):
        load_translator("bert")
    model = next(model for model in TRANSLATORS if model.name == "translator-dot")
    for file in model.files:
        (tmp_path / file.name).write_bytes((model.path / file.name).read_bytes())
    moved = dataclasses.replace(model, folder=str(tmp_path))
    assert verified_part(moved).facts["scoring"] == "dot"
    data = bytearray((tmp_path / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(data)
    monkeypatch.setattr(translation, "TRANSLATORS", (moved,))
    with pytest.raises(ModelUnavailableError, match=r"weights\.safetensors is not the published file"):
        load_translator("translator-dot")
    facts = json.loads((model.path / "trained.json").read_text(encoding="utf-8"))
    with pytest.raises(UnsupportedModelError, match="not whole"):
        translator_of("x", "x", {**facts, "hidden": 8}, load_file(model.path / "weights.safetensors"))


def looks(found, word: str) -> str:
    """The English word that a French word of a translation looks at most."""
    assert found.alignment is not None
    return found.source[int(found.alignment[found.target.index(word)].argmax())]


def test_i_love_you_comes_out_with_the_words_the_other_way_round():
    for name in ("translator-additive", "translator-dot"):
        found = translate(shipped(name), "I love you")
        assert found.text == "je t'aime"
        assert found.source == ("I", "love", "you")
        assert found.target == ("je", "t'", "aime")
        assert [looks(found, word) for word in found.target] == ["I", "you", "love"]
    polite = translate(shipped("translator-general"), "I love you")
    assert polite.text == "je vous aime"
    assert [looks(polite, word) for word in polite.target] == ["I", "you", "love"]
    assert polite.alternatives[0].text == "je t'aime"
    assert translate(shipped("translator-none"), "I love you").text == "je t'aime"


@pytest.mark.parametrize(
    ("text", "french", "pairs"),
    [
        ("She has a red book.", "elle a un livre rouge.", {"livre": "book", "rouge": "red"}),
        ("I don't like black cats.", "je n'aime pas les chats noirs.", {"chats": "cats", "noirs": "black"}),
        ("Tom gave me a white flower.", "Tom m'a donné une fleur blanche.", {"m'": "me", "blanche": "white"}),
        ("It is a difficult question.", "c'est une question difficile.", {"difficile": "difficult"}),
        ("Where is my new car?", "où est ma nouvelle voiture ?", {"nouvelle": "new", "voiture": "car"}),
        ("She loves me.", "elle m'aime.", {"m'": "me", "aime": "loves"}),
    ],
)
def test_additive_attention_follows_words_that_change_places(text, french, pairs):
    found = translate(shipped(), text)
    assert found.text == french
    assert {word: looks(found, word) for word in pairs} == pairs


@pytest.mark.parametrize("name", NAMES)
def test_a_translation_is_whole(name):
    model = shipped(name)
    with recording() as record:
        found = translate(model, "My sister doesn't like Tom's car.", beam=5, best=3)
    rows = len(found.target)
    assert len(found.log_probs) == rows
    assert found.log_prob_end is not None
    assert all(value <= 0 for value in found.log_probs)
    assert split_words(found.text, "fr") == list(found.target)
    assert len(found.alternatives) == 2
    assert found.score >= found.alternatives[0].score >= found.alternatives[1].score
    assert found.unknown == found.copied == ()
    if model.scoring is None:
        assert found.alignment is None
        assert record.calls == []
    else:
        assert found.alignment is not None
        assert found.alignment.shape == (rows, len(found.source))
        assert_close(found.alignment.sum(-1), torch.ones(rows))
        assert {call.module for call in record.calls} == {model.module.attention}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam", [1, 4])
def test_steps_forced_and_searched_translations_agree(name, beam):
    model, text = shipped(name), "Where is the big house?"
    found = translate(model, text, beam=beam)
    steps = step_by_step(model, text, beam=beam)
    assert tuple(step.word for step in steps.steps) == (*found.target, END)
    assert steps.text == found.text
    told = [math.log(step.probability) for step in steps.steps]
    # float32, summed in another order: log-softmax of scores up to about 30.
    assert told == pytest.approx([*found.log_probs, found.log_prob_end], abs=1e-4)
    for step in steps.steps:
        probabilities = [each.probability for each in step.candidates]
        assert len(probabilities) == 5
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) <= 1 + 1e-6
        assert beam > 1 or step.candidates[0].word == step.word
    again = forced(model, text, found.text)
    assert again.target == found.target
    assert (*again.log_probs, again.log_prob_end) == pytest.approx(told, abs=1e-4)
    assert again.log_probability == pytest.approx(sum(told), abs=1e-3)
    if found.alignment is None:
        assert steps.alignment is again.alignment is None
    else:
        assert steps.alignment is not None
        assert_close(steps.alignment[:-1], found.alignment, atol=1e-4, rtol=0)
        assert_close(again.alignment, found.alignment, atol=1e-4, rtol=0)


def test_an_unknown_word_is_told_and_taken_over():
    model = shipped("translator-dot")
    found = translate(model, "Zbigniew is here.")
    assert found.unknown == (0,)
    assert found.text == "Zbigniew est ici."
    assert found.copied == (0,)
    steps = step_by_step(model, "Zbigniew is here.", beam=5)
    assert steps.steps[0].word == "Zbigniew"
    assert steps.copied == (0,)
    assert steps.steps[0].candidates[0].word == UNKNOWN
    later = translate(model, "I saw Zbigniew yesterday.")
    assert (later.text, later.unknown, later.copied) == ("j'ai vu Zbigniew hier.", (2,), (3,))
    twin = translate(shipped("translator-none"), "Zbigniew is here.")
    assert twin.text == f"{UNKNOWN} est ici."  # without attention nothing says which word it is
    assert twin.copied == ()
    told = forced(model, "Tom is here.", "Zbigniew est ici.")
    assert (told.unknown, told.unknown_target) == ((), (0,))


def test_no_word_is_unknown_where_every_english_word_is_known():
    model = shipped()
    for text in (
        "Her face turned white.",
        "He was looking at the sky.",
    ):  # rather unknown, were it not forbidden
        for beam in (1, 5):
            found = translate(model, text, beam=beam, best=beam)
            assert found.unknown == ()
            assert UNKNOWN not in {word for each in (found, *found.alternatives) for word in each.target}


def test_marks_are_never_said():
    module = copy.deepcopy(shipped().module)
    module.output_bias[[0, 2]] = 20.0  # padding and the beginning, the likeliest at every step
    found = translate(dataclasses.replace(shipped(), module=module), "I love you")
    assert found.text == "je t'aime"
    assert max(found.log_probs) < -1


def test_texts_that_cannot_be_are_told():
    for function in (translate, step_by_step):
        with pytest.raises(ValueError, match=f"text must have 1 to {MOST_WORDS} words but has 0"):
            function(shipped(), "  ")
        with pytest.raises(ValueError, match=f"1 to {MOST_WORDS} words but has 61"):
            function(shipped(), "a " * 61)
    with pytest.raises(ValueError, match="target must have 1 to"):
        forced(shipped(), "I", "")


def test_sentences_of_a_batch_are_translated_as_alone():
    texts = ("I love you.", "He doesn't know where the house is.")
    sources, model = [split_words(text, "en") for text in texts], shipped()
    for source, (together,) in zip(sources, search(model, sources), strict=True):
        assert search(model, [source])[0][0].words == together.words


def test_the_measured_scores_say_what_the_page_says():
    scores = {name: shipped(name).scores for name in NAMES}
    for found in scores.values():
        assert found is not None
        assert found.sentences == 1000
        assert sum(each.sentences for each in found.lengths) == 1000
        assert [(each.parts, each.part) for each in found.parts] == [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    additive, twin = scores["translator-additive"], scores["translator-none"]
    assert additive is not None
    assert twin is not None
    assert additive.bleu >= 32
    assert additive.bleu > twin.bleu
    # Several sentences in a row: the twin loses more of every one, with attention next to nothing is lost.
    for with_attention, without in zip(additive.parts, twin.parts, strict=True):
        lost = [each.log_prob_alone - each.log_prob for each in (with_attention, without)]
        assert -0.05 < lost[0] < 0.15 < 0.3 < lost[1]
        assert with_attention.recall > without.recall


def test_held_out_sentences_score_as_the_card_says(optional_data):
    """The first 200 of them: exact matches within what 200 can tell of 1,000 (four standard errors)."""
    test = read_corpus(optional_data / "data" / "fra-eng").test[:200]
    for name in ("translator-additive", "translator-none"):
        model = shipped(name)
        found = [
            [model.french.words[word] for word in output[0].words]
            for output in search(model, [sentence.english for sentence in test])
        ]
        assert model.scores is not None
        share = model.scores.exact
        assert exact(found, test) / 200 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 200))


# Scores and the training script.


def test_scores_follow_their_definitions():
    sentence = Sentence(("a",), (("le", "chat", "est", "là", "."), ("Le", "chat", "y", "est")))
    found = ["le", "chat", "est", "ici", "."]
    # n-grams of one sentence: 4 of 5, 2 of 4, 1 of 3, 0 of 2 (smoothed to 1 / (2 · 2) by sacrebleu's "exp").
    by_hand = 100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25
    assert bleu([found], [sentence]) == pytest.approx(by_hand)
    # A sentence with fewer references than another: the nearest length is 3 for its one word, and 4 for the other's.
    fewer, more = Sentence(("b",), (tuple("abc"),)), Sentence(("c",), (tuple("defg"), ("d",)))
    assert bleu([["a"], list("defg")], [fewer, more]) == pytest.approx(100 * math.exp(1 - 7 / 5))
    assert exact([["LE", "chat", "y", "est"], found], [sentence, sentence]) == 1
    assert recall(found, sentence.french) == 0.75  # le, chat, est of le, chat, est, là
    assert recall(["le", "chat", "y", "est"], sentence.french) == 1
    assert recall(["le", "le"], [("le", "chat", "et", "le", "chien")]) == 0.4
    pair = joined([sentence, Sentence(("b",), (("oui",),))], 2)
    assert pair == [Sentence(("a", "b"), (("le", "chat", "est", "là", ".", "oui"),))]


def corpus_file(folder):
    """Sentences of six words in all their orders."""
    people = {"Tom": "Tom", "He": "Il", "She": "Elle"}
    verbs = {"sees": "voit", "has": "a", "wants": "veut"}
    things = {"a cat": "un chat", "a dog": "un chien", "a book": "un livre", "a house": "une maison"}
    lines = [
        f"{a} {b} {c}.\t{people[a]} {verbs[b]} {things[c]}." for a in people for b in verbs for c in things
    ]
    folder.mkdir()
    with gzip.open(folder / "eng-fra.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*lines, "Tom sees a cat!\tTom voit un chat !"]) + "\n")
    return folder


def test_the_split_keeps_sentences_in_other_dress_together(tmp_path):
    corpus = read_corpus(corpus_file(tmp_path / "data"), development=6, test=8)
    bare = [
        {tuple(word.lower() for word in sentence.english if word.isalpha()) for sentence in part}
        for part in (corpus.training, corpus.development, corpus.test)
    ]
    assert [len(each) for each in bare] == [22, 6, 8]
    assert len(set.union(*bare)) == 36  # of which none is in two parts


def test_the_coverage_loss_is_what_is_looked_at_again(tmp_path, monkeypatch):
    corpus = read_corpus(corpus_file(tmp_path / "data"), development=2, test=2)
    options = train_translator._parser().parse_args([str(tmp_path), "--embedding", "4", "--width", "4"])
    model = train_translator.build(train_translator.facts_of(corpus, options)).eval()
    batch = torch.tensor([[4, 5], [4, 0]]), torch.tensor([[2, 4, 5, 3], [2, 4, 3, 0]])
    whole = Translator.vectors_and_weights

    def planted(self, source, target):
        weights = torch.tensor([[[0.8, 0.2], [0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
        return whole(self, source, target)[0], weights

    monkeypatch.setattr(Translator, "vectors_and_weights", planted)
    # By hand, the padded last word left out: 0; 0.5 + 0.2; 0 + 0.7 | 0; 1.
    by_hand = (0.7 + 0.7 + 1.0) / 5
    with torch.no_grad():
        plain = word_loss(model, batch)
        assert_close(word_loss(model, batch, coverage=2.0) - plain, torch.tensor(2 * by_hand))


def test_an_epoch_has_every_pair_once_joined_or_without_its_sign(tmp_path):
    corpus = read_corpus(corpus_file(tmp_path / "data"), development=2, test=2)
    english, french = corpus.vocabularies(1)
    pairs = numbered(corpus.training, english, french)
    options = train_translator._parser().parse_args([str(tmp_path), "--joined", "0.3", "--bare", "0.5"])
    random = np.random.default_rng(0)
    found = dressed(pairs, random, frozenset(french.numbers([".", "!"])), options)
    assert len(found) < len(pairs)
    stop = french.number(".")
    said = sorted(
        word for _, target in found for word in target if word > 3 and word not in french.numbers([".", "!"])
    )
    assert said == sorted(
        word for _, target in pairs for word in target if word > 3 and word not in french.numbers([".", "!"])
    )
    assert any(target[-2] != stop for _, target in found)
    assert all(target[0] == 2 and target[-1] == 3 and target.count(3) == 1 for _, target in found)
    assert any(target.count(stop) > 1 for _, target in found)
    for source, target in batches(found, words=40, random=random):
        assert target.numel() <= 40 or len(target) == 1
        assert source.shape[0] == target.shape[0]


def test_the_script_trains_resumes_to_the_same_bytes_and_is_measured(tmp_path, capsys, monkeypatch):
    folder = corpus_file(tmp_path / "data")
    for script in (train_translator, evaluate_translator):
        monkeypatch.setattr(script, "read_corpus", partial(read_corpus, development=2, test=6))
    written = []
    for number in range(2):
        output = tmp_path / f"out{number}"
        train_translator.main(
            [str(folder), "--output", str(output), "--work", str(tmp_path / "work"), "--threads", "1",
             "--epochs", "11", "--covered", "1", "--batch", "20", "--embedding", "16", "--width", "32",
             "--at-least", "1", "--rate", "2e-2", "--dropout", "0", "--joined", "0", "--bare", "0",
             "--patience", "100"]
        )  # fmt: skip
        written.append((output / "weights.safetensors").read_bytes())
    assert written[0] == written[1]  # the second run only reads the last checkpoint
    evaluate_translator.main([str(folder), str(output), "--threads", "1"])
    told = capsys.readouterr().out
    assert "development words, as shipped: " in told
    assert told.count("BundledFile(") == 5
    facts = json.loads((output / "trained.json").read_text(encoding="utf-8"))
    model = translator_of("out", "out", facts, load_file(output / "weights.safetensors"))
    assert model.scores is not None
    assert model.scores.sentences == 6
    learned = read_corpus(folder, development=2, test=6).training
    found = [
        tuple(model.french.words[word] for word in output[0].words)
        for output in search(model, [sentence.english for sentence in learned])
    ]
    assert exact(found, learned) >= len(learned) / 2  # of the best look at two sentences, not of the last


def test_the_twin_without_attention_reads_one_way(tmp_path):
    corpus = read_corpus(corpus_file(tmp_path / "data"), development=2, test=2)
    for scoring in ("dot", "none"):
        options = train_translator._parser().parse_args([str(tmp_path), "--scoring", scoring])
        model = train_translator.build(train_translator.facts_of(corpus, options))
        assert model.encoder.bidirectional == (scoring == "dot")
        assert (model.attention is None) == (scoring == "none")
