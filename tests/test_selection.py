"""The record of choices: links there and back, what a link may not say, fitting to a model and an input."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import ModelUnavailableError
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES
from dashboard import selection as selections
from dashboard.model_root import VARIABLE, folder_choices, folder_of
from dashboard.selection import (
    LINK_TEXT_CHARACTERS,
    ImageChoices,
    ModelChoice,
    PictureInput,
    Selection,
    TextChoices,
    TextInput,
    active_heads,
    clamped_image,
    clamped_text,
    default_selection,
    focus_head,
    from_query,
    model_name_problem,
    revision_problem,
    to_query,
)
from dashboard.text_files import MOST_BYTES, read_text_file

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=LINK_TEXT_CHARACTERS // 2)
small = st.integers(0, 99)
head_sets = st.one_of(st.none(), st.frozensets(small, max_size=8).map(lambda heads: tuple(sorted(heads))))


@st.composite
def text_choices(draw: st.DrawFn) -> TextChoices:
    sample = draw(st.sampled_from(TEXT_SAMPLES))
    typed = TextInput(draw(texts), draw(st.one_of(st.none(), texts)))
    return TextChoices(
        model=ModelChoice(selections.DEFAULT_MODELS["text"]),
        input=draw(st.sampled_from([TextInput(sample.text, sample.pair, "sample", sample.id), typed])),
        view=draw(st.sampled_from(["head", "model", "matrix", "rollout"])),
        part=draw(st.sampled_from(["encoder", "decoder", "cross"])),
        layer=draw(small),
        heads=draw(head_sets),
        pinned=draw(st.one_of(st.none(), st.tuples(st.sampled_from(["left", "right"]), small))),
    )


@st.composite
def image_choices(draw: st.DrawFn) -> ImageChoices:
    return ImageChoices(
        model=ModelChoice(selections.DEFAULT_MODELS["image"]),
        input=PictureInput(
            name=draw(st.sampled_from(PICTURE_SAMPLES)).id, side=draw(st.sampled_from([224, 336, 448]))
        ),
        view=draw(st.sampled_from(["attention", "model", "rollout"])),
        layer=draw(small),
        heads=draw(st.one_of(st.none(), small.map(lambda head: (head,)))),
        aggregation=draw(st.sampled_from(["all", "mean"])),
        patch=draw(st.one_of(st.none(), st.tuples(small, small))),
    )


@given(text_choices())
def test_a_text_link_reopens_the_same_view(choices):
    start = default_selection()
    params = to_query(replace(start, text=choices), "text")
    reopened = from_query(params, start, "text")
    assert reopened.text == choices
    assert reopened.notes == ()
    assert reopened.image == start.image


@given(image_choices())
def test_an_image_link_reopens_the_same_view(choices):
    start = default_selection()
    reopened = from_query(to_query(replace(start, image=choices), "image"), start, "image")
    assert reopened.image == replace(choices, heads=None)  # "all" and "mean" name no single head
    assert reopened.notes == ()


def test_an_image_link_keeps_its_one_head():
    start = default_selection()
    choices = replace(start.image, aggregation="head", heads=(4,))
    assert from_query(to_query(replace(start, image=choices), "image"), start, "image").image == choices


@given(st.dictionaries(st.text(string.ascii_lowercase, max_size=8), st.text(max_size=40), max_size=8))
def test_any_link_gives_a_selection_that_can_be_fitted(params):
    for page in ("text", "image"):
        found = from_query(params, default_selection(), page)
        assert isinstance(found, Selection)
        fitted = clamped_text(found.text, layers=6, heads=12, queries=9, keys=7)
        assert 0 <= fitted.layer < 6
        assert set(active_heads(fitted, 12)) <= set(range(12))
        assert clamped_image(found.image, layers=3, heads=2, rows=4, columns=5).layer < 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer", "-1"),
        ("layer", "1e3"),
        ("layer", "٣"),
        ("layer", "999999"),
        ("head", "1,x"),
        ("head", ""),
        ("view", "lines"),
        ("sample", "../../etc/passwd"),
        ("model", "/etc/passwd"),
        ("model", "http://10.0.0.1/model"),
        ("model", "../secrets"),
        ("model", selections.DEFAULT_MODELS["image"]),
        ("token", "l3"),
        ("patch", "3"),
        ("nonsense", "1"),
    ],
)
def test_what_a_link_may_not_say_is_left_out_and_named(name, value):
    start = default_selection()
    page = "image" if name == "patch" else "text"
    found = from_query({"v": "1", name: value}, start, page)
    assert (found.text, found.image) == (start.text, start.image)
    assert name in found.notes[0]


def test_a_link_of_another_version_is_left_out():
    found = from_query({"v": "2", "layer": "3"}, default_selection(), "text")
    assert found.text == default_selection().text
    assert "another version" in found.notes[0]


def test_a_link_to_a_model_that_is_not_bundled_asks_first():
    found = from_query({"model": "some-one/some-model", "rev": "v1.0"}, default_selection(), "text")
    assert found.text.model == ModelChoice("some-one/some-model", "v1.0", asked=True)
    bundled = from_query({"model": selections.DEFAULT_MODELS["text"]}, default_selection(), "text")
    assert not bundled.text.model.asked


def test_long_and_uploaded_texts_stay_out_of_links():
    start = default_selection()
    for given_input in (TextInput("word " * 100), TextInput("short", kind="upload", name="notes.txt")):
        params = to_query(replace(start, text=replace(start.text, input=given_input)), "text")
        assert not {"t", "t2", "sample"} & set(params)
        assert "notes.txt" not in params.values()


def test_beyond_the_end_becomes_the_last():
    choices = replace(
        default_selection().text,
        layer=40,
        heads=(3, 99),
        pinned=("left", 50),
        zoom=(0, 9, 0, 9),
        cell=(2, 30),
    )
    fitted = clamped_text(choices, layers=6, heads=12, queries=8, keys=8)
    assert (fitted.layer, fitted.heads, fitted.pinned, fitted.zoom, fitted.cell) == (
        5,
        (3,),
        None,
        None,
        None,
    )
    assert clamped_text(choices, layers=6, heads=2, queries=60, keys=60).heads == (1,)


def test_all_heads_stay_all_heads_of_another_model():
    choices = replace(default_selection().text, heads=None)
    assert active_heads(clamped_text(choices, layers=2, heads=16, queries=4, keys=4), 16) == tuple(range(16))
    assert focus_head(choices) == 0
    none_shown = replace(choices, heads=())
    assert active_heads(clamped_text(none_shown, layers=2, heads=16, queries=4, keys=4), 16) == ()


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "gpt2", "minilm", "folder:my-model"])
def test_names_of_models_are_taken(name):
    assert model_name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "~/model",
        "..",
        "a/../../b",
        "./here",
        "C:\\models",
        "https://huggingface.co/gpt2",
        "HTTP://127.0.0.1:80/",
        "file:///etc/passwd",
        "folder:../other",
        "folder:/etc",
        "a/b/c",
        "gpt2\n",
        "",
        "x" * 200,
    ],
)
def test_paths_and_addresses_are_no_models(name):
    assert model_name_problem(name)


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/3", "0123456789abcdef"])
def test_revisions(revision):
    assert revision_problem(revision) is None
    assert revision_problem(f"../{revision}")


def test_folders_are_chosen_by_name_below_the_opened_one_only(tmp_path, monkeypatch):
    opened = tmp_path / "opened"
    for folder in (opened / "mine", tmp_path / "other", opened / ".hidden"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (opened / "empty").mkdir()
    assert folder_choices() == ()
    monkeypatch.setenv(VARIABLE, str(opened))
    assert folder_choices() == ("folder:mine",)
    assert folder_of("folder:mine") == opened / "mine"
    assert folder_of("google-bert/bert-base-uncased") is None
    for name in ("folder:other", "folder:empty", "folder:.hidden"):
        with pytest.raises(ModelUnavailableError, match="no model folder"):
            folder_of(name)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [("utf-8", ""), ("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("latin-1", "Latin-1")],
)
def test_text_files_of_any_encoding(encoding, note):
    read = read_text_file("Où est le café ?\r\nIci.\n".encode(encoding))
    assert read.text == "Où est le café ?\nIci."
    assert note in read.note
    assert bool(read.note) == bool(note)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no text"),
        (b" \n\t ", "no text"),
        (b"PK\x03\x04\x00\x00rest", "zero bytes"),
        (b"a" * (MOST_BYTES + 1), "limit"),
    ],
)
def test_files_that_hold_no_text_are_refused_in_one_sentence(data, reason):
    with pytest.raises(ValueError, match=reason):
        read_text_file(data)
