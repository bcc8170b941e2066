"""A document explained by several methods at once: one pass for each window, and the numbers of each alone."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

from analysis.evidence import document
from analysis.evidence.document import Question, explain_document, explain_document_by
from analysis.evidence.targets import class_logit
from analysis.reading import encode_document
from dashboard.document_jobs import Together
from tests import input_helpers as tiny

TEXT = " ".join(tiny.SENTENCES)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tiny.loud_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture
def passes(monkeypatch):
    """Windows that were run with a graph, in their order."""
    ran: list[int] = []

    def counted(model, window):
        ran.append(window.kept_tokens)
        return real(model, window)

    real = document.forward_pass
    monkeypatch.setattr(document, "forward_pass", counted)
    return ran


QUESTIONS = (
    Question("cdam", class_logit(2)),
    Question("relevance", class_logit(2)),
    Question("gradcam", class_logit(0), {"variant": "layercam"}),
    Question("rollout"),
    Question("leave_one_out", class_logit(1), {"replacement": "zero"}),
)


def test_methods_share_the_pass_of_each_window_and_say_what_each_says_alone(classifier, passes):
    inputs = encode_document(classifier, TEXT, window=14, stride=5)
    told: list[float] = []
    found = explain_document_by(QUESTIONS, classifier, inputs, progress=told.append, refused=lambda *_: None)
    windows = len(inputs.reading.windows)
    assert windows > 2
    assert len(passes) == windows
    assert told == sorted(told)
    assert (told[0] > 0.0, told[-1]) == (True, 1.0)
    for question, answer in zip(QUESTIONS, found, strict=True):
        alone = explain_document(question.key, classifier, inputs, question.target, **question.options)
        assert_close(answer.scores, alone.scores)
        assert answer.scores.abs().max() > 0
        assert (answer.method, answer.target, answer.signed) == (alone.method, alone.target, alone.signed)
        assert answer.notes == alone.notes
        assert dict(answer.details) == pytest.approx(dict(alone.details))


def test_a_question_that_is_refused_leaves_the_others(classifier, passes):
    inputs = encode_document(classifier, TEXT, window=14)
    wrong = Question("cdam", class_logit(1), {"layer": 9})
    refusals: list[tuple[Question, str]] = []
    found = explain_document_by(
        [wrong, QUESTIONS[0]],
        classifier,
        inputs,
        refused=lambda question, error: refusals.append((question, str(error))),
    )
    assert [question for question, _ in refusals] == [wrong]  # once, not for each window
    assert "layer must be between" in refusals[0][1]
    assert found[0] is None
    assert_close(found[1].scores, explain_document("cdam", classifier, inputs, class_logit(2)).scores)
    with pytest.raises(ValueError, match="layer must be between"):
        explain_document("cdam", classifier, inputs, class_logit(1), layer=9)


def test_jobs_asked_together_walk_over_the_windows_once(classifier, passes):
    inputs = encode_document(classifier, TEXT, window=14)
    windows = len(inputs.reading.windows)
    wrong = Question("cdam", class_logit(1), {"layer": 9})
    asked = (QUESTIONS[0], wrong, QUESTIONS[3])
    together = Together(classifier, inputs, asked, ("test", "of", "jobs"))
    first, last = (together.answer(place, lambda _: None) for place in (0, 2))
    assert len(passes) == windows
    assert (first.method, last.method) == ("cdam", "rollout")
    with pytest.raises(ValueError, match="layer must be between"):
        together.answer(1, lambda _: None)
    assert len(passes) == windows


def test_a_job_that_has_its_turn_while_another_walks_answers_for_itself(classifier, passes):
    inputs = encode_document(classifier, TEXT, window=14)
    windows = len(inputs.reading.windows)
    together = Together(classifier, inputs, QUESTIONS[:2], ("one", "other"))
    inside: list[str] = []

    def give_way(done):
        if not inside:
            inside.append("")
            inside[0] = together.answer(1, lambda _: None).method
            assert list(together.found) == [1]  # the other question is under way

    assert together.answer(0, give_way).method == "cdam"
    assert inside == ["relevance"]
    assert len(passes) == 2 * windows


class Stopped(Exception):
    """Somebody pressed stop."""


def test_a_walk_that_was_stopped_is_walked_again(classifier, passes):
    inputs = encode_document(classifier, TEXT, window=14)
    together = Together(classifier, inputs, QUESTIONS[:2], ("one", "other"))

    def stop(_):
        raise Stopped

    with pytest.raises(Stopped):
        together.answer(0, stop)
    assert together.answer(1, lambda _: None).method == "relevance"
    assert sorted(together.found) == [0, 1]  # for both: nobody walks any more
