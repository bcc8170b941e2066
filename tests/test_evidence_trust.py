"""How far to trust the maps on the screen: the checks of the Evidence pages, run by AppTest on the real models."""

from __future__ import annotations

import csv
import io
import json
import re
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.evidence.faithfulness import Chance, Curve, Faithfulness
from analysis.evidence.methods import METHODS
from analysis.evidence.sanity import ModelSensitivity, Randomised
from analysis.evidence.targets import class_logit
from dashboard import cached, charts, evidence_cache
from dashboard.evidence_choices import Check, EvidenceChoices, evidence_params, read_evidence
from dashboard.evidence_jobs import Jobs
from dashboard.frame import signed_number
from dashboard.views import evidence_trust
from dashboard.views.evidence_tools import Answer
from tests.test_app import component, settled, shown
from tests.test_evidence_views import APP, classifier, finished, image_opened


def facts_of(at, name="evidence_maps"):
    """Sentences under each map, and warnings, by method."""
    header, _ = component(at, name)
    return {card["method"]: card["panels"][0]["facts"] for card in header["cards"]}, {
        card["method"]: card["panels"][0]["warning"] for card in header["cards"]
    }


def table_of(at):
    """Rows of the table of the check, as texts."""
    for element in at.get("html"):
        if "as-table" in element.proto.body:
            rows = re.findall(r"<tr[^>]*>(.*?)</tr>", element.proto.body)
            cells = [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in rows]
            if cells[0][0] in ("Map", "Method"):
                return cells
    raise AssertionError("there is no table")


def figure_of(at, key):
    """The Plotly figure with this key."""
    found = [element for element in at.get("plotly_chart") if element.proto.id.endswith(key)]
    assert len(found) == 1
    return json.loads(found[0].proto.spec)


def text_opened(**params):
    """The Text page by a link, with its model loaded and its methods done."""
    at = AppTest.from_file(APP, default_timeout=180)
    for name, value in {"v": "1", "view": "evidence", **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


# On the pages -------------------------------------------------------------------------------------------------------


@classifier
def test_agreement_and_the_runner_up_come_with_the_maps():
    evidence_cache.jobs.clear()
    at = image_opened(model="picture-classifier", sample="elephantdog", side="56")
    facts, _ = facts_of(at)
    runner_up = re.match(
        r"Rank correlation with that for the runner-up, (\w+): −?[01]\.\d\d\.", facts["CDAM"][0]
    )[1]
    assert runner_up != "elephant"
    assert runner_up in cached.shared_model("picture-classifier", None).model.labels
    for method in ("GradCAM", "Relevance"):
        assert facts[method][0].startswith(f"Rank correlation with that for the runner-up, {runner_up}: ")
    assert not any("runner-up" in fact for fact in facts["Attention rollout"])
    (square,) = (element.proto.body for element in at.get("html") if '"as-square"' in element.proto.body)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", square)
    assert len(cells) == 16
    assert [cells[place] for place in (0, 5, 10, 15)] == ["1.00"] * 4
    assert cells[1] == cells[4]
    assert not [key for key in evidence_cache.jobs()._jobs if key[2] in ("chance", "model")], (
        "nothing else was run"
    )


@classifier
def test_faithfulness_is_measured_on_demand_and_stays_under_the_map():
    at = image_opened(model="picture-classifier", sample="cat", side="56", methods="cdam,rollout")
    at.segmented_control(key="image_evidence_check").set_value("faithfulness").run()
    at = finished(finished(at))
    table = table_of(at)
    assert table[0] == ["Map", "Deletion", "Insertion", "Comprehensiveness", "Sufficiency", "Verdict"]
    assert [row[0] for row in table[1:]] == ["CDAM", "Attention rollout", "5 random orders"]
    assert all(re.fullmatch(r"-?\d[\d.e+-]*", cell) for row in table[1:3] for cell in row[1:5])
    facts, _ = facts_of(at)
    assert any(fact.startswith("Areas: deletion ") and table[1][1] in fact for fact in facts["CDAM"])
    assert "random orders" in "".join(facts["Attention rollout"])
    assert figure_of(at, "image_evidence_trust_faithfulness")
    at.segmented_control(key="image_evidence_check").set_value("agreement").run()
    facts, _ = facts_of(at)
    assert any(fact.startswith("Areas: deletion ") for fact in facts["CDAM"]), "what was measured stays"


@classifier
def test_random_weights_and_noise_are_measured_on_a_copy():
    at = image_opened(model="picture-classifier", sample="cat", side="56", methods="cdam", check="model")
    shared = cached.shared_model("picture-classifier", None)
    before = [parameter.clone() for parameter in shared.model.module.parameters()]
    figure = figure_of(at, "image_evidence_trust_model")
    (line,) = figure["data"]
    assert line["x"][0] == "none"
    assert "classifier" in line["x"][1]
    assert len(line["x"]) == 2 + 12
    facts, _ = facts_of(at)
    assert any(fact.startswith("With random weights it correlates ") for fact in facts["CDAM"])
    at.segmented_control(key="image_evidence_check").set_value("stability").run()
    at = finished(at)
    table = table_of(at)
    assert table[0] == ["Method", "Infidelity", "Sensitivity"]
    assert 0 <= float(table[1][1]) <= 2
    assert float(table[1][2]) > 0
    facts, _ = facts_of(at)
    assert f"Infidelity {table[1][1]}, sensitivity {table[1][2]}." in facts["CDAM"]
    after = list(shared.model.module.parameters())
    assert all(bool((one == two).all()) for one, two in zip(before, after, strict=True))


@classifier
def test_the_second_class_is_asked_of_every_method():
    at = text_opened(model="sentiment", methods="cdam,input_x_gradient,attention", check="class")
    at = finished(at)
    table = table_of(at)
    assert table[0][0] == "Method"
    assert table[0][1] in (f"Correlation with the map for {name}" for name in ("negative", "positive"))
    rows = {row[0]: row[1:] for row in table[1:]}
    assert list(rows) == ["CDAM", "Attention", "Input × gradient"]
    assert rows["Attention"] == ["1.00", "It ignores the class by construction."]
    for method in ("CDAM", "Input × gradient"):
        number, warning = rows[method]
        assert bool(warning) == (float(number.replace("−", "-")) >= 0.95)
    facts, warnings = facts_of(at, "evidence_words")
    assert any("runner-up" in fact for fact in facts["Input × gradient"])
    assert warnings["Attention"] == ""


@classifier
def test_without_a_second_class_it_says_so():
    at = image_opened(sample="cat", like="coffee", side="56", methods="cdam", check="class")
    assert "There is no second class to compare with" in shown(at)
    at.segmented_control(key="image_evidence_check").set_value("agreement").run()
    assert "Choose two methods or more to compare them." in shown(at)


@classifier
def test_a_text_is_not_sensitive_to_noise():
    at = text_opened(model="sentiment", methods="cdam", check="stability")
    table = table_of(at)
    assert table[1][2] == "not defined for a text"


# Links --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", get_args(Check))
def test_a_check_is_in_the_link(check):
    params = evidence_params(EvidenceChoices(check=check))
    assert params == ({} if check == "agreement" else {"check": check})
    for name, value in params.items():
        assert read_evidence(EvidenceChoices(), name, value) == EvidenceChoices(check=check)
    assert read_evidence(EvidenceChoices(), "check", f"{check}!") is None


# Charts and files --------------------------------------------------------------------------------------------------


def curve(*values):
    return Curve(np.linspace(0, 1, len(values)), np.array(values, dtype=np.float64))


def test_curves_stand_beside_the_range_of_random_orders():
    chance = Chance((curve(4, 2, 0), curve(4, 3, 0)), (curve(0, 2, 4), curve(0, 1, 4)))
    found = Faithfulness(4.0, 0.0, curve(4, 0.5, 0), curve(0, 3.5, 4), chance, 3.0, 1.0)
    figure = charts.faithfulness_chart(["<b>CDAM</b>", "Other"], [found, found], "elephant")
    assert len(figure.data) == 2 * (3 + 2)
    low, high, mean, first, _ = figure.data[:5]
    assert list(low.y) == [4, 2, 0]
    assert list(high.y) == [4, 3, 0]
    assert high.fill == "tonexty"
    assert list(mean.y) == [4, 2.5, 0]
    assert list(first.y) == [4, 0.5, 0]
    assert first.name == "&lt;b&gt;CDAM&lt;/b&gt;"
    assert list(figure.data[8].y) == [0, 3.5, 4]
    assert figure.layout.yaxis.title.text == "elephant"


def test_a_constant_map_has_no_correlation_in_the_square():
    assert signed_number(float("nan")) == "–"
    assert signed_number(-0.256) == "−0.26"


def test_a_second_class_that_takes_long_is_computed_behind_the_page(monkeypatch):
    """Of 15,000 patches relevance takes minutes: never where the page is drawn, and only where it was asked for."""
    jobs, inline = Jobs(), []
    monkeypatch.setattr(evidence_trust.evidence_cache, "jobs", lambda: jobs)
    monkeypatch.setattr(evidence_trust.evidence_cache, "explained", lambda *_, **__: inline.append(1))
    asked = lambda *_: jobs.request("it", lambda _: "map")  # noqa: E731
    monkeypatch.setattr(evidence_trust.evidence_cache, "requested", asked)
    subject: Any = SimpleNamespace(key="s", run=None)
    answer = Answer(METHODS["relevance"], class_logit(1), None)  # type: ignore[arg-type]
    for long, ask, expected in (
        (True, False, (0, False)),
        (True, True, (0, True)),
        (False, False, (1, True)),
    ):
        monkeypatch.setattr(evidence_trust.evidence_cache, "takes_long", lambda _, long=long: long)
        evidence_trust._other_map(subject, answer, class_logit(2), ask=ask)
        assert (len(inline), jobs.find("it") is not None) == expected
    job = jobs.find("it")
    assert job is not None
    assert job.wait(20)


def test_the_cascade_is_a_line_a_method():
    stages = (
        Randomised("", 1.0, 2.0),
        Randomised("classifier", 0.4, 0.1),
        Randomised("layer.0", np.nan, 0.0),
    )
    figure = charts.cascade_chart(["CDAM"], [ModelSensitivity(stages)])
    assert list(figure.data[0].x) == ["none", "classifier", "layer.0"]
    assert list(figure.data[0].y[:2]) == [1.0, 0.4]


def test_a_table_is_a_file_with_what_it_was_measured_on():
    model = SimpleNamespace(name="tiny", revision="abc\n123")
    subject = SimpleNamespace(traced=SimpleNamespace(model=model, inputs=SimpleNamespace(digest="0f")))
    answer = Answer(METHODS["cdam"], class_logit(1, "elephant"), None)
    trust = evidence_trust.Trust("class", subject, ((answer, answer.target),), None, (), (), ())
    text = evidence_trust.table_file(trust, ("Method", "x"), [('=CDAM, "all"', "0.5")]).decode()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert "model tiny, revision abc⏎123; input 0f" in comments[1]
    assert comments[2] == "# target: elephant"
    assert "torch" in comments[3]
    rows = list(csv.reader(io.StringIO("\n".join(text.splitlines()[len(comments) :]))))
    assert rows == [["Method", "x"], ['\'=CDAM, "all"', "0.5"]], "no spreadsheet runs it"
