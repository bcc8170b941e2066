"""Other attention for the page's own input: candidates, what the model says with them, and what that shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.figure_data import AttentionContrast, Floats
from analysis.visible import visible_text
from analysis.visible_contrast import BY_HAND
from dashboard import adversarial_cache, cached, check_charts, figures, long_runs
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.components.contrast_views import attention_contrast, contrast_state
from dashboard.contrast_payload import attention_contrast_payload
from dashboard.evidence_jobs import Job
from dashboard.frame import heading, note, signed_number, small_table
from dashboard.long_runs import Offered
from dashboard.provenance import heads_fact
from dashboard.selection import choose_adversarial
from dashboard.views import evidence_tools
from dashboard.views.adversarial_source import Board

if TYPE_CHECKING:
    from analysis.adversarial.agreement import Agreement
    from analysis.adversarial.candidates import Candidates, Named
    from analysis.adversarial.permutation import Permutations
    from analysis.adversarial.rows import FreeRows
    from analysis.adversarial.search import Adversaries

MOST_LABELS = 40
"""Numbers of an answer that are told of a model with very many, such as a vocabulary."""

AGREEMENT_WORDS: Mapping[str, str] = {"gradient": "gradients", "leave_one_out": "leave one out"}


@dataclass(frozen=True)
class Checks:
    """What there is so far of one input.

    Attributes:
        jobs: (title, job) of what has not ended well.
        offered: what takes long and has not been started.
    """

    rows: FreeRows
    found: Adversaries | None
    permuted: Permutations | None
    agreement: Mapping[str, Agreement]
    jobs: tuple[tuple[str, Job], ...]
    offered: tuple[Offered, ...]


def show(board: Board, choices: AdversarialChoices) -> AttentionContrast | None:
    """Draw the part; returns the record of what is on the screen, None while there is nothing."""
    page, traced = board.page, board.traced
    place = board.place(choices)
    what = (place and (tuple(place.heads.items()), place.queries, place.kind), choices.others)
    key = cached.digest(traced.key, repr(what))
    view_place = st.container(key=f"{page}_adversarial_view")
    try:
        rows = adversarial_cache.rows(key, place, choices.others, _traced=traced)
    except Exception as error:  # noqa: BLE001 - told; other rows can be chosen above
        evidence_tools.tell_refusals([("Adversarial attention", error)])
        return None
    passes = adversarial_cache.answer_passes(traced, place, choices.others)
    checks = _checks(board, choices, rows, what, passes)
    candidates = _candidates(board, choices, checks, key, passes)
    view = _record(board, choices, checks, candidates)
    if rows.measure.kind == "embedding" and traced.model.task == "masked-lm":
        note(
            "Without a mask in the text its embedding is compared; put the mask token in to compare the word there."
        )
    with view_place:
        evidence_tools.progress(page, checks.jobs, of="adversarial")
        long_runs.offers(checks.offered)
        _draw(board, view, key)
    _beside(board, choices, checks)
    return view


def _checks(board: Board, choices: AdversarialChoices, rows: FreeRows, what: Any, passes: float) -> Checks:
    from analysis.adversarial.search import exact_refusal

    traced = board.traced
    single = int(rows.inside.sum(-1).max()) < 2
    search = choices.search if exact_refusal(rows) else "exact"
    asked = {} if single else {
        "Permutations": adversarial_cache.permuted(traced, what, rows, passes=passes),
        "Adversarial attention": adversarial_cache.searched(
            traced, what, rows, epsilon=choices.epsilon, search=search, passes=passes
        ),
        "Agreement": adversarial_cache.agreement(traced, what, rows),
    }  # fmt: skip
    running = {title: each for title, each in asked.items() if not isinstance(each, Offered)}
    results = {title: each.result for title, each in running.items()}
    return Checks(
        rows,
        results.get("Adversarial attention"),
        results.get("Permutations"),
        results.get("Agreement") or {},
        tuple((title, each.job) for title, each in running.items() if each.job.state != "ready"),
        tuple(each for each in asked.values() if isinstance(each, Offered)),
    )


def _candidates(
    board: Board, choices: AdversarialChoices, checks: Checks, key: str, passes: float
) -> Candidates:
    """Everything that there is an answer for, in the order of the chips."""
    from analysis.adversarial.candidates import adversaries, by_hand, edits, typical_permutation

    rows, found = checks.rows, checks.found
    named: list[Named] = []
    if found is not None:
        name = "farthest" if found.method == "exact" else "adversarial"
        named += adversaries(found, name=name)
    named += edits(rows)
    if checks.permuted is not None:
        named.append(typical_permutation(checks.permuted))
    if choices.weights is not None and choices.input == _input_key(board, rows):
        import torch

        named.append(by_hand(rows, torch.tensor(choices.weights)))
    state = (
        choices.epsilon,
        found and (found.method, found.steps),
        checks.permuted is not None,
        named[-1][0] == BY_HAND and choices.weights,
    )
    whole = cached.digest(key, repr(state))
    return adversarial_cache.compared(whole, _traced=board.traced, _rows=rows, _named=named, passes=passes)


def _input_key(board: Board, rows: FreeRows) -> str:
    return cached.digest(board.traced.key, str(rows.observed.shape[-1]), board.part)


# The record ---------------------------------------------------------------------------------------------------------


def _record(
    board: Board, choices: AdversarialChoices, checks: Checks, found: Candidates
) -> AttentionContrast:
    rows = checks.rows
    inputs = board.traced.inputs
    labels, outputs = _answers(board, rows, found)
    names = list(found.names)
    shown = names.index(choices.candidate) if choices.candidate in names else min(1, len(names) - 1)
    weights = found.weights.mean(1).float().cpu().numpy()
    if BY_HAND in names and choices.weights is not None:
        weights[names.index(BY_HAND)] = choices.weights  # as set: a row that sees less has them in proportion
    decoder = None
    if rows.decoder is not None and rows.observed.shape[1] == 1:
        decoder = rows.decoder[0].float().cpu().numpy()
    grid = inputs.grid
    return AttentionContrast(
        weights=weights,
        names=found.names,
        outputs=outputs,
        labels=labels,
        jsd=found.divergence.float().cpu().numpy(),
        change=found.change.float().cpu().numpy(),
        jsd_bound=float(rows.bound()[0]),
        epsilon=choices.epsilon,
        tokens=board.keys,
        picture=inputs.picture if board.picture else None,
        grid=None if grid is None or not board.picture else (grid.rows, grid.columns),
        prefix=0 if grid is None else grid.prefix_tokens,
        shown=shown,
        decoder=decoder,
        rows=rows.observed.shape[1],
        change_name=rows.measure.name,
        change_bound=rows.measure.bound,
        title=_title(board, choices),
        verdict=_verdict(board, choices, checks, found),
        held=rows.held,
        direction=board.direction,
        source=board.traced.key,
        permuted=None if checks.permuted is None else checks.permuted.change[0].float().cpu().numpy(),
    )


def _title(board: Board, choices: AdversarialChoices) -> str:
    if board.recurrent:
        return "The attention of the learned query"
    place = board.place(choices)
    assert place is not None
    layers = list(place.heads)
    words = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
    heads = place.heads[layers[0]]
    count = "its head" if board.heads == 1 else heads_fact(heads, board.heads)
    if place.queries is None:
        return f"{words.capitalize()}, {count}, all rows"
    (query,) = place.queries
    whose = board.queried[query].text if board.queried else _patch_name(board, query)
    return f"{words.capitalize()}, {count}, the row of {whose}"


def _patch_name(board: Board, query: int) -> str:
    grid = board.traced.inputs.grid
    if grid is None:
        return f"position {query}"
    if query < grid.prefix_tokens:
        return "CLS" if query == 0 else f"prefix token {query}"
    row, column = divmod(query - grid.prefix_tokens, grid.columns)
    return f"patch ({row}, {column})"


def _answers(board: Board, rows: FreeRows, found: Candidates) -> tuple[tuple[str, ...], Floats]:
    """Names and numbers of the answers; of very many the highest of any candidate."""
    answers = found.answers.float().cpu()
    kind = rows.measure.kind
    if kind == "embedding":
        import torch

        likeness = torch.nn.functional.cosine_similarity(answers, answers[:1], dim=-1)
        return ("cosine to the observed answer",), likeness[:, None].numpy()
    labels: Sequence[str] = rows.measure.labels
    if kind != "token":
        return tuple(labels), answers.numpy()
    best = answers.topk(min(5, answers.shape[1]), dim=-1).indices.flatten().tolist()
    chosen = list(dict.fromkeys(best))[:MOST_LABELS]
    tokenizer = board.traced.model.processor
    words = (visible_text(tokenizer.decode([index]).strip()) for index in chosen)
    names = tuple(word or f"token {index}" for word, index in zip(words, chosen, strict=True))
    return names, answers[:, chosen].numpy()


def _verdict(board: Board, choices: AdversarialChoices, checks: Checks, found: Candidates) -> tuple[str, ...]:
    from analysis.adversarial.candidates import UNIFORM
    from analysis.adversarial.verdict import Findings, verdict

    rows, searched, permuted = checks.rows, checks.found, checks.permuted
    place = found.names.index(UNIFORM)
    classes = found.answers.argmax(-1)
    pairs = {name: (float(each.tau[0]), float(each.p[0])) for name, each in checks.agreement.items()}
    return verdict(
        Findings(
            change_name=rows.measure.name,
            epsilon=choices.epsilon,
            bound=float(rows.bound()[0]),
            farthest=None if searched is None else float(searched.farthest[0]),
            exact=searched is not None and searched.method == "exact",
            converged=searched is None or bool(searched.converged[0]),
            permuted=None if permuted is None else float(permuted.median[0]),
            most_permuted=None if permuted is None else float(permuted.change[0].max()),
            uniform=float(found.change[place]),
            flips=rows.measure.kind in ("classes", "token") and int(classes[place]) != int(classes[0]),
            gradient=pairs.get("gradient"),
            leave_one_out=pairs.get("leave_one_out"),
            positions=int(rows.inside.sum(-1).max()),
        )
    )


# Drawing ------------------------------------------------------------------------------------------------------------


def _draw(board: Board, view: AttentionContrast, key: str) -> None:
    payload = cached.payload(
        key,
        ("contrast", view.names, view.shown, view.epsilon, view.verdict, view.weights.tobytes()),
        lambda: attention_contrast_payload(view),
    )
    header, _ = figures.read_header(payload)
    mount = f"{board.page}_attention_contrast"
    attention_contrast(payload, key=mount, on_change=partial(_said, board, header, mount, view.names))


def _said(board: Board, header: Mapping[str, Any], mount: str, names: tuple[str, ...]) -> None:
    said = contrast_state(header, key=mount)
    changes: dict[str, Any] = {}
    if "weights" in said:
        changes |= {
            "weights": tuple(said["weights"]),
            "input": cached.digest(board.traced.key, str(len(said["weights"])), board.part),
            "candidate": BY_HAND,
        }
    if "shown" in said:
        changes["candidate"] = names[said["shown"]]
    if changes:
        choose_adversarial(board.page, **changes)


def _beside(board: Board, choices: AdversarialChoices, checks: Checks) -> None:
    """The permutation plot and the agreement figures, side by side."""
    permuted, agreement = checks.permuted, checks.agreement
    if permuted is None and not agreement:
        return
    left, right = st.columns(2, gap="medium")
    with left:
        if permuted is not None:
            heading(
                "Permuted attention",
                "The same weights in 100 random orders (Jain & Wallace 2019, section 4.2.1)",
            )
            st.plotly_chart(
                check_charts.permutations_of_one_chart(
                    permuted.change[0].float().cpu().numpy(), choices.epsilon, name=checks.rows.measure.name
                ),
                key=f"{board.page}_adversarial_permutations",
                theme=None,
                config={"displayModeBar": False},
                alt="Change of the answer under 100 permutations of the attention weights",
            )
    with right:
        if agreement:
            heading(
                "Agreement", "Kendall's τ of attention with other measures (Jain & Wallace 2019, section 4.1)"
            )
            small_table(
                ("Attention ranked like", "Kendall τ", "p", ""),
                [
                    (
                        AGREEMENT_WORDS[name],
                        signed_number(float(each.tau[0])),
                        "–" if each.p[0].isnan() else f"{float(each.p[0]):.2g}".replace("-", "−"),
                        "significant" if float(each.p[0]) < 0.05 else "",
                    )
                    for name, each in agreement.items()
                ],
            )
        if checks.found is not None:
            _search_facts(checks.found)


def _search_facts(found: Adversaries) -> None:
    heading("Search")
    if found.method == "exact":
        note(
            "The answer of two classes moves with one weighted mean, so the farthest attention within ε has weight "
            "on one or two positions; all of them were tried."
        )
        return
    words = "never left the answers within ε" if found.method == "projected" else "the paper's penalty"
    rest = (
        "It had come to rest."
        if bool(found.converged[0])
        else "It had not come to rest: more steps may find more."
    )
    note(f"{found.weights.shape[1]} starts, {found.steps} steps, {words}. {rest}")
