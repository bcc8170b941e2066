"""How far to trust the maps on the screen: what was measured of each, and the checks that a reader can ask for.

Agreement and the dependence on the class come with the maps. The others run the model many times and are asked for;
what they find stands under the map, in the table, and in every export.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import streamlit as st

from analysis.export import csv_cell
from analysis.visible import visible_text
from dashboard import cached, charts, evidence_cache
from dashboard.evidence_choices import Check
from dashboard.evidence_jobs import Job, Progress
from dashboard.frame import note, signed_number, small_table, square_table
from dashboard.provenance import software
from dashboard.selection import bound, choose_evidence, current
from dashboard.views import evidence_tools
from dashboard.views.evidence_targets import class_target
from dashboard.views.evidence_tools import Answer, Measured, Page

if TYPE_CHECKING:
    from analysis.evidence.explanation import Explanation
    from analysis.evidence.faithfulness import Chance, Faithfulness
    from analysis.evidence.passes import ForwardPass
    from analysis.evidence.sanity import ModelSensitivity
    from analysis.evidence.targets import Target

TITLES: dict[Check, str] = {
    "agreement": "Agreement",
    "class": "Second class",
    "faithfulness": "Faithfulness",
    "stability": "Infidelity",
    "model": "Random weights",
}

EXPLAINED: dict[Check, str] = {
    "agreement": "Rank correlation of every two maps. Methods that share an ingredient agree for that reason: CDAM "
    "and GradCAM read one gradient, relevance and rollout one attention.",
    "class": "Rank correlation of a method's maps for this class and for the runner-up. At 0.95 or more the map does "
    "not depend on the class.",
    "faithfulness": "What the target does while tokens or patches are replaced, strongest first (deletion), and "
    "while they are given back (insertion), beside random orders; and its mean fall without the strongest 1 to 50 % "
    "(comprehensiveness, high is good) and with them alone (sufficiency, low is good).",
    "stability": "Infidelity: how badly the scores foretell the target's fall when random fifths are taken away: 0 "
    "foretells every fall, 1 is no better than saying “no change”. Sensitivity: the largest change of the map, as a "
    "share of its length, under a little noise on the picture.",
    "model": "Rank correlation with the true map while the weights become random, from the head down, on a copy of "
    "the model. A map that stays alike shows the input and not what was learned.",
}


@dataclass(frozen=True)
class Trust:
    """What is known of the maps on the screen.

    Attributes:
        check: the one that the reader looks at.
        subject: what is explained.
        answers: the maps, and the target that each is measured for.
        runner_up: the class that maps are held against, or None where there is no other.
        results: of the check, one a map; None where it is not there (yet).
        measured: what stands under each map.
        jobs: (title, job) of the check that have not ended well.
    """

    check: Check
    subject: evidence_cache.Subject
    answers: tuple[tuple[Answer, Target], ...]
    runner_up: Target | None
    results: tuple[Any, ...]
    measured: tuple[Measured, ...]
    jobs: tuple[tuple[str, Job], ...]


def examine(
    page: Page, subject: evidence_cache.Subject, found: Sequence[Answer], targets: Sequence[Target]
) -> Trust:
    """Ask for what the chosen check needs, and collect what is known of every map."""
    check = chosen_check(page)
    pairs = tuple((answer, answer.target or targets[0]) for answer in found)
    runner_up = _runner_up(subject, targets)
    results: list[Any] = []
    jobs: dict[int, tuple[str, Job]] = {}  # by identity: maps share their random orders
    for answer, target in pairs:
        result, job = _result(check, subject, answer, target, runner_up, ask=True)
        results.append(result)
        if job is not None:
            jobs.setdefault(id(job), (f"{TITLES[check]} of {answer.method.title}", job))
    measured = tuple(_measured(subject, answer, target, runner_up) for answer, target in pairs)
    return Trust(check, subject, pairs, runner_up, tuple(results), measured, tuple(jobs.values()))


def chosen_check(page: Page) -> Check:
    """The check that the reader looks at."""
    check: Check = getattr(current(), page).evidence.check
    return check


def _runner_up(subject: evidence_cache.Subject, targets: Sequence[Target]) -> Target | None:
    """The most probable class beside the explained one; None where the target is no class, or two are shown."""
    prediction = cached.prediction(subject.traced)
    kinds = ("class_logit", "class_probability")
    if prediction is None or len(targets) != 1 or targets[0].kind not in kinds:
        return None
    explained = targets[0].key[1]
    others = [index for _, _, index in prediction.best(2) if index != explained]
    probability = targets[0].kind == "class_probability"
    return class_target(others[0], prediction, probability=probability) if others else None


# What the checks ask for -------------------------------------------------------------------------------------------


def _result(
    check: Check,
    subject: evidence_cache.Subject,
    answer: Answer,
    target: Target,
    runner_up: Target | None,
    *,
    ask: bool,
) -> tuple[Any, Job | None]:
    """What a check found of a map, or the job that has not ended; neither where nobody has asked, or nothing can be.

    Args:
        ask: start what has not been started.
    """
    match check:
        case "agreement":
            return None, None
        case "class":
            return _other_map(subject, answer, runner_up, ask=ask)
        case "faithfulness":
            return _faithfulness(subject, answer, target, ask=ask)
        case "stability":
            return _of_job(
                subject, _named(check, answer, target), _stability(subject, answer, target), ask=ask
            )
        case "model":
            return _of_job(subject, _named(check, answer, target), _model(subject, answer), ask=ask)


def _named(check: Check, answer: Answer, target: Target) -> tuple[Hashable, ...]:
    return check, answer.method.key, target.key, answer.options


def _of_job(
    subject: evidence_cache.Subject,
    what: tuple[Hashable, ...],
    work: Callable[[Progress], Any],
    *,
    ask: bool,
) -> tuple[Any, Job | None]:
    job: Job | None
    if ask:
        job = evidence_cache.measured(subject, what, work)
    else:
        job = evidence_cache.jobs().find(evidence_cache.measurement_key(subject, what))
    if job is None or job.state != "ready":
        return None, job
    return job.answer, None


def _faithfulness(
    subject: evidence_cache.Subject, answer: Answer, target: Target, *, ask: bool
) -> tuple[Faithfulness | None, Job | None]:
    """Of a map; the random orders of its target, which all maps share, come first."""
    from analysis.evidence.faithfulness import faithfulness, random_curves

    def at_random(progress: Progress) -> Chance:
        return random_curves(subject.run, target, progress=progress)

    chance, job = _of_job(subject, ("chance", target.key), at_random, ask=ask)
    if chance is None:
        return None, job

    def by_the_map(progress: Progress) -> Faithfulness:
        return faithfulness(subject.run, target, answer.explanation, chance=chance, progress=progress)

    return _of_job(subject, _named("faithfulness", answer, target), by_the_map, ask=ask)


def _stability(
    subject: evidence_cache.Subject, answer: Answer, target: Target
) -> Callable[[Progress], tuple[float, float | None]]:
    """Infidelity, and the sensitivity of a picture's map; that of a text is not defined."""
    from analysis.evidence.robustness import infidelity, sensitivity

    def work(progress: Progress) -> tuple[float, float | None]:
        picture = subject.run.inputs.grid is not None
        share = 0.5 if picture else 1.0
        missed = infidelity(
            subject.run, target, answer.explanation, progress=lambda done: progress(share * done)
        )
        if not picture:
            return missed, None
        again = _maker(answer)
        return missed, sensitivity(subject.run, again, progress=lambda done: progress(0.5 + 0.5 * done))

    return work


def _model(subject: evidence_cache.Subject, answer: Answer) -> Callable[[Progress], ModelSensitivity]:
    from analysis.evidence.sanity import model_sensitivity

    return lambda progress: model_sensitivity(subject.run, _maker(answer), progress=progress)


def _maker(answer: Answer) -> Callable[[ForwardPass], Explanation]:
    """The method of an answer, for another pass."""
    from analysis.evidence.methods import explain

    return lambda run: explain(answer.method.key, run, answer.target, **dict(answer.options))


def _other_map(
    subject: evidence_cache.Subject, answer: Answer, runner_up: Target | None, *, ask: bool
) -> tuple[Explanation | None, Job | None]:
    """The method's map for the runner-up: at once where that does not take long, else where it was asked for."""
    if runner_up is None or not answer.method.uses_target:
        return None, None
    if answer.method.cost == "shared" and not evidence_cache.takes_long(subject):
        found = evidence_cache.explained(
            subject.key,
            answer.method.key,
            runner_up.key,
            answer.options,
            _run=subject.run,
            _target=runner_up,
        )
        return found, None
    key = evidence_cache.job_key(subject, answer.method.key, runner_up, answer.options)
    job: Job | None
    if ask:
        job = evidence_cache.requested(subject, answer.method.key, runner_up, answer.options)
    else:
        job = evidence_cache.jobs().find(key)
    return (job.answer, None) if job is not None and job.state == "ready" else (None, job)


# What stands under each map ----------------------------------------------------------------------------------------


def _measured(
    subject: evidence_cache.Subject, answer: Answer, target: Target, runner_up: Target | None
) -> Measured:
    """Whatever has been measured of a map, also under a check that is not looked at now."""
    facts: list[str] = []
    warnings: list[str] = []
    other, _ = _result("class", subject, answer, target, runner_up, ask=False)
    if other is not None and runner_up is not None:
        told, warning = evidence_tools.dependence(
            answer.explanation.scores, other.scores, f"that for the runner-up, {runner_up.label}"
        )
        facts.append(told)
        warnings.append(warning)
    faithful, _ = _result("faithfulness", subject, answer, target, runner_up, ask=False)
    if faithful is not None:
        facts.append(faithful.statement)
    stable, _ = _result("stability", subject, answer, target, runner_up, ask=False)
    if stable is not None:
        facts.append(_stability_in_words(*stable))
    cascade, _ = _result("model", subject, answer, target, runner_up, ask=False)
    if cascade is not None:
        last = cascade.stages[-1].correlation
        facts.append(f"With random weights it correlates {signed_number(last)} with the true map.")
        warnings.append(cascade.warning)
    return Measured(tuple(facts), " ".join(filter(None, warnings)))


def _stability_in_words(missed: float, changed: float | None) -> str:
    told = f"Infidelity {signed_number(missed)}"
    return f"{told}." if changed is None else f"{told}, sensitivity {signed_number(changed)}."


# The section under the maps ----------------------------------------------------------------------------------------


def show(page: Page, trust: Trust) -> None:
    """The checks, the chosen one's explanation, and what it found."""
    with st.container(key=f"{page}_evidence_trust"):
        with st.container(horizontal=True, vertical_alignment="center", key=f"{page}_evidence_trust_head"):
            st.html('<div class="as-heading">How far to trust them</div>', width="content")
            _check_choice(page, trust)
        note(EXPLAINED[trust.check])
        if trust.jobs:
            evidence_tools.progress(page, trust.jobs, of="trust")
        _DRAWN[trust.check](page, trust)


def _check_choice(page: Page, trust: Trust) -> None:
    key = f"{page}_evidence_check"

    def picked() -> None:
        choose_evidence(page, check=st.session_state[key])

    st.segmented_control(
        "Check",
        get_args(Check),
        **bound(key, trust.check, default="default"),
        on_change=picked,
        format_func=TITLES.__getitem__,
        required=True,
        label_visibility="collapsed",
        help="Agreement is read off the maps; the other checks run the model many times",
    )


def _agreement(page: Page, trust: Trust) -> None:
    from analysis.evidence.faithfulness import agreement

    first = trust.answers[0][1]
    kept = [answer for answer, target in trust.answers if target is first]
    if len(kept) < 2:
        note("Choose two methods or more to compare them.")
        return
    table = agreement([answer.explanation for answer in kept])
    names = [answer.method.title for answer in kept]
    square_table(names, table)
    rows = [(name, *(f"{value:.4f}" for value in row)) for name, row in zip(names, table, strict=True)]
    _download(page, trust, ("method", *names), rows)


def _class(page: Page, trust: Trust) -> None:
    from analysis.evidence.faithfulness import ClassSensitivity

    if trust.runner_up is None:
        note(
            "There is no second class to compare with: the target is no single class, or two classes are shown."
        )
        return
    rows = []
    for (answer, _), other in zip(trust.answers, trust.results, strict=True):
        if not answer.method.uses_target:
            rows.append((answer.method.title, "1.00", "It ignores the class by construction."))
        elif other is not None:
            told = _correlation(answer.explanation, other)
            rows.append((answer.method.title, signed_number(told), ClassSensitivity(told).warning))
    _table(page, trust, ("Method", f"Correlation with the map for {trust.runner_up.label}", ""), rows)


def _correlation(one: Explanation, other: Explanation) -> float:
    from analysis.evidence.faithfulness import rank_correlation

    return rank_correlation(one.scores, other.scores)


def _faithful(page: Page, trust: Trust) -> None:
    known = [
        (answer, target, found)
        for (answer, target), found in zip(trust.answers, trust.results, strict=True)
        if found is not None
    ]
    if not known:
        return
    several = len({target.label for _, target, _ in known}) > 1
    names = [f"{a.method.title} · {t.label}" if several else a.method.title for a, t, _ in known]
    header = ("Map", "Deletion", "Insertion", "Comprehensiveness", "Sufficiency", "Verdict")
    rows = [
        (name, *(f"{value:.3g}" for value in _areas(found)), found.verdict)
        for name, (_, _, found) in zip(names, known, strict=True)
    ]
    chance = known[0][2].chance
    at_random = [
        " ± ".join(f"{value:.3g}" for value in chance.area(side)) for side in ("deletion", "insertion")
    ]
    if not several:
        rows.append((f"{len(chance.deletion)} random orders", *at_random, "", "", ""))
    first = known[0][1]
    shown = [(name, found) for name, (_, target, found) in zip(names, known, strict=True) if target is first]
    figure = charts.faithfulness_chart(
        [name for name, _ in shown], [found for _, found in shown], first.label
    )
    _chart(page, "faithfulness", figure, "Curves of deletion and insertion beside random orders")
    _table(page, trust, header, rows)


def _areas(found: Faithfulness) -> tuple[float, float, float, float]:
    return found.deletion.area, found.insertion.area, found.comprehensiveness, found.sufficiency


def _stable(page: Page, trust: Trust) -> None:
    known = [
        (a, found) for (a, _), found in zip(trust.answers, trust.results, strict=True) if found is not None
    ]
    rows = [
        (
            answer.method.title,
            signed_number(missed),
            "not defined for a text" if changed is None else signed_number(changed),
        )
        for answer, (missed, changed) in known
    ]
    if rows:
        _table(page, trust, ("Method", "Infidelity", "Sensitivity"), rows)


def _random_weights(page: Page, trust: Trust) -> None:
    known = [
        (a, found) for (a, _), found in zip(trust.answers, trust.results, strict=True) if found is not None
    ]
    if not known:
        return
    names = [answer.method.title for answer, _ in known]
    figure = charts.cascade_chart(names, [found for _, found in known])
    _chart(page, "model", figure, "Correlation with the true map while weights become random")
    stages = [stage.part or "none" for stage in known[0][1].stages]
    rows = [
        (name, *(signed_number(stage.correlation) for stage in found.stages))
        for name, (_, found) in zip(names, known, strict=True)
    ]
    _download(page, trust, ("method", *stages), rows)


_DRAWN: dict[Check, Callable[[Page, Trust], None]] = {
    "agreement": _agreement,
    "class": _class,
    "faithfulness": _faithful,
    "stability": _stable,
    "model": _random_weights,
}


def _chart(page: Page, name: str, figure: Any, alt: str) -> None:
    st.plotly_chart(
        figure,
        key=f"{page}_evidence_trust_{name}",
        theme=None,
        width="content",
        config={
            "displaylogo": False,
            "modeBarButtons": [["toImage"]],
            "toImageButtonOptions": {"format": "svg", "filename": f"attnscope-{name}"},
        },
        alt=alt,
    )


def _table(page: Page, trust: Trust, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    small_table(header, rows)
    _download(page, trust, header, rows)


def _download(page: Page, trust: Trust, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    st.download_button(
        "Table as CSV",
        data=lambda: table_file(trust, header, rows),
        file_name=f"attnscope-{trust.check}.csv",
        mime="text/csv",
        key=f"{page}_evidence_trust_csv",
        on_click="ignore",
        help="The numbers of this check; what stands under each map is in the exports of the board too",
    )


def table_file(trust: Trust, header: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """A table as CSV, with what it was measured on as comments."""
    model = trust.subject.traced.model
    targets = dict.fromkeys(target.label for _, target in trust.answers)
    comments = (
        f"AttnScope, {TITLES[trust.check]}: {EXPLAINED[trust.check]}",
        f"model {model.name}, revision {model.revision}; input {trust.subject.traced.inputs.digest}",
        f"target: {'; '.join(targets)}",
        *(" ".join(f"{name} {version}" for name, version in software().items()),),
    )
    lines = [f"# {visible_text(comment)}" for comment in comments]
    lines += [",".join(map(csv_cell, row)) for row in (header, *rows)]
    return ("\n".join(lines) + "\n").encode()
