"""The large area of the Image page: title, tools, one view, export. One fragment, as on the Text page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    Figure,
    HeadEffects,
    HeadGrid,
    Provenance,
    TradeOff,
)
from analysis.visible import spread
from dashboard import cached
from dashboard.boundary import page_boundary, tell_error
from dashboard.evidence_jobs import Pending
from dashboard.export_menu import export_menu
from dashboard.frame import Badge, notes, title_line, views, waiting_view
from dashboard.live import image_source
from dashboard.prediction_line import prediction_line
from dashboard.provenance import (
    adversarial_provenance,
    evidence_provenance,
    heads_provenance,
    layer_in_words,
    provenance,
)
from dashboard.selection import (
    ImageChoices,
    choose,
    clamped_image,
    current,
    focus_head,
    take_notes,
    to_query,
    write_link,
)
from dashboard.sidebar import picture_bytes
from dashboard.sources import ImageSource
from dashboard.views import (
    image_adversarial,
    image_attention,
    image_evidence,
    image_heads,
    image_model,
    image_rollout,
)
from dashboard.waiting import title_of

if TYPE_CHECKING:
    from analysis.predictions import Prediction

VIEW_WORDS = {
    "attention": "Attention",
    "model": "Model view",
    "rollout": "Rollout",
    "evidence": "Evidence",
    "heads": "Heads",
    "adversarial": "Adversarial",
}
LAST_GOOD = "image_last_good"


@dataclass(frozen=True)
class View:
    """A view's two halves: its tools, and the drawing that returns the record of what is shown."""

    tools: Callable[[ImageSource, ImageChoices], None]
    show: Callable[[ImageSource, ImageChoices], Figure | None]


VIEWS: Mapping[str, View] = {
    "attention": View(image_attention.tools, image_attention.show),
    "model": View(image_model.tools, image_model.show),
    "rollout": View(image_rollout.tools, image_rollout.show),
    "evidence": View(image_evidence.tools, image_evidence.show),
    "heads": View(image_heads.tools, image_heads.show),
    "adversarial": View(image_adversarial.tools, image_adversarial.show),
}


@dataclass(frozen=True)
class Shown:
    """A source and what the page says of it."""

    source: ImageSource
    model: str
    revision: str
    input: str
    badges: tuple[Badge, ...]
    notes: tuple[str, ...]
    prediction: Prediction | None = None


def workspace() -> None:
    """Draw the area for the current selection."""
    with page_boundary():
        choices = current().image
        for sentence in take_notes(keep=cached.model_if_ready(*choices.model.request) is None):
            st.info(sentence, icon=":material/info:")
        try:
            shown = opened(choices)
        except Pending as pending:
            _while_it_runs(choices, pending)
            return
        if shown is None:
            title_line([title_of(choices.model)])
            waiting_view("The view appears here as soon as the model is ready.")
            return
        fitted = fit(shown.source, choices)
        _title(shown, fitted)
        prediction_line(shown.prediction, key="image")
        view = VIEWS[fitted.view]
        with st.container(horizontal=True, vertical_alignment="center", key="image_tools"):
            _views(fitted)
            view.tools(shown.source, fitted)
            export_place = st.container(key="image_export_place", width="content")
        figure = None
        try:
            figure = view.show(shown.source, fitted)
        except Pending as pending:  # the page around it stays, and its link
            pending.show()
        if figure is not None:
            with export_place:
                record = _provenance(shown, fitted, figure)
                export_menu(
                    figure,
                    record,
                    key=f"image_{fitted.view}_export",
                    name=choices.model.name,
                    query=to_query(current(), "image"),
                )
        notes(shown.notes)
        write_link("image")


def _views(choices: ImageChoices) -> None:
    views(list(VIEW_WORDS), choices.view, key="image_view", on_change=_view_picked, words=VIEW_WORDS)


def _while_it_runs(choices: ImageChoices, pending: Pending) -> None:
    """The page around a forward pass that runs, or waits to be started: it serves whichever view is chosen."""
    shared = cached.model_if_ready(*choices.model.request)
    assert shared is not None, "there is no pass without a model"
    title_line([shared.model.title, *_sizes_before(choices, shared)])
    with st.container(horizontal=True, vertical_alignment="center", key="image_tools"):
        _views(choices)
    pending.show()
    write_link("image")


def _sizes_before(choices: ImageChoices, shared: cached.SharedModel) -> tuple[str, ...]:
    """Pixels and patches of a picture that has not been through the model; () where only the model knows them."""
    from analysis.inputs import SHORTER_SIDE, grid_at

    if not shared.model.flexible_image_size:
        return ()
    digest, name, data = picture_bytes(choices.input)
    side = SHORTER_SIDE if choices.input.side is None else choices.input.side
    grid = grid_at(shared.model, cached.picture(digest, name, _data=data), side)
    return f"{grid.width:,} × {grid.height:,} px", f"{grid.rows} × {grid.columns} patches"


def opened(choices: ImageChoices) -> Shown | None:
    """The source of the chosen model and picture; the example while the model loads; None when neither is there."""
    shared = cached.model_if_ready(*choices.model.request)
    if shared is None:
        example = cached.example().image
        if not example.answers(choices):
            return None
        return Shown(example, title_of(choices.model), example.revision, example.sample, (), example.notes)
    try:
        shown = _live(choices)
    except Exception as error:  # noqa: BLE001 - told, and the last good view stays
        return _last_good(choices, error)
    st.session_state[LAST_GOOD] = choices
    return shown


def _live(choices: ImageChoices) -> Shown:
    digest, name, data = picture_bytes(choices.input)
    picture = cached.picture(digest, name, _data=data)
    model, side = choices.model, choices.input.side
    traced = cached.traced_picture(
        model.name, model.revision, digest, side, _picture=picture, numbers=model.numbers
    )
    # the picture's own notes are among the inputs'
    told = (*traced.model.notes, *traced.inputs.notes, *traced.trace.notes)
    source = image_source(traced)
    told = (*cached.streamed_notes(source.maps), *told)
    words = f"{name} (SHA-256 {picture.sha256})"
    return Shown(
        source, traced.model.title, traced.model.revision, words, (), told, cached.prediction(traced)
    )


def _last_good(choices: ImageChoices, error: Exception) -> Shown | None:
    """Tell the error above what was shown before it."""
    tell_error(error, what="This picture could not be shown")
    before = st.session_state.get(LAST_GOOD)
    if before is None or (before.input, before.model) == (choices.input, choices.model):
        return None
    st.caption("Below: what was shown before.")
    return _live(replace(choices, input=before.input, model=before.model))


def fit(source: ImageSource, choices: ImageChoices) -> ImageChoices:
    """The choices fitted to what is there; kept, so that a link beyond the end shows the last layer and says so."""
    first, heads = source.grids[0], source.heads[min(choices.layer, source.layers - 1)]
    fitted = clamped_image(choices, layers=source.layers, heads=heads, rows=first.rows, columns=first.columns)
    if fitted != choices:
        names = ("layer", "heads", "patch", "rollout_layer")
        choose("image", **{name: getattr(fitted, name) for name in names})
        if fitted.layer != choices.layer:
            st.info(
                f"This model has layers 0 to {source.layers - 1}; layer {choices.layer} was changed to the last."
            )
    return fitted


def _title(shown: Shown, choices: ImageChoices) -> None:
    source = shown.source
    height, width = source.picture.shape[:2]
    own = (source.grids[choices.layer],) if choices.view == "attention" else source.grids
    sizes = dict.fromkeys(f"{grid.rows} × {grid.columns}" for grid in own)
    facts = [shown.model, f"{width:,} × {height:,} px", f"{', '.join(sizes)} patches"]
    if choices.view == "attention":
        facts.append(f"layer {choices.layer}")
        count = source.heads[choices.layer]
        heads = {"all": f"all {count} heads", "mean": f"mean of {count} heads"}
        facts.append(heads.get(choices.aggregation, f"head {focus_head(choices)}"))
    elif choices.view != "evidence":
        facts.append(f"{source.layers} layers × {spread(source.heads)} heads")
    title_line(facts, shown.badges)


def _view_picked() -> None:
    choose("image", view=st.session_state["image_view"])


def _provenance(shown: Shown, choices: ImageChoices, figure: Figure) -> Provenance:
    if isinstance(figure, EvidenceMaps):
        return evidence_provenance(
            figure,
            shown.model,
            shown.revision,
            shown.input,
            shown.notes,
            layers=shown.source.layers,
            options=choices.evidence.options,
        )
    if isinstance(figure, HeadGrid):
        return heads_provenance(
            figure, shown.model, shown.revision, shown.input, shown.notes, choices=choices.patterns
        )
    if isinstance(figure, AttentionContrast | CheckedSet | HeadEffects | TradeOff):
        return adversarial_provenance(
            figure, shown.model, shown.revision, shown.input, shown.notes, choices=choices.adversarial
        )
    source = shown.source
    everything = choices.view != "attention"
    last = source.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    layer = layer_in_words(None if everything else choices.layer, source.layers)
    count = spread(source.heads) if everything else str(source.heads[choices.layer])
    heads, aggregation, method = f"all {count}", "none", "attention weights"
    if not everything and choices.aggregation == "head":
        heads = str(focus_head(choices))
    elif not everything and choices.aggregation == "mean":
        aggregation = f"mean of {count} heads"
    if choices.view == "rollout":
        layer = f"0 to {last} of 0–{source.layers - 1}"
        aggregation = f"{choices.fusion} of {count} heads"
        method = "attention rollout (Abnar & Zuidema 2020)"
    place = 0 if everything else choices.layer
    settings: dict[str, object] = {"from": image_attention.source_in_words(source, choices, place)}
    if choices.patch is not None and len(set(source.grids)) > 1:
        settings["patch of"] = "the first layer" if everything else f"layer {choices.layer}"
    if choices.view == "rollout":
        settings["discard ratio"] = choices.discard_ratio
    return provenance(
        model=shown.model,
        revision=shown.revision,
        input=shown.input,
        layer=layer,
        heads=heads,
        aggregation=aggregation,
        method=method,
        settings=settings,
        notes=shown.notes,
    )
