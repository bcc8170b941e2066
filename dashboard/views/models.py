"""The Models page: what is bundled, what is loaded, and whether looking inside changes a model's answers."""

from __future__ import annotations

from functools import partial

import streamlit as st

from analysis.trained import OFFERED, OfferedModel, is_ready
from analysis.translators import TRANSLATORS
from dashboard import cached
from dashboard.boundary import page_boundary, tell_error
from dashboard.frame import heading, literal, note, notes, polled, small_table, title_line
from dashboard.provenance import software
from dashboard.waiting import POLL_SECONDS

KIND_WORDS = {"text": "text", "image": "image"}
PARITY_KEY = "models_parity"


def bundled_table() -> None:
    """The catalogue."""
    heading("Bundled models")
    rows = [
        (
            model.title,
            KIND_WORDS[model.modality],
            model.licence,
            f"{model.size / 1e6:.0f} MB" if model.size else "no files of its own",
            model.origin,
            _state(model),
        )
        for model in (*OFFERED, *TRANSLATORS)
    ]
    small_table(("Model", "Kind", "Licence", "Size", "From", "State"), rows)
    for model in (*OFFERED, *TRANSLATORS):
        with st.expander(literal(model.title), key=f"models_about_{model.name}"):
            note(model.description)
            small_table(
                ("", ""),
                [
                    ("Citation", model.citation),
                    ("Source", model.source),
                    ("SHA-256", model.sha256),
                ],
            )


def _state(model: OfferedModel) -> str:
    if model in TRANSLATORS:
        return "installed: open the Lab"
    job = cached.loader().find(model.name)
    if job is not None:
        words = {"running": f"loading: {job.stage}", "ready": f"loaded in {job.seconds:.1f} s"}
        return words.get(job.state, "could not be loaded")
    return "installed" if is_ready(model) else "not installed: run make bundled"


def loaded_models() -> None:
    """Details of each loaded model, and its parity figure."""
    ready = cached.loader().ready()
    running = [job for job in cached.loader().jobs() if job.state == "running"]
    if running:
        polled(
            partial(note, "A model is being loaded …"),
            partial(_has_ended, len(running)),
            seconds=POLL_SECONDS,
        )
    heading("Loaded models")
    if not ready:
        note("None yet. A model is loaded when the Text or Image page asks for it.")
    columns = st.columns(2)
    for index, request in enumerate(ready):
        shared = cached.model_if_ready(*request)
        if shared is not None:
            with columns[index % 2]:
                _details(shared)


def _has_ended(running: int) -> bool:
    """Whether a load has ended."""
    return sum(job.state == "running" for job in cached.loader().jobs()) != running


def _details(shared: cached.SharedModel) -> None:
    from analysis.models import describe  # brings torch, which is there when a model is

    model = shared.model
    with st.container(border=True):
        title_line([model.title, model.family, f"{model.parameters / 1e6:.1f} M parameters"])
        small_table(("", ""), [row for row in describe(model) if row[0] not in ("title", "note")])
        notes(model.notes)
        _parity(shared)


def _parity(shared: cached.SharedModel) -> None:
    """The largest difference that capturing makes to the model's outputs, measured when asked."""
    key = "_".join((PARITY_KEY, *(part or "" for part in shared.request)))
    asked = st.session_state.setdefault(PARITY_KEY, set())
    if key not in asked:
        st.button(
            "Compare a captured pass with a plain one",
            key=key,
            on_click=partial(asked.add, key),
            help="Runs one input twice, with and without capture, and tells the largest difference of the outputs.",
        )
        return
    try:
        found = cached.parity(*shared.request)
    except Exception as error:  # noqa: BLE001 - told on the page
        tell_error(error, what="The two passes could not be compared")
        return
    small_table(
        ("Output", "Largest difference, captured − plain"),
        [(output, f"{difference:.3g}") for output, difference in found.items()],
    )
    note(
        "0 means that the maps are those of exactly the computation that the model does without us. Layers of more "
        "than 4 million weights may be computed by this program's own kernel where that is quicker: the same but for "
        "rounding."
    )


def program() -> None:
    """Versions and limits."""
    heading("Program")
    rows = [(name, version) for name, version in software().items()]
    rows += [(f"Limit: {what}", value) for what, value in cached.budgets()]
    rows.append(("Device of the models", f"{cached.device_setting()} ({cached.DEVICE_VARIABLE})"))
    small_table(("", ""), rows)


with page_boundary("This page could not be shown"):
    bundled_table()
    loaded_models()
    program()
