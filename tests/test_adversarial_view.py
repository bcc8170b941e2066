"""The Adversarial views: both pages run by AppTest on the bundled classifiers and on tiny models of other kinds."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

import tests.input_helpers as tiny
from analysis.adversarial import candidates
from analysis.adversarial.measured import FILE, wiegreffe_pinter
from analysis.adversarial.rows import Place, rows_of, text_batch
from analysis.catalogue import BUNDLED, is_installed
from analysis.export import export_figure, read_provenance
from analysis.figure_data import AttentionContrast, CheckedSet, HeadEffects
from analysis.trained import find_offered, is_ready
from dashboard import adversarial_cache, cached, evidence_cache, heads_cache
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.live import text_source
from dashboard.model_root import VARIABLE
from dashboard.provenance import adversarial_provenance
from dashboard.views import adversarial_board, adversarial_heads, adversarial_one, heads_sources
from tests.evidence.attention_runs import save
from tests.test_app import component, settled, shown
from tests.test_evidence_views import APP, finished
from tests.tiny_models import BY_NAME

pytestmark = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED)
    or not all(is_ready(find_offered(name)) for name in ("sentiment", "picture-classifier")),
    reason="models are not installed; run make bundled",
)

TEXT = "A dull start, but the ending is wonderful."
RECURRENT = {"model": "recurrent-sentiment", "t": TEXT}
QUICK = 4
"""Steps of a search, starts and permutations, where only what is made of them is looked at."""


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Short searches of transformers; the exact one of recurrent classifiers is as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adversarial_cache, "STEPS", {"projected": QUICK, "penalty": QUICK + 1})
        patch.setattr(adversarial_cache, "CANDIDATES", 2)
        patch.setattr(adversarial_cache, "PERMUTATIONS", 12)
        yield


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tiny random models below the opened folder."""
    root = tmp_path_factory.mktemp("models")
    for family in ("bert", "gpt2", "bart", "deberta"):
        save(root / family, family)
    tiny.loaded(
        root / "value", "BertForSequenceClassification", "BertConfig", tiny.word_piece(), **tiny.BERT,
        num_labels=1, problem_type="regression",
    )  # fmt: skip
    tiny.loaded(root / "embed", "BertModel", "BertConfig", tiny.word_piece(), **tiny.BERT)
    for name in ("DeiT", "SigLIP vision", "Swin"):
        BY_NAME[name].build().save_pretrained(root / name.split()[0].lower())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(root))
        yield


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample corpus of one text, for models that check them one at a time."""
    monkeypatch.setattr(heads_sources, "sample_corpus", lambda: ("the house",))


def opened(page: str = "text", **params: str) -> AppTest:
    """A page's Adversarial view by a link, when its model is loaded and its jobs are done."""
    at = AppTest.from_file(APP, default_timeout=180)
    if page == "image":
        at.switch_page("views/image.py")
    for name, value in {"v": "1", "view": "adversarial", **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


def folder_opened(name: str, page: str = "text", **params: str) -> AppTest:
    """The view over a model of the opened folder; the page starts on a small bundled one."""
    start = {"text": {**RECURRENT, "t": "the bread is good"}, "image": {"sample": "cat", "side": "28"}}[page]
    at = AppTest.from_file(APP, default_timeout=180)
    if page == "image":
        at.switch_page("views/image.py")
    for key, value in {"v": "1", **start, **params}.items():
        at.query_params[key] = value
    at = settled(at.run())
    at.selectbox(key=f"{page}_model").set_value(f"folder:{name}").run()
    at = settled(at)
    at.segmented_control(key=f"{page}_view").set_value("adversarial").run()
    return finished(at)


def contrast(at: AppTest) -> tuple[dict, dict]:
    return component(at, "attention_contrast")


def names(at: AppTest) -> list[str]:
    return [entry["name"] for entry in contrast(at)[0]["candidates"]]


def picked(at: AppTest, key: str, value: Any) -> AppTest:
    at.selectbox(key=key).set_value(value).run()
    return finished(at)


def words(at: AppTest) -> str:
    """The page's text without its styles."""
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", shown(at), flags=re.DOTALL))


# One text, the recurrent classifier ---------------------------------------------------------------------------------


def test_candidates_and_verdict_of_a_text():
    at = opened(**RECURRENT)
    header, arrays = contrast(at)
    assert names(at) == ["observed", "farthest", "uniform", "first only", "permuted"]
    assert header["title"] == "The attention of the learned query"
    assert [token["text"] for token in header["tokens"]][-2:] == ["wonderful", "."]
    assert header["state"] == {"shown": 1}, "the farthest stands beside the observed one"
    assert header["editable"]
    same = {entry["name"]: entry["same"] for entry in header["candidates"]}
    assert same["observed"]
    assert same["farthest"]
    assert header["verdict"][0].startswith(
        "Attention about as different as can be gives the same answer (JSD 0."
    )
    assert header["verdict"][-1].startswith("It does not show that a model could have learnt such attention")
    model = cached.shared_model("recurrent-sentiment", None).model
    traced = cached.traced_text("recurrent-sentiment", None, TEXT, None)
    rows = rows_of(model, traced.inputs)
    np.testing.assert_allclose(arrays["weights"][0], rows.observed[0, 0].numpy(), atol=1e-6)
    answers = rows.answers(torch.from_numpy(arrays["weights"].copy())[None, :, None])[0].numpy()
    np.testing.assert_allclose(arrays["outputs"], answers, atol=1e-6)
    assert f"{100 * arrays['outputs'][0][1]:.0f} %" in words(at), "the prediction that the page shows"
    text = words(at)
    assert "Permuted attention" in text
    assert "leave one out" in text
    assert "all of them were tried" in text


def test_epsilon_moves_the_farthest_candidate_and_the_link():
    at = opened(**RECURRENT)
    before, narrow = contrast(at)
    at.select_slider(key="text_adversarial_epsilon").set_value(0.2).run()
    after, wide = contrast(finished(at))
    assert after["epsilon"] == 0.2
    assert before["candidates"][1]["change"] <= 0.01 < after["candidates"][1]["change"] <= 0.2
    assert after["candidates"][1]["jsd"] > before["candidates"][1]["jsd"]
    assert not np.array_equal(narrow["weights"][1], wide["weights"][1])
    np.testing.assert_array_equal(narrow["weights"][[0, 2, 3, 4]], wide["weights"][[0, 2, 3, 4]])
    assert at.query_params["epsilon"] == "0.2"
    for value in (0.5, 0.001, 0.01):  # faster than anything is computed
        at.select_slider(key="text_adversarial_epsilon").set_value(value).run()
    again, back = contrast(finished(at))
    assert again["candidates"] == before["candidates"]
    np.testing.assert_array_equal(back["weights"], narrow["weights"])
    assert "epsilon" not in at.query_params


def test_a_link_reopens_what_was_shown():
    at = opened(**RECURRENT, epsilon="0.05", candidate="uniform")
    header, _ = contrast(at)
    assert (header["epsilon"], header["state"]) == (0.05, {"shown": 2})
    again = opened(**dict(at.query_params))
    assert contrast(again)[0] == header
    assert "not understood" not in words(again)


def test_a_link_with_nonsense_is_told_and_harmless():
    at = AppTest.from_file(APP, default_timeout=180)
    wrong = {"tab": "x", "layers": "-1", "free": "1,<b>", "rows": "0", "epsilon": "1e9", "candidate": "<i>"}
    for name, value in {"v": "1", "view": "adversarial", **RECURRENT, **wrong}.items():
        at.query_params[name] = value
    at.run()
    assert "values that are not understood" in shown(at)
    assert all(name in shown(at) for name in wrong)
    at = finished(settled(at))
    assert contrast(at)[0]["epsilon"] == 0.01
    beyond = {"tab": "heads", "layers": "99", "free": "50,77", "rows": "pinned", "candidate": "no such thing"}
    at = opened(**RECURRENT, **beyond)
    assert contrast(at)[0]["state"] == {"shown": 1}


# Weights by hand come with the browser's event, which AppTest does not have: the callback that the page hands to the
# component is called here with what the browser would have sent.


def said(at: AppTest, state: dict[str, Any], *, text: str = TEXT) -> AppTest:
    """The page after its contrast of the recurrent classifier has said ``state``."""
    header, _ = contrast(at)
    traced = cached.traced_text("recurrent-sentiment", None, text, None)
    told = {name: {**value, "input": header["input"]} for name, value in state.items()}
    script = AppTest.from_function(_said)
    script.session_state["selection"] = at.session_state["selection"]
    script.session_state["text_attention_contrast"] = told
    script.session_state["event"] = (traced.key, text_source(traced).parts[0], header, tuple(names(at)))
    script.run()
    assert not script.exception
    at.session_state["selection"] = script.session_state["selection"]
    at.session_state["text_attention_contrast"] = told
    at.run()
    return finished(at)


def _said() -> None:
    from types import SimpleNamespace

    import streamlit as st

    from dashboard.views import adversarial_one

    key, part, header, names = st.session_state["event"]
    board = SimpleNamespace(page="text", traced=SimpleNamespace(key=key), part=part)
    adversarial_one._said(board, header, "text_attention_contrast", names)


HAND = [0.0, 0.4, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.5, 0.0]


def test_weights_set_by_hand_are_a_candidate_with_the_models_answer():
    at = said(opened(**RECURRENT), {"edit": {"weights": HAND, "turn": 1}})
    header, arrays = contrast(at)
    assert names(at)[-1] == "by hand"
    assert header["hand"] == header["state"]["shown"] == 5
    np.testing.assert_allclose(arrays["weights"][-1], HAND, atol=1e-7)
    traced = cached.traced_text("recurrent-sentiment", None, TEXT, None)
    module = traced.model.module
    batch = text_batch([traced.inputs.tensors["input_ids"][0].tolist()])
    with torch.no_grad():
        hidden = module.encode(module.embedding(batch.tokens), batch.valid)
        logits = module.classify(hidden, torch.tensor([HAND])) / traced.model.temperature
    np.testing.assert_allclose(arrays["outputs"][-1], logits.softmax(-1)[0].numpy(), atol=1e-6)
    change = np.abs(arrays["outputs"][-1] - arrays["outputs"][0]).sum() / 2
    assert header["candidates"][-1]["change"] == pytest.approx(float(change), abs=1e-6)
    assert "candidate" not in at.query_params, "they are in no link"
    at = said(at, {"edit": {"weights": HAND, "turn": 1}, "view": {"shown": 2, "turn": 2}})
    assert contrast(at)[0]["state"] == {"shown": 5}, "what the component said is not said back to it"
    assert names(at)[-1] == "by hand", "another candidate was chosen; the weights stay"
    assert at.query_params["candidate"] == "uniform"
    at.select_slider(key="text_adversarial_epsilon").set_value(0.1).run()
    assert names(finished(at))[-1] == "by hand"


@pytest.mark.parametrize(
    "weights",
    [
        HAND[:-1],
        [0.1] * 9 + [0.2],
        [-0.1, 1.1] + [0.0] * 8,
        [float("nan")] * 10,
        "uniform",
        [True] + [0.0] * 9,
    ],
)
def test_weights_that_are_no_distribution_are_not_taken(weights):
    at = said(opened(**RECURRENT), {"edit": {"weights": weights, "turn": 1}})
    assert "by hand" not in names(at)


def test_weights_by_hand_belong_to_their_text():
    at = said(opened(**RECURRENT), {"edit": {"weights": HAND, "turn": 1}})
    other = "An awful start, but the ending is wonderful."
    at.text_area(key="text_a").set_value(other).run()
    header, _ = contrast(finished(at))
    assert [token["text"] for token in header["tokens"]][1] == "awful"
    assert len(header["tokens"]) == len(HAND), "as many words, so that the weights would fit"
    assert "by hand" not in names(at)
    assert header["state"] == {"shown": 1}
    at.text_area(key="text_a").set_value(TEXT).run()
    assert names(finished(at))[-1] == "by hand", "back at the text, they are there again"


def test_a_text_of_one_word_has_no_other_attention():
    at = opened(**{**RECURRENT, "t": "wonderful"})
    header, arrays = contrast(at)
    assert header["verdict"] == ["There is one position to attend to, so there is no other attention."]
    assert header["positions"] == 1
    np.testing.assert_array_equal(arrays["weights"], 1.0)
    assert "Permuted attention" not in words(at)
    at = opened(**{**RECURRENT, "t": "zzxqy"})
    assert contrast(at)[0]["positions"] == 1


def test_an_empty_text_offers_examples():
    at = opened(**RECURRENT)
    at.text_area(key="text_a").set_value("   ").run()
    assert not at.exception
    assert not at.get("bidi_component")
    next(button for button in at.button if (button.key or "").startswith("text_offer_")).click().run()
    assert names(finished(at))[0] == "observed"


def test_right_to_left_text_is_drawn_so():
    at = opened(**{**RECURRENT, "t": "مرحبا بالعالم هذا فيلم"})
    header, _ = contrast(at)
    assert header["direction"] == "rtl"
    assert header["positions"] == 4
    assert " nan " not in words(at), "leave one out has no rank where every word is unknown"


def test_before_the_model_is_there_the_view_says_when_it_comes():
    at = AppTest.from_file(APP, default_timeout=180)
    at.query_params["view"] = "adversarial"
    for job in cached.loader().jobs():
        job.wait(240)
    cached.loader()._jobs.clear()
    at.run()
    assert not at.exception
    assert adversarial_board.WAITING in shown(at)


@pytest.mark.skipif(not FILE.is_file(), reason="the training runs of Wiegreffe & Pinter are not measured yet")
@pytest.mark.parametrize("model", ["recurrent-sentiment", "recurrent-sentiment-dot"])
def test_models_that_were_trained_otherwise(model):
    at = opened(model=model, t=TEXT, tab="trained")
    assert len(at.get("plotly_chart")) == 1
    text = words(at)
    assert "Can a model be trained to attend otherwise?" in text
    assert "adversary, λ = " in text
    assert "attention held uniform" in text
    own = wiegreffe_pinter().of("adversary", "scaled_dot" if model.endswith("dot") else "additive")
    assert ("Measured for the classifier with additive attention." in text) == (not own)


# Many texts ---------------------------------------------------------------------------------------------------------


def pasted(at: AppTest, texts: str) -> AppTest:
    at = picked(at, "text_adversarial_source", "file")
    assert "Upload a file, or paste texts, above" in words(at)
    at.text_area(key="text_heads_paste").set_value(texts).run()
    return finished(at)


def test_checks_over_texts_of_ones_own_and_one_that_is_opened():
    at = pasted(opened(**RECURRENT, tab="set"), "A good film.\n\nAn awful waste of time.\n<b>so</b> so\n")
    table = at.dataframe[0].value
    assert list(table["text"]) == ["A good film.", "An awful waste of time.", "<b>so</b> so"]
    assert list(table["predicted"])[:2] == ["positive", "negative"]
    assert len(at.get("plotly_chart")) == 4
    model = cached.shared_model("recurrent-sentiment", None).model
    made = list(heads_cache.text_inputs(["A good film."])(model))
    rows = rows_of(model, made[0])
    assert table["max_attention"][0] == pytest.approx(float(rows.observed.max()), abs=1e-6)
    assert (table["jsd"] <= table["jsd_bound"] + 1e-6).all()
    assert "Max JSD is exact" in words(at)
    assert not [button for button in at.button if button.key == "text_adversarial_open"]

    # a row is chosen in the browser; its button opens the text
    script = AppTest.from_function(_open)
    script.session_state["selection"] = at.session_state["selection"]
    script.run()
    at.session_state["selection"] = script.session_state["selection"]
    at.run()
    header, _ = contrast(finished(at))
    assert [token["text"] for token in header["tokens"]] == ["An", "awful", "waste", "of", "time", "."]
    assert at.selectbox(key="text_adversarial_show").value == "one"
    assert at.text_area(key="text_a").value == "An awful waste of time."


def _open() -> None:
    from dashboard.views import adversarial_set

    adversarial_set._open("An awful waste of time.", decoded=False)


def test_the_sample_corpus_is_checked_and_epsilon_is_of_the_set():
    at = opened(**RECURRENT, tab="set")
    table = at.dataframe[0].value
    assert len(table) == 120
    at.select_slider(key="text_adversarial_epsilon").set_value(0.2).run()
    wider = finished(at).dataframe[0].value
    assert (wider["jsd"] >= table["jsd"] - 1e-6).all()
    assert wider["jsd"].mean() > table["jsd"].mean()
    assert (wider["max_attention"] == table["max_attention"]).all()


def test_texts_that_a_model_cannot_take_are_left_out_and_told(monkeypatch):
    opened(**RECURRENT)
    shared = cached.shared_model("recurrent-sentiment", None)

    def make(model: Any) -> Any:
        yield ValueError("no token is left.")
        yield from heads_cache.text_inputs(["A good film."])(model)

    running = adversarial_cache.over(shared, "one refused", make, 2, epsilon=0.01)
    assert running.job.wait(120)
    found, told = adversarial_cache.over(shared, "one refused", make, 2, epsilon=0.01).result
    assert [each.source for each in found] == ["A good film."]
    assert told == ("1 of 2 inputs could not be taken; the first: no token is left.",)
    none = adversarial_cache.over(
        shared, "all refused", lambda model: iter([ValueError("x")]), 1, epsilon=0.01
    )
    assert none.job.wait(120)
    assert none.job.state == "failed"


# Transformers -------------------------------------------------------------------------------------------------------


def test_layers_heads_and_rows_of_a_transformer(model_folders):
    at = folder_opened("bert")
    header, _ = contrast(at)
    assert header["title"] == "Layer 1, all 4 heads, the row of [CLS]"
    assert (header["rows"], header["change_name"], header["probabilities"]) == (4, "TVD", True)
    assert header["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert names(at)[0] == "observed"
    assert names(at)[-4:] == ["uniform", "first only", "next head's", "permuted"]
    assert "layer 1, 4 heads, the row of position 0" in header["held"]
    at = picked(at, "text_adversarial_layer", 0)
    at.pills(key="text_adversarial_heads").set_value([2]).run()
    at = picked(finished(at), "text_adversarial_rows", "last")
    header, one = contrast(at)
    assert header["title"] == "Layer 0, head 2, the row of [SEP]"
    assert header["rows"] == 1
    traced = cached.traced_text("folder:bert", None, "the bread is good", None)
    np.testing.assert_allclose(one["weights"][0], traced.trace.encoder[0].dense(2)[-1].numpy(), atol=1e-6)
    assert "own place only" in names(at)
    assert {"layers": "0", "free": "2", "rows": "last"}.items() <= dict(at.query_params).items()
    at = picked(at, "text_adversarial_layer", -1)
    at = picked(at, "text_adversarial_rows", "all")
    header, _ = contrast(at)
    assert header["title"] == "Layers 0 to 1, head 2, all rows"
    assert header["rows"] == 2 * len(header["tokens"])
    at = picked(at, "text_adversarial_others", "fixed")
    assert contrast(at)[0]["held"].endswith("all other attention is held as it was.")


def test_the_papers_search_is_another_one(model_folders):
    at = folder_opened("bert")
    assert f"2 starts, {QUICK} steps, never left the answers within ε." in words(at)
    _, projected = contrast(at)
    at = picked(at, "text_adversarial_search", "penalty")
    assert f"2 starts, {QUICK + 1} steps, the paper's penalty." in words(at)
    _, penalty = contrast(at)
    assert projected["weights"].shape != penalty["weights"].shape or not np.array_equal(
        projected["weights"], penalty["weights"]
    )


def test_the_chosen_token_s_row_is_offered_and_words_do_not_shift_it(model_folders):
    at = folder_opened("bert")
    assert "pinned" not in [
        option.split(":")[0] for option in at.selectbox(key="text_adversarial_rows").options
    ]
    chosen = at.session_state["selection"]
    at.session_state["selection"] = replace(
        chosen,
        text=replace(
            chosen.text,
            pinned=("left", 2),
            adversarial=AdversarialChoices(rows="pinned", layer=0, heads=(0,)),
        ),
    )
    at = finished(at.run())
    token = contrast(at)[0]["tokens"][2]["text"]
    assert contrast(at)[0]["title"] == f"Layer 0, head 0, the row of {token}"
    assert f"the chosen row: {token}" in at.selectbox(key="text_adversarial_rows").options
    chosen = at.session_state["selection"]
    at.session_state["selection"] = replace(chosen, text=replace(chosen.text, merge_words=True))
    at = finished(at.run())
    header, _ = contrast(at)
    traced = cached.traced_text("folder:bert", None, "the bread is good", None)
    assert len(header["tokens"]) == len(traced.inputs.tokens), "tokens, where other views show words"
    assert header["title"].endswith("the row of [CLS]"), "a word is no row; the one that is read is taken"
    assert at.selectbox(key="text_adversarial_rows").value == "usual"


@pytest.mark.parametrize(
    ("name", "change", "labels"),
    [
        ("value", "change of value", 1),
        ("embed", "cosine distance", 1),
    ],
)
def test_models_without_classes_are_compared_by_what_they_say(model_folders, name, change, labels):
    at = folder_opened(name)
    header, arrays = contrast(at)
    assert header["change_name"] == change
    assert len(header["labels"]) == labels
    assert not header["probabilities"], "no percentages of a number that is none"
    assert np.isfinite(arrays["outputs"]).all()


def test_a_causal_model_is_asked_for_its_next_word(model_folders):
    at = folder_opened("gpt2")
    header, arrays = contrast(at)
    last = header["tokens"][-1]["text"]
    assert header["title"] == f"Layer 1, all 4 heads, the row of {last}"
    assert header["change_name"] == "TVD"
    assert len(header["labels"]) == arrays["outputs"].shape[1] >= 5
    assert "''" not in header["labels"], "a word that cannot be written has a number"
    at = picked(at, "text_adversarial_rows", "all")
    header, arrays = contrast(at)
    uniform = arrays["weights"][names(at).index("uniform")]
    tokens = len(header["tokens"])
    expected = (np.tri(tokens) / np.arange(1, tokens + 1)[:, None]).mean(0)
    np.testing.assert_allclose(uniform, expected, atol=1e-6)


def test_weights_by_hand_on_all_rows_of_a_causal_model_are_shown_as_they_were_set(model_folders):
    at = folder_opened("gpt2")
    traced = cached.traced_text("folder:gpt2", None, "the bread is good", None)
    count = len(contrast(at)[0]["tokens"])
    weights = [0.0] * (count - 2) + [0.75, 0.25]
    chosen = at.session_state["selection"]
    by_hand = AdversarialChoices(
        rows="all",
        weights=tuple(weights),
        input=cached.digest(traced.key, str(count), "decoder"),
        candidate="by hand",
    )
    at.session_state["selection"] = replace(chosen, text=replace(chosen.text, adversarial=by_hand))
    header, arrays = contrast(finished(at.run()))
    assert header["hand"] == header["state"]["shown"]
    np.testing.assert_allclose(arrays["weights"][header["hand"]], weights, atol=1e-7)
    rows = rows_of(traced.model, traced.inputs, Place({1: (0, 1, 2, 3)}, None, "decoder"))
    _, made = candidates.by_hand(rows, torch.tensor(weights))
    change = rows.change(rows.answers(made[None, None]), rows.said())
    assert header["candidates"][-1]["change"] == pytest.approx(float(change[0, 0]), abs=1e-6)


def test_each_kind_of_attention_of_an_encoder_decoder(model_folders):
    at = folder_opened("bart", t2="the house")
    at.selectbox(key="text_part").set_value("encoder").run()
    header, _ = contrast(finished(at))
    source = len(header["tokens"])
    assert header["title"] == "Layer 1, all 4 heads, all rows"
    at.selectbox(key="text_part").set_value("decoder").run()
    header, _ = contrast(finished(at))
    assert len(header["tokens"]) != source
    assert header["title"].startswith("Layer 1, all 4 heads, the row of ")
    assert "Agreement" not in words(at), "the decoder does not attend to the input"
    at.selectbox(key="text_part").set_value("cross").run()
    header, _ = contrast(finished(at))
    assert len(header["tokens"]) == source
    assert "own place only" not in names(at)


def test_a_model_that_cannot_be_edited_says_why(model_folders):
    at = folder_opened("deberta")
    assert not at.get("bidi_component") or "attention_contrast" not in shown(at)
    assert "so its heads can be seen but not edited; choose another model." in words(at)
    assert not at.error
    at = picked(at, "text_adversarial_show", "heads")
    assert "Edited heads: The attention of deberta does not go through" in words(at)
    at = picked(at, "text_adversarial_show", "set")
    assert "so its heads can be seen but not edited" in words(at)


def test_too_many_rows_are_refused_in_words(model_folders, monkeypatch):
    from analysis.adversarial import rows

    monkeypatch.setattr(rows, "MOST_WEIGHTS", 100)
    at = folder_opened("bert", t="the house is old")
    at = picked(at, "text_adversarial_layer", -1)
    at = picked(at, "text_adversarial_rows", "all")
    assert "weights are too many to be replaced at once; choose fewer rows, heads or layers." in words(at)
    at = picked(at, "text_adversarial_rows", "first")
    assert contrast(at)[0]["rows"] == 8, "all heads of two layers"


def test_a_set_of_texts_of_a_transformer(model_folders, few):
    at = folder_opened("bert")
    at.selectbox(key="text_adversarial_show").set_value("set").run()
    at = pasted(finished(at), "the house is old\nthe bread")
    table = at.dataframe[0].value
    assert list(table["text"]) == ["the house is old", "the bread"]
    assert "Max JSD is a lower bound" in words(at)
    assert (table["jsd"] > 0).all()


def test_an_encoder_decoder_s_texts_are_named_by_themselves(model_folders, few):
    at = folder_opened("bart", t2="the house")
    at.selectbox(key="text_adversarial_show").set_value("set").run()
    at = pasted(finished(at), "the house is old\nthe bread")
    assert list(at.dataframe[0].value["text"]) == ["the house is old", "the bread"]


def test_values_may_change_by_more_than_one(model_folders, few, monkeypatch):
    at = folder_opened("value")
    at.selectbox(key="text_adversarial_show").set_value("set").run()
    module = cached.shared_model("folder:value", None).model.module
    large = torch.nn.Parameter(module.classifier.weight * 1e9, requires_grad=False)
    monkeypatch.setattr(module.classifier, "weight", large)
    at = pasted(finished(at), "the house is so old\nthe bread is so good")
    assert "could not be drawn" not in words(at)
    assert at.dataframe[0].value["permutation"].max() > 1
    assert "TVD" not in words(at)


def test_edits_of_every_head_and_a_head_that_is_opened(model_folders):
    at = folder_opened("bert")
    at = picked(at, "text_adversarial_show", "heads")
    text = words(at)
    assert "Change of: LABEL_0 (logit " in text
    assert "Uniform, on the row that is read" in text
    at.segmented_control(key="text_adversarial_edit").set_value("permuted").run()
    assert "The median of five random orders." in words(finished(at))
    at.segmented_control(key="text_adversarial_edit").set_value("removed").run()
    assert "Head removed, on all rows" in words(finished(at)), "a head is removed for all queries"
    assert at.query_params["edit"] == "removed"
    at.session_state["selection"] = replace(
        at.session_state["selection"], text=replace(at.session_state["selection"].text, layer=0, heads=(2,))
    )
    at.run()
    assert "Layer 0, head 2: " in words(at)
    at.button(key="text_adversarial_one_head").click().run()
    assert contrast(finished(at))[0]["title"] == "Layer 0, head 2, the row of [CLS]"
    at = picked(at, "text_adversarial_show", "heads")
    at.button(key="text_adversarial_open_head").click().run()
    assert at.segmented_control(key="text_view").value == "head"
    assert (at.query_params["layer"], at.query_params["head"]) == ("0", "2")


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({"0": 2, "1": 3}, (2, 3)),
        ([2, 3], (2, 3)),
        ({"0": 2}, None),
        ({"0": -1, "1": 3}, None),
        ([1.5, 2], None),
        ([float("nan"), 0], None),
        ([1], None),
        ("ab", None),
        (None, None),
    ],
)
def test_only_a_head_is_taken_from_a_click_on_the_chart(told, place):
    assert adversarial_heads._place(told) == place


def test_an_edit_that_a_kind_of_attention_cannot_have_is_refused_in_words(model_folders):
    at = folder_opened("bart", t2="the house")
    at.selectbox(key="text_part").set_value("cross").run()
    at = picked(finished(at), "text_adversarial_show", "heads")
    assert "Change of: " in words(at)
    at.segmented_control(key="text_adversarial_edit").set_value("self").run()
    assert "queries must have a place of their own" in words(finished(at))
    assert not at.exception


# Jobs ---------------------------------------------------------------------------------------------------------------


def test_checks_that_were_stopped_show_what_there_is_and_run_again(model_folders, monkeypatch):
    monkeypatch.setitem(adversarial_cache.STEPS, "projected", 100_000)
    monkeypatch.setattr("analysis.adversarial.search.SHORTEST", 0.0)
    monkeypatch.setattr(adversarial_cache, "QUICK_SECONDS", 0.05)
    at = folder_started("bert", "the dog is so lazy")
    assert "text_adversarial_stop" in [button.key for button in at.button]
    first = names(at)
    assert first[0] == "observed"
    assert "adversarial 1" not in first
    at.button(key="text_adversarial_stop").click().run()
    at = finished(at)
    assert "Stopped: " in words(at)
    assert "Adversarial attention" in words(at)
    assert contrast(at)[0]["verdict"][-1].startswith("It does not show"), "what is known is told"
    monkeypatch.setitem(adversarial_cache.STEPS, "projected", QUICK)
    at.button(key="text_adversarial_again").click().run()
    at = finished(at)
    assert "Stopped: " not in words(at)
    assert any(name.startswith("adversarial") for name in names(at))


def folder_started(name: str, text: str) -> AppTest:
    """The view while its checks run."""
    at = AppTest.from_file(APP, default_timeout=180)
    for key, value in {"v": "1", **RECURRENT, "t": text}.items():
        at.query_params[key] = value
    at = settled(at.run())
    at.selectbox(key="text_model").set_value(f"folder:{name}").run()
    at = settled(at)
    at.segmented_control(key="text_view").set_value("adversarial").run()
    assert not at.exception
    return at


def test_another_model_while_a_search_runs(model_folders, monkeypatch):
    monkeypatch.setitem(adversarial_cache.STEPS, "projected", 100_000)
    monkeypatch.setattr("analysis.adversarial.search.SHORTEST", 0.0)
    at = folder_started("bert", "the fox is so quick")
    going = [job for job in evidence_cache.jobs()._jobs.values() if job.active]
    assert going
    at.selectbox(key="text_model").set_value("recurrent-sentiment").run()
    at = settled(at)
    header, _ = contrast(at)
    assert header["title"] == "The attention of the learned query"
    assert header["labels"] == ["negative", "positive"]
    for job in going:
        job.stop()
    at = finished(at)
    assert "farthest" in names(at)


# Pictures -----------------------------------------------------------------------------------------------------------


def test_a_picture_and_its_classes():
    at = opened("image", model="picture-classifier", sample="cat", side="28")
    header, arrays = contrast(at)
    assert header["title"] == "Layer 11, all 6 heads, the row of CLS"
    rows, columns = header["grid"]
    assert header["positions"] == rows * columns + len(header["prefix"]) == arrays["weights"].shape[1]
    assert header["prefix"] == ["CLS"]
    assert arrays["outputs"].sum(1) == pytest.approx(np.ones(len(names(at))), abs=1e-5)
    assert len(header["labels"]) == arrays["outputs"].shape[1] > 50
    assert "set" not in at.selectbox(key="image_adversarial_show").options
    at = picked(at, "image_adversarial_show", "heads")
    assert "Change of: " in words(at)
    assert "Layer 11, head 0: " in words(at)


def test_the_row_of_a_chosen_patch(model_folders):
    at = folder_opened("deit", "image")
    header, _ = contrast(at)
    assert header["prefix"] == ["CLS", "prefix 1"]
    assert header["change_name"] == "cosine distance"
    chosen = at.session_state["selection"]
    at.session_state["selection"] = replace(
        chosen, image=replace(chosen.image, patch=(1, 2), adversarial=AdversarialChoices(rows="pinned"))
    )
    at = finished(at.run())
    assert contrast(at)[0]["title"].endswith("the row of patch (1, 2)")


def test_a_picture_without_cls_has_all_rows_replaced(model_folders):
    at = folder_opened("siglip", "image")
    header, _ = contrast(at)
    assert header["title"].endswith("all rows")
    assert header["prefix"] == []
    rows, columns = header["grid"]
    assert header["positions"] == rows * columns


def test_agreement_of_a_picture_without_cls(model_folders):
    at = folder_opened("siglip", "image")
    assert "because of a fault in the program" not in words(at)
    assert "leave one out" in words(at)


def test_a_model_of_windows_says_that_it_cannot_be_edited(model_folders):
    at = folder_opened("swin", "image")
    assert not at.exception
    assert "could not be drawn" not in words(at)
    assert "Adversarial attention: " in words(at)


def test_nothing_is_waited_for_where_a_model_is_refused(model_folders):
    at = picked(folder_opened("swin", "image"), "image_adversarial_show", "heads")
    assert "Edited heads: " in words(at)
    assert "One forward and one backward pass" not in words(at), "nothing is waited for any more"


# Files --------------------------------------------------------------------------------------------------------------


def test_the_export_carries_all_candidates(monkeypatch):
    at = opened(**RECURRENT, candidate="uniform", epsilon="0.02")
    buttons = [button.key for button in at.download_button]
    assert "text_adversarial_export_csv" in buttons
    assert "text_adversarial_export_html" in buttons
    kept: list[Any] = []
    plain = adversarial_one._record
    monkeypatch.setattr(adversarial_one, "_record", lambda *given: (kept.append(plain(*given)), kept[-1])[1])
    at.run()
    record = kept[-1]
    assert isinstance(record, AttentionContrast)
    told = adversarial_provenance(
        record, "model", "1", TEXT, ("note",), choices=AdversarialChoices(epsilon=0.02)
    )
    assert told.method == "adversarial attention (Jain & Wallace 2019)"
    assert told.input == TEXT
    assert told.settings["ε"] == 0.02
    assert told.settings["shown"] == "uniform"
    assert told.settings["search"] == "exact"
    assert (*record.verdict, record.held, "note") == told.notes
    data = export_figure(record, told, "json")
    document = read_provenance(data, "json")
    assert document["kind"] == "attention_contrast"
    assert document["provenance"]["settings"]["shown"] == "uniform"


def test_records_of_sets_and_heads_say_how_they_were_made():
    from tests.sample_figures import checked_set, head_effects

    choices = AdversarialChoices(edit="self")
    checked: CheckedSet = checked_set()
    told = adversarial_provenance(checked, "model", "1", "of the page", (), choices=choices)
    assert told.input == checked.title, "the texts of the set, not the page's own"
    assert told.settings["ε"] == checked.epsilon
    assert told.notes == checked.notes
    assert "search" not in told.settings
    effects: HeadEffects = head_effects()
    told = adversarial_provenance(effects, "model", "1", "of the page", ("note",), choices=choices)
    assert (told.input, told.method) == ("of the page", "edited heads")
    assert told.layer == "all 6"
    assert told.heads == "all 12"
    assert told.settings["edit"] == effects.edits[effects.shown]
    assert told.settings["target"] == effects.target
    assert told.notes == (*effects.notes, "note")


@pytest.mark.parametrize("tab", ["set", "heads"])
def test_sets_and_heads_are_exported(model_folders, few, tab):
    at = folder_opened("bert")
    at.selectbox(key="text_adversarial_show").set_value(tab).run()
    if tab == "set":
        at = picked(finished(at), "text_adversarial_source", "file")
        at.text_area(key="text_heads_paste").set_value("the house\nthe bread").run()
    at = finished(at)
    assert "text_adversarial_export_csv" in [button.key for button in at.download_button]
