"""What is chosen in the Adversarial views: links there and back, what a link may not say, fitting to a model."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import selection as selections
from dashboard.adversarial_choices import (
    ADVERSARIAL_PARAMETERS,
    EPSILONS,
    EVERY_LAYER,
    AdversarialChoices,
    adversarial_params,
    fitted_adversarial,
    read_adversarial,
)
from dashboard.evidence_choices import EVIDENCE_PARAMETERS
from dashboard.heads_choices import HEADS_PARAMETERS
from dashboard.selection import (
    ModelChoice,
    TextInput,
    choose,
    choose_adversarial,
    current,
    default_selection,
    from_query,
    to_query,
)

CANDIDATES = (
    "farthest",
    "next head's",
    "adversarial 3",
    "uniform",
    "first only",
    "own place only",
    "permuted",
)

choices = st.builds(
    AdversarialChoices,
    show=st.sampled_from(["one", "set", "heads", "trained"]),
    layer=st.none() | st.integers(EVERY_LAYER, 9999),
    heads=st.none()
    | st.frozensets(st.integers(0, 9999), min_size=1, max_size=20).map(lambda heads: tuple(sorted(heads))),
    rows=st.sampled_from(["usual", "first", "last", "pinned", "all"]),
    others=st.sampled_from(["respond", "fixed"]),
    epsilon=st.sampled_from(EPSILONS),
    search=st.sampled_from(["projected", "penalty"]),
    candidate=st.just("") | st.sampled_from(CANDIDATES),
    edit=st.sampled_from(["uniform", "permuted", "self", "first", "exchanged", "removed"]),
)


@given(chosen=choices, page=st.sampled_from(["text", "image"]))
def test_a_link_restores_the_view(chosen, page):
    start = default_selection()
    shown = replace(getattr(start, page), view="adversarial", adversarial=chosen)
    params = to_query(replace(start, **{page: shown}), page)
    assert set(adversarial_params(chosen)) <= set(ADVERSARIAL_PARAMETERS)
    assert all(isinstance(value, str) for value in params.values())
    opened = from_query(json.loads(json.dumps(params)), start, page)
    assert getattr(opened, page).adversarial == chosen
    assert opened.notes == ()


def test_a_link_holds_what_differs_and_nothing_of_other_views():
    assert adversarial_params(AdversarialChoices()) == {}
    chosen = AdversarialChoices("heads", EVERY_LAYER, (1, 3), epsilon=0.2, edit="self")
    assert adversarial_params(chosen) == {
        "tab": "heads",
        "layers": "all",
        "free": "1,3",
        "epsilon": "0.2",
        "edit": "self",
    }
    start = default_selection()
    elsewhere = replace(start, text=replace(start.text, view="matrix", adversarial=chosen))
    assert not set(to_query(elsewhere, "text")) & {"tab", "layers", "free", "epsilon", "edit"}


def test_weights_and_files_stay_out_of_links():
    chosen = AdversarialChoices(
        candidate="by hand", weights=(0.5, 0.5), input="0123456789abcdef", source="file"
    )
    assert adversarial_params(chosen) == {}
    assert read_adversarial(AdversarialChoices(), "candidate", "by hand") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tab", "<script>"),
        ("tab", ""),
        ("tab", "ONE"),
        ("rows", "0"),
        ("rows", "all "),
        ("rest", "free"),
        ("search", "exact"),
        ("search", "../x"),
        ("edit", "none"),
        ("layers", "-1"),
        ("layers", "ALL"),
        ("layers", "1,2"),
        ("layers", "1e3"),
        ("layers", "99999"),
        ("layers", "٣"),
        ("layers", ""),
        ("free", "all"),
        ("free", ""),
        ("free", "1,"),
        ("free", "-1"),
        ("free", "1, 2"),
        ("free", "²"),
        ("free", "99999"),
        ("free", ",".join(["1"] * 257)),
        ("epsilon", "0"),
        ("epsilon", "-0.01"),
        ("epsilon", "0.03"),
        ("epsilon", "1e-2"),
        ("epsilon", "nan"),
        ("epsilon", "inf"),
        ("candidate", ""),
        ("candidate", "<b>"),
        ("candidate", "Uniform"),
        ("candidate", "by hand"),
        ("candidate", "uniform\n"),
        ("candidate", "a" * 41),
        ("candidate", "１"),
        ("weights", "0.5,0.5"),
        ("input", "0"),
        ("source", "file"),
        ("show", "heads"),
    ],
)
def test_a_link_says_nothing_that_is_not_understood(name, value):
    start = AdversarialChoices(layer=2, heads=(1,))
    assert read_adversarial(start, name, value) is None
    if name not in HEADS_PARAMETERS:
        opened = from_query({"view": "adversarial", name: value}, default_selection(), "text")
        assert opened.text.adversarial == AdversarialChoices()
        assert name in opened.notes[0]


@given(name=st.sampled_from(ADVERSARIAL_PARAMETERS), value=st.text(max_size=40) | st.sampled_from(CANDIDATES))
def test_what_a_link_says_is_not_believed(name, value):
    found = read_adversarial(AdversarialChoices(), name, value)
    if found is None:
        return
    again = AdversarialChoices()
    for key, written in adversarial_params(found).items():
        again = read_adversarial(again, key, written) or again
    assert again == found
    assert found.weights is None


def test_no_two_parameters_of_a_link_have_one_name():
    of_views = {
        "evidence": set(EVIDENCE_PARAMETERS),
        "heads": set(HEADS_PARAMETERS),
        "adversarial": set(ADVERSARIAL_PARAMETERS),
    }
    own = {
        "v",
        "view",
        "model",
        "rev",
        "numbers",
        "layer",
        "head",
        "sample",
        "t",
        "t2",
        "token",
        "part",
        "side",
        "patch",
    }
    counts = Counter(name for names in (own, *of_views.values()) for name in names)
    assert {name for name, count in counts.items() if count > 1} == set()
    assert len(ADVERSARIAL_PARAMETERS) == len(set(ADVERSARIAL_PARAMETERS))
    for readers in (selections._TEXT_READERS, selections._IMAGE_READERS):
        assert set(readers) <= set(counts), "a reader whose name is not looked at here"
        assert set().union(*of_views.values()) <= set(readers)


def test_every_choice_is_in_a_link_or_kept_out_on_purpose():
    start = AdversarialChoices()
    other = AdversarialChoices(
        "set", 1, (2,), "all", "fixed", 0.1, "penalty", "uniform", "self", "file", (1.0,), "key"
    )
    assert all(getattr(start, field.name) != getattr(other, field.name) for field in fields(start))
    read = start
    for name, value in adversarial_params(other).items():
        read = read_adversarial(read, name, value) or read
    assert read == replace(other, source="sample", weights=None, input="")


# Fitting ------------------------------------------------------------------------------------------------------------


@given(chosen=choices, layers=st.integers(1, 12), heads=st.integers(1, 12))
def test_choices_are_fitted_to_the_model(chosen, layers, heads):
    found = fitted_adversarial(chosen, layers=layers, heads=heads)
    assert found.layer is None or found.layer == EVERY_LAYER or 0 <= found.layer < layers
    assert found.heads is None or (set(found.heads) < set(range(heads)) and found.heads)
    assert replace(found, layer=None, heads=None) == replace(chosen, layer=None, heads=None)
    assert fitted_adversarial(found, layers=layers, heads=heads) == found


def test_what_fits_is_kept():
    chosen = AdversarialChoices(layer=5, heads=(0, 11))
    assert fitted_adversarial(chosen, layers=6, heads=12) == chosen
    assert fitted_adversarial(chosen, layers=5, heads=4) == AdversarialChoices(heads=(0,))
    assert fitted_adversarial(AdversarialChoices(heads=(0, 1)), layers=1, heads=2).heads is None
    every = AdversarialChoices(layer=EVERY_LAYER)
    assert fitted_adversarial(every, layers=1, heads=1) == every


# In the session -----------------------------------------------------------------------------------------------------


@pytest.fixture
def session():
    import streamlit

    streamlit.session_state.pop("selection", None)
    yield
    streamlit.session_state.pop("selection", None)


def test_choices_stay_with_another_input_and_another_model(session):
    choose_adversarial("text", epsilon=0.1, layer=3, weights=(0.5, 0.5), input="of the first text")
    before = current().text.adversarial
    choose("text", input=TextInput("Another text."))
    assert current().text.adversarial == before, "weights wait for their text; their key tells whose they are"
    choose("text", model=ModelChoice("sentiment"))
    assert current().text.adversarial == before
    assert current().image.adversarial == AdversarialChoices(), "each page has its own"
