"""What the checks of one input are told as: a sentence for each outcome, with the numbers given, and its limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.adversarial.verdict import LIMITS, Findings, verdict

NAN = float("nan")


def told(**changes: Any) -> tuple[str, ...]:
    """The sentences before the last, which is the same for all."""
    found = verdict(Findings(**{"change_name": "TVD", "epsilon": 0.01, "bound": 0.6, **changes}))
    assert found[-1] == LIMITS
    return found[:-1]


@pytest.mark.parametrize(
    ("farthest", "lead"),
    [
        (0.6, "Attention about as different as can be gives the same answer"),
        (0.54, "Attention about as different as can be gives the same answer"),
        (0.539, "Quite different attention gives the same answer"),
        (0.3, "Quite different attention gives the same answer"),
        (0.299, "The answer holds this attention rather fast: other weights that keep it stay near"),
        (0.0004, "The answer holds this attention rather fast: other weights that keep it stay near"),
    ],
)
def test_how_far_other_attention_may_go(farthest: float, lead: str) -> None:
    first, _ = told(farthest=farthest)
    assert first == f"{lead} (JSD {farthest:.3f} of at most 0.600, TVD at most 0.01)."


def test_nothing_found_is_not_nothing_there() -> None:
    assert told(farthest=0.0) == (
        "No other attention with the same answer was found (TVD at most 0.01).",
        "This is a lower bound: a better search may find more.",
    )
    assert told(farthest=0.0, bound=0.0)[0].startswith("No other attention")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"exact": True}, "No weights with this answer are farther: all corners were looked at."),
        (
            {"exact": True, "converged": False},
            "No weights with this answer are farther: all corners were looked at.",
        ),
        ({}, "This is a lower bound: a better search may find more."),
        ({"converged": False}, "This is a lower bound: the search had not come to rest."),
    ],
)
def test_what_a_search_is_worth(how: dict[str, bool], sentence: str) -> None:
    assert told(farthest=0.4, **how)[1] == sentence


@pytest.mark.parametrize(
    ("median", "largest", "sentence"),
    [
        (0.002, 0.01, "No shuffling of the weights changes the answer (the largest TVD is 0.01)."),
        (0.01, 0.3, "Shuffled weights give about the same answer: median TVD 0.01, largest 0.3."),
        (
            0.123,
            0.3,
            "Where the weights stand matters: shuffled, they change the answer by TVD 0.123 (median).",
        ),
    ],
)
def test_shuffled_weights(median: float, largest: float, sentence: str) -> None:
    assert told(permuted=median, most_permuted=largest) == (sentence,)


@pytest.mark.parametrize(
    ("uniform", "flips", "sentence"),
    [
        (0.01, False, "The same weight everywhere gives the same answer (TVD 0.01)."),
        (0.02, False, "With the same weight everywhere the answer moves by TVD 0.02."),
        (0.02, True, "With the same weight everywhere the model decides otherwise (TVD 0.02)."),
        (0.001, True, "With the same weight everywhere the model decides otherwise (TVD 0.001)."),
    ],
)
def test_uniform_weights(uniform: float, flips: bool, sentence: str) -> None:
    assert told(uniform=uniform, flips=flips) == (sentence,)


@pytest.mark.parametrize(
    ("tau", "p", "words"),
    [
        (0.5, 0.01, "agrees well with gradients (Kendall τ 0.50, p 0.01)"),
        (0.49, 0.049, "agrees a little with gradients (Kendall τ 0.49, p 0.049)"),
        (-0.4, 0.002, "runs against gradients (Kendall τ −0.40, p 0.002)"),
        (0.9, 0.05, "does not agree significantly with gradients (Kendall τ 0.90, p 0.05)"),
        (-0.9, 0.3, "does not agree significantly with gradients (Kendall τ −0.90, p 0.3)"),
        (-0.001, 0.9, "does not agree significantly with gradients (Kendall τ 0.00, p 0.9)"),
        (0.8, 2e-7, "agrees well with gradients (Kendall τ 0.80, p 2e−07)"),
    ],
)
def test_agreement_is_told_with_its_p_value(tau: float, p: float, words: str) -> None:
    assert told(gradient=(tau, p)) == (f"Its ranking of the positions {words}.",)
    assert told(leave_one_out=(tau, p)) == (
        f"Its ranking of the positions {words.replace('gradients', 'leaving parts out')}.",
    )


def test_what_has_no_rank_is_not_told() -> None:
    assert verdict(Findings("TVD", 0.01, 0.6, gradient=(NAN, NAN), leave_one_out=(NAN, NAN))) == ()
    assert len(told(gradient=(NAN, NAN), leave_one_out=(0.3, 0.2))) == 1


def test_before_anything_is_known_nothing_is_said() -> None:
    assert verdict(Findings("TVD", 0.01, 0.6)) == ()
    assert verdict(Findings("TVD", 0.01, 0.6, permuted=0.1)) == (), "the largest is not there yet"


def test_one_position_has_no_other_attention() -> None:
    (only,) = verdict(Findings("TVD", 0.01, 0.0, farthest=0.0, uniform=0.0, permuted=0.0, positions=1))
    assert only == "There is one position to attend to, so there is no other attention."


shares = st.floats(0, 1)
rankings = st.none() | st.tuples(st.floats(-1, 1) | st.just(NAN), shares)


@given(
    farthest=st.none() | st.floats(0, 0.69),
    permuted=st.none() | shares,
    most=shares,
    uniform=st.none() | shares,
    flips=st.booleans(),
    exact=st.booleans(),
    gradient=rankings,
    without=rankings,
    name=st.sampled_from(["TVD", "cosine distance", "change of value"]),
    epsilon=st.sampled_from([0.001, 0.01, 0.5]),
)
def test_whatever_is_found_the_last_sentence_says_what_it_does_not_show(
    farthest: Any, permuted: Any, most: float, uniform: Any, flips: bool, exact: bool, gradient: Any,
    without: Any, name: str, epsilon: float,
) -> None:  # fmt: skip
    given_numbers = {
        "farthest": farthest,
        "permuted": permuted,
        "most_permuted": None if permuted is None else max(most, permuted),
        "uniform": uniform,
    }
    findings = Findings(
        name, epsilon, 0.69, exact=exact, flips=flips, gradient=gradient, leave_one_out=without,
        **given_numbers,
    )  # fmt: skip
    found = verdict(findings)
    if not found:
        return
    assert found[-1] == LIMITS
    text = " ".join(found[:-1])
    assert "nan" not in text
    assert "-" not in text.replace("e-", "")
    if farthest or permuted is not None or uniform is not None:
        assert name in text
    pairs = [pair for pair in (gradient, without) if pair is not None]
    known = [*(number for number in given_numbers.values() if number is not None), epsilon, 0.69]
    known += [number for pair in pairs for number in pair] + [0.0]
    written = {
        f"{number:{form}}".replace("-", "−") for number in known for form in ("g", ".3f", ".3g", ".2f", ".2g")
    }
    for number in re.findall(r"−?\d+(?:\.\d+)?(?:e[-−+]\d+)?", text):
        assert number.replace("-", "−") in written, number
