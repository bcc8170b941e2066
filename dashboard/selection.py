"""What the user has chosen: one frozen record, kept in the session and mirrored in the address bar.

Widgets and components write into the record (``choose``), every view reads it (``current``). Nothing else holds a
choice: the state of a widget is dropped by Streamlit when its page is left, the record stays, so changing a page
loses nothing. Layers, heads, tokens and patches are counted from 0, on the screen, in links and in files.

What comes from a link is untrusted: ``from_query`` takes only well-formed values and tells what it left out;
``clamped`` then fits the choices to the model and the input that are really there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import streamlit as st

from analysis.figure_data import ColourMapName
from analysis.pairs import PairFilter
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES
from analysis.trained import OFFERED, has_preview
from dashboard.adversarial_choices import (
    ADVERSARIAL_PARAMETERS,
    AdversarialChoices,
    adversarial_params,
    read_adversarial,
)
from dashboard.evidence_choices import EVIDENCE_PARAMETERS, EvidenceChoices, evidence_params, read_evidence
from dashboard.heads_choices import HEADS_PARAMETERS, HeadsChoices, heads_params, read_heads
from dashboard.lab_choices import LabChoices, Section, lab_params, read_lab
from dashboard.scale_choices import ScaleChoices, read_scale, scale_params
from dashboard.warmup import ModelRequest, Numbers

Page = Literal["text", "image", "lab", "scale", "models"]
TextView = Literal["head", "model", "matrix", "rollout", "evidence", "heads", "adversarial"]
ImageView = Literal["attention", "model", "rollout", "evidence", "heads", "adversarial"]
Part = Literal["encoder", "decoder", "cross"]
Aggregation = Literal["head", "mean", "all"]
Fusion = Literal["mean", "max", "min"]
Side = Literal["left", "right"]
PictureSide = int | Literal["own"] | None
"""As ``analysis.inputs.PictureSide``, which needs torch."""

LINK_VERSION = "1"
LINK_TEXT_CHARACTERS = 200
"""A typed text goes into the address bar up to this length; a longer one, or an uploaded file, stays out of links."""

MEMORY_MIB = 256
"""What one answer may take unless somebody says otherwise, as ``attn_core.budget`` has it."""

MEMORY_CHOICES = (16, 64, 256, 1024, 4096, 16384)
"""What a link, or the sidebar, may ask for, in MiB."""

LONGEST_SIDE = 2048
"""Longest short side of a picture, in pixels, that a link may ask for."""

MODEL_CHARACTERS = 120
DEFAULT_MODELS: Mapping[str, str] = {
    modality: next(model.name for model in OFFERED if model.modality == modality)
    for modality in ("text", "image")
}

_PLACES: Mapping[str, Mapping[str, Any]] = {
    "text": {"pinned": None, "zoom": None, "cell": None, "window": 0},
    "image": {"patch": None},
}
"""What names a place in one input and means nothing in another."""

_RECORD_KEY = "selection"
_LINK_KEY = "selection_link"
_NUMBER = re.compile(r"\d{1,5}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_FOLDER = re.compile(r"folder:[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class ModelChoice:
    """A model by name: a bundled name, a Hub id, or ``folder:<name>`` below the folder that the server's owner set.

    Attributes:
        asked: a link named it and the user has not agreed to load it yet (it may be a download).
        numbers: what it computes in.
    """

    name: str
    revision: str | None = None
    asked: bool = False
    numbers: Numbers = "auto"

    @property
    def request(self) -> ModelRequest:
        """What the loader is asked for."""
        return ModelRequest(self.name, self.revision, self.numbers)

    @property
    def bundled(self) -> bool:
        """Whether it is one of the models that come with the program."""
        return any(model.name == self.name for model in OFFERED)


@dataclass(frozen=True)
class TextInput:
    """A sentence, or a pair; for an encoder–decoder model the second text is what the decoder reads."""

    text: str
    pair: str | None = None
    kind: Literal["sample", "typed", "upload"] = "typed"
    name: str = ""
    """Sample id, or the uploaded file's name."""


@dataclass(frozen=True)
class TextReading:
    """How a text that is longer than a model takes is read (``analysis.reading``).

    Attributes:
        how: ``whole`` at once where the model takes it, else in windows; ``windows`` in any case; ``first`` what fits
            and no more; ``alone`` one window of the document as a text of its own.
        window: most tokens at once, special ones included; None is the model's limit.
        stride: tokens between the beginnings of two windows; None is half of what a window holds.
        alone: the window that is shown alone, from 0.
    """

    how: Literal["whole", "windows", "first", "alone"] = "whole"
    window: int | None = None
    stride: int | None = None
    alone: int = 0


@dataclass(frozen=True)
class PictureInput:
    """A sample photograph or an uploaded picture (its bytes are kept beside the record, by digest)."""

    kind: Literal["sample", "upload"] = "sample"
    name: str = ""
    """Sample id, or the uploaded file's name."""
    digest: str = ""
    side: PictureSide = 224
    """Short side in pixels that the model sees, or the picture's own size, for models that take any size."""


@dataclass(frozen=True)
class TextChoices:
    """Everything chosen on the Text page."""

    model: ModelChoice
    input: TextInput
    reading: TextReading = field(default_factory=TextReading)
    view: TextView = "head"
    open_in: Literal["head", "matrix"] = "head"
    """The view that a thumbnail opens in: the one of the two that was shown last."""
    part: Part = "encoder"
    layer: int = 0
    heads: tuple[int, ...] | None = None
    """Heads whose lines are drawn, ascending; None means all. The first is the one that one-head views show."""
    aggregation: Literal["head", "mean"] = "head"
    pinned: tuple[Side, int] | None = None
    pair_filter: PairFilter = "all"
    threshold: float = 0.0
    hide_special: bool = False
    merge_words: bool = False
    fusion: Fusion = "mean"
    discard_ratio: float = 0.0
    rollout_layer: int | None = None
    """Last layer that a rollout goes through; None is the model's last."""
    rollout_shows: Literal["row", "matrix"] = "row"
    special_in_scale: bool = False
    """Whether special tokens, which take most of a rollout, count for the end of its colour scale."""
    zoom: tuple[int, int, int, int] | None = None
    cell: tuple[int, int] | None = None
    """Cell of a matrix whose exact value is shown."""
    colour_scale: Literal["linear", "sqrt"] = "linear"
    window: int = 0
    """First token of the part that the head view shows of a long text."""
    colour_map: ColourMapName = "viridis"
    shared_scale: bool = False
    evidence: EvidenceChoices = field(default_factory=EvidenceChoices)
    patterns: HeadsChoices = field(default_factory=HeadsChoices)
    """Of the Heads view."""
    adversarial: AdversarialChoices = field(default_factory=AdversarialChoices)


@dataclass(frozen=True)
class ImageChoices:
    """Everything chosen on the Image page."""

    model: ModelChoice
    input: PictureInput
    view: ImageView = "attention"
    layer: int = 0
    heads: tuple[int, ...] | None = None
    """The first is the one that a one-head view shows; None is head 0."""
    aggregation: Aggregation = "all"
    patch: tuple[int, int] | None = None
    """(row, column) of the patch whose row is shown; None is CLS, or the mean row of a model without CLS."""
    fusion: Fusion = "mean"
    discard_ratio: float = 0.0
    rollout_layer: int | None = None
    opacity: float = 0.6
    smooth: bool = False
    shared_scale: bool = True
    shared_thumbnails: bool = False
    colour_map: ColourMapName = "viridis"
    evidence: EvidenceChoices = field(default_factory=EvidenceChoices)
    patterns: HeadsChoices = field(default_factory=HeadsChoices)
    """Of the Heads view."""
    adversarial: AdversarialChoices = field(default_factory=AdversarialChoices)


def active_heads(choices: TextChoices | ImageChoices, heads: int) -> tuple[int, ...]:
    """The chosen heads of a layer that has ``heads`` of them."""
    return tuple(range(heads)) if choices.heads is None else choices.heads


def focus_head(choices: TextChoices | ImageChoices) -> int:
    """The head that a view of one head shows."""
    return choices.heads[0] if choices.heads else 0


@dataclass(frozen=True)
class Selection:
    """All choices of a session."""

    text: TextChoices
    image: ImageChoices
    lab: LabChoices = field(default_factory=LabChoices)
    scale: ScaleChoices = field(default_factory=ScaleChoices)
    memory_mib: int = MEMORY_MIB
    """What one answer may take, in MiB; a map that is larger is read in tiles."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a link asked for and did not get, in plain sentences."""


def default_selection() -> Selection:
    """The selection that a new session starts with: the bundled models on their first samples."""
    sentence, picture = TEXT_SAMPLES[0], PICTURE_SAMPLES[0]
    return Selection(
        text=TextChoices(
            model=ModelChoice(DEFAULT_MODELS["text"]),
            input=TextInput(sentence.text, sentence.pair, "sample", sentence.id),
            layer=1,
            heads=(2, 4, 8),  # two tokens back, two on, and the next one: patterns that are seen at once
        ),
        image=ImageChoices(
            model=ModelChoice(DEFAULT_MODELS["image"]), input=PictureInput(name=picture.id), layer=11
        ),
    )


# In the session ------------------------------------------------------------------------------------------------


def current() -> Selection:
    """The session's selection."""
    if _RECORD_KEY not in st.session_state:
        st.session_state[_RECORD_KEY] = default_selection()
    return st.session_state[_RECORD_KEY]


def choose(page: Literal["text", "image"], **changes: Any) -> None:
    """Change choices of one page.

    A new model or input keeps the layer and the heads (``clamped`` fits them) but drops what named a place in the
    old input: the pinned token or patch, the zoom, the window. A new model also drops the classes that are explained.
    To agree to a link's model is no new model, nor is it one in other numbers.
    """
    selection = current()
    choices = getattr(selection, page)
    before = {"model": choices.model, "input": choices.input, "part": getattr(choices, "part", None)}
    if "model" in changes:
        before["model"] = replace(
            choices.model, asked=changes["model"].asked, numbers=changes["model"].numbers
        )
    if isinstance(choices, TextChoices):
        before["reading"] = choices.reading
        if any(name in changes and changes[name] != before[name] for name in ("model", "input")):
            changes = {"reading": TextReading(), **changes}  # another text has other windows
    if any(name in changes and changes[name] != value for name, value in before.items()):
        changes = {**_PLACES[page], "evidence": _carried_over(choices, changes), **changes}
    st.session_state[_RECORD_KEY] = replace(selection, **{page: replace(choices, **changes)})


def _carried_over(choices: TextChoices | ImageChoices, changes: Mapping[str, Any]) -> EvidenceChoices:
    """What stays of the Evidence view with a new input, or with a new model, whose classes are others."""
    kept = replace(choices.evidence, position=None, token=None)
    same = changes.get("model", choices.model).name == choices.model.name
    return kept if same else replace(kept, target=None, rather=None, beside=None)


def choose_evidence(page: Literal["text", "image"], **changes: Any) -> None:
    """Change choices of a page's Evidence view."""
    before = getattr(current(), page).evidence
    choose(page, evidence=replace(before, **changes))


def choose_patterns(page: Literal["text", "image"], **changes: Any) -> None:
    """Change choices of a page's Heads view."""
    before = getattr(current(), page).patterns
    choose(page, patterns=replace(before, **changes))


def choose_adversarial(page: Literal["text", "image"], **changes: Any) -> None:
    """Change choices of a page's Adversarial view."""
    before = getattr(current(), page).adversarial
    choose(page, adversarial=replace(before, **changes))


def choose_memory(memory_mib: int) -> None:
    """Change what one answer may take."""
    st.session_state[_RECORD_KEY] = replace(current(), memory_mib=memory_mib)


def choose_lab(**changes: Any) -> None:
    """Change the section of the Lab, or the sentence that sections share."""
    selection = current()
    st.session_state[_RECORD_KEY] = replace(selection, lab=replace(selection.lab, **changes))


def choose_in_section(section: Section, **changes: Any) -> None:
    """Change choices of one section of the Lab."""
    choose_lab(**{section: replace(getattr(current().lab, section), **changes)})


def choose_scale(**changes: Any) -> None:
    """Change choices of the Scale page."""
    selection = current()
    st.session_state[_RECORD_KEY] = replace(selection, scale=replace(selection.scale, **changes))


def follow(params: Mapping[str, str], page: Page) -> None:
    """Take over a link's choices inside the session."""
    st.session_state[_RECORD_KEY] = from_query(params, current(), page)


def tell(*notes: str) -> None:
    """Keep sentences for the next page to show."""
    selection = current()
    fresh = tuple(note for note in notes if note not in selection.notes)
    st.session_state[_RECORD_KEY] = replace(selection, notes=selection.notes + fresh)


def take_notes(*, keep: bool = False) -> tuple[str, ...]:
    """The sentences kept by ``tell``, once.

    Args:
        keep: for a page that will run again by itself, before anybody has read them.
    """
    selection = current()
    if not keep:
        st.session_state[_RECORD_KEY] = replace(selection, notes=())
    return selection.notes


def bound(key: str, value: Any, *, default: str = "value", start: Any = None) -> dict[str, Any]:
    """Arguments of the widget with this key that give it the value of the selection, before the widget is made.

    The value is written only where it differs: rewriting an equal one would throw a fast user's slider back. Else it
    is the widget's default: a browser may put the widget up only in a later run than the one that wrote it, and would
    send any other default back as what the user has chosen.

    Args:
        default: name of the widget's argument for it.
        start: what this argument takes; None for the value itself.
    """
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
        return {"key": key}
    return {"key": key, default: value if start is None else start}


def bound_choice(
    key: str, value: Any, options: Sequence[Any], words: Callable[[Any], str] | None = None
) -> dict[str, Any]:
    """``bound`` of a select box.

    Args:
        words: what an option is called, where that may change ("49 windows" becomes "96 windows"): a browser holds
            the words of what is chosen, not its place, and would go on showing them, and send them back as if the
            user had chosen what there no longer is. New words of the chosen option are sent as a new value.
    """
    if words is not None:
        held, told = f"{key} is called", (value, words(value))
        before = st.session_state.get(held, told)
        st.session_state[held] = told
        if before != told and before[0] == value:
            st.session_state[key] = value
            return {"key": key}
    return bound(key, value, default="index", start=list(options).index(value))


def page_of(url_path: str) -> Page:
    """The page that an address names; the default page's address is empty."""
    return next((page for page in get_args(Page) if page == url_path), "text")


# In the address bar ----------------------------------------------------------------------------------------------


def read_link(page: Page) -> None:
    """Take over what the address bar says, when it says something that this session did not write there itself."""
    params = {name: st.query_params[name] for name in st.query_params}
    written = st.session_state.get(_LINK_KEY, {})
    if not params or params in written.values():
        return
    st.session_state[_RECORD_KEY] = from_query(params, current(), page)
    st.session_state[_LINK_KEY] = {**written, page: params}


def write_link(page: Page) -> None:
    """Put the selection into the address bar."""
    params = to_query(current(), page)
    if params != {name: st.query_params[name] for name in st.query_params}:
        st.query_params.from_dict(params)
    written = dict(st.session_state.get(_LINK_KEY, {}))
    st.session_state[_LINK_KEY] = {**written, page: params}


def to_query(selection: Selection, page: Page) -> dict[str, str]:
    """The parameters of a link that reopens the view, plain strings."""
    if page == "models":
        return {}
    if page == "lab":
        return {"v": LINK_VERSION} | lab_params(selection.lab)
    if page == "scale":
        return {"v": LINK_VERSION} | scale_params(selection.scale)
    choices = selection.text if page == "text" else selection.image
    params = {"v": LINK_VERSION, "model": choices.model.name}
    if choices.model.revision:
        params["rev"] = choices.model.revision
    if choices.model.numbers != "auto":
        params["numbers"] = choices.model.numbers
    if choices.input.kind == "sample":
        params["sample"] = choices.input.name
    params |= _text_params(selection.text) if page == "text" else _image_params(selection.image)
    params |= {"view": choices.view, "layer": str(choices.layer)}
    if choices.view == "evidence":
        params |= evidence_params(choices.evidence, examples=_sample_ids(page))
    if choices.view == "heads":
        params |= heads_params(choices.patterns)
    if choices.view == "adversarial":
        params |= adversarial_params(choices.adversarial)
    if selection.memory_mib != MEMORY_MIB:
        params["memory"] = str(selection.memory_mib)
    heads = "all" if choices.heads is None else ",".join(map(str, choices.heads)) or "none"
    return params | {"head": heads if choices.aggregation == "head" else choices.aggregation}


def from_query(params: Mapping[str, str], selection: Selection, page: Page) -> Selection:
    """The selection with the choices of a link.

    Args:
        params: the address's parameters; absent ones leave their choice as it is.
        selection: what to start from.
        page: the page that the link opens.
    Returns:
        the new selection; its ``notes`` name what was not understood and so left out.
    """
    if page == "models":
        return selection
    if params.get("v", LINK_VERSION) != LINK_VERSION:
        note = "The link is of another version of this program; its choices were left out."
        return replace(selection, notes=(*selection.notes, note))
    bad: list[str] = []
    if page == "lab":
        lab, left_out = read_lab(selection.lab, params)
        return replace(selection, notes=selection.notes + _left_out(left_out), lab=lab)
    if page == "scale":
        scale, left_out = read_scale(params)
        return replace(selection, notes=selection.notes + _left_out(left_out), scale=scale)
    readers = _TEXT_READERS if page == "text" else _IMAGE_READERS
    choices: Any = getattr(selection, page)
    for name, value in params.items():
        if name == "v":
            continue
        if name == "memory" and _number(value) in MEMORY_CHOICES:
            selection = replace(selection, memory_mib=int(value))
            continue
        reader = readers.get(name)
        changed = reader(choices, value, params) if reader else None
        if changed is None:
            bad.append(name)
        else:
            choices = changed
    return replace(selection, notes=selection.notes + _left_out(bad), **{page: choices})


def _left_out(names: Sequence[str]) -> tuple[str, ...]:
    """What a reader is told of parameters that were not understood."""
    if not names:
        return ()
    listed = ", ".join(sorted(names)[:8])
    return (f"The link holds values that are not understood and were left out: {listed}.",)


def _text_params(choices: TextChoices) -> dict[str, str]:
    params = {}
    texts = (choices.input.text, choices.input.pair or "")
    if choices.input.kind == "typed" and sum(map(len, texts)) <= LINK_TEXT_CHARACTERS:
        params["t"] = texts[0]
        if choices.input.pair is not None:
            params["t2"] = texts[1]
    if choices.part != "encoder":
        params["part"] = choices.part
    if choices.pinned is not None:
        params["token"] = ("" if choices.pinned[0] == "left" else "r") + str(choices.pinned[1])
    return params


def _image_params(choices: ImageChoices) -> dict[str, str]:
    params = {}
    if choices.input.side is not None:
        params["side"] = str(choices.input.side)
    if choices.patch is not None:
        params["patch"] = f"{choices.patch[0]},{choices.patch[1]}"
    return params


def _sample_ids(page: Page) -> tuple[str, ...]:
    return tuple(sample.id for sample in (TEXT_SAMPLES if page == "text" else PICTURE_SAMPLES))


def model_name_problem(name: str) -> str | None:
    """Why a model's name cannot be taken, in one sentence, or None.

    Names are bundled names, ids of the model hub, or folders below the one that the server's owner opened. A path
    or an address is none of these: the server reads no file and fetches no page that a user names.
    """
    if len(name) > MODEL_CHARACTERS:
        return "The name is too long for a model's name."
    if "://" in name or name.lower().startswith(("http:", "https:", "www.")):
        return "Addresses are not fetched; write the model's id alone, such as google-bert/bert-base-uncased."
    if name.startswith(("/", "~", ".")) or ".." in name or "\\" in name:
        return "Paths on the server are not opened; write a model's id such as google-bert/bert-base-uncased."
    if not (_HUB_NAME.fullmatch(name) or _FOLDER.fullmatch(name)):
        return (
            "This is not a model's id; write it as organisation/model, such as google-bert/bert-base-uncased."
        )
    return None


def revision_problem(revision: str) -> str | None:
    """Why a revision cannot be taken, or None."""
    if _REVISION.fullmatch(revision) and ".." not in revision:
        return None
    return "A revision is a branch, a tag or a commit: letters, digits, dots, dashes and slashes."


# One reader a parameter: (choices, value, all parameters) -> new choices, or None when the value is not understood.


def _read_model(choices: Any, value: str, params: Mapping[str, str]) -> Any:
    if model_name_problem(value) is not None:
        return None
    revision = params.get("rev")
    if revision is not None and revision_problem(revision) is not None:
        revision = None
    previewed = params.get("numbers") == "bfloat16" and has_preview(value)
    numbers: Numbers = "bfloat16" if previewed else "auto"
    known = value == choices.model.name and revision == choices.model.revision and not choices.model.asked
    if known:
        return replace(choices, model=replace(choices.model, numbers=numbers))
    model = ModelChoice(value, revision, numbers=numbers)
    modality = "text" if isinstance(choices, TextChoices) else "image"
    if any(offered.name == value and offered.modality != modality for offered in OFFERED):
        return None
    return replace(choices, model=replace(model, asked=not model.bundled or revision is not None))


def _read_revision(choices: Any, value: str, params: Mapping[str, str]) -> Any:
    return choices if revision_problem(value) is None and "model" in params else None


def _read_numbers(choices: Any, value: str, params: Mapping[str, str]) -> Any:
    """Read with the model; a processor that has no bfloat16 would compute a preview slowly."""
    return choices if value == "bfloat16" and "model" in params and has_preview(params["model"]) else None


def _read_text_sample(choices: TextChoices, value: str, _: Mapping[str, str]) -> TextChoices | None:
    sample = next((sample for sample in TEXT_SAMPLES if sample.id == value), None)
    if sample is None:
        return None
    return replace(choices, input=TextInput(sample.text, sample.pair, "sample", sample.id))


def _read_typed(choices: TextChoices, value: str, params: Mapping[str, str]) -> TextChoices | None:
    pair = params.get("t2")
    if "sample" in params or len(value) + len(pair or "") > LINK_TEXT_CHARACTERS:
        return None
    return replace(choices, input=TextInput(value, pair))


def _read_second(choices: TextChoices, _: str, params: Mapping[str, str]) -> TextChoices | None:
    return choices if "t" in params else None


def _read_picture_sample(choices: ImageChoices, value: str, _: Mapping[str, str]) -> ImageChoices | None:
    if all(sample.id != value for sample in PICTURE_SAMPLES):
        return None
    return replace(choices, input=PictureInput(name=value, side=choices.input.side))


def _read_side(choices: ImageChoices, value: str, _: Mapping[str, str]) -> ImageChoices | None:
    side: PictureSide = "own" if value == "own" else _number(value)
    if side is None or (side != "own" and not 14 <= side <= LONGEST_SIDE):
        return None
    return replace(choices, input=replace(choices.input, side=side))


def _read_layer(choices: Any, value: str, _: Mapping[str, str]) -> Any:
    layer = _number(value)
    return None if layer is None else replace(choices, layer=layer)


def _read_heads(choices: Any, value: str, _: Mapping[str, str]) -> Any:
    if value == "mean":
        return replace(choices, aggregation="mean")
    if value == "all":
        text = isinstance(choices, TextChoices)
        return replace(choices, heads=None, aggregation="head" if text else "all")
    if value == "none" and isinstance(choices, TextChoices):
        return replace(choices, heads=(), aggregation="head")
    heads = [_number(part) for part in value.split(",")]
    if not heads or len(heads) > 256 or None in heads:
        return None
    return replace(
        choices, heads=tuple(sorted({head for head in heads if head is not None})), aggregation="head"
    )


def _read_token(choices: TextChoices, value: str, _: Mapping[str, str]) -> TextChoices | None:
    index = _number(value.removeprefix("r"))
    if index is None:
        return None
    return replace(choices, pinned=("right" if value.startswith("r") else "left", index))


def _read_patch(choices: ImageChoices, value: str, _: Mapping[str, str]) -> ImageChoices | None:
    numbers = [_number(part) for part in value.split(",")]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return replace(choices, patch=(numbers[0], numbers[1]))


def _read_one_of(name: str, allowed: tuple[str, ...]) -> Any:
    def read(choices: Any, value: str, _: Mapping[str, str]) -> Any:
        return replace(choices, **{name: value}) if value in allowed else None

    return read


def _read_evidence_as(name: str, page: Page) -> Any:
    def read(choices: Any, value: str, _: Mapping[str, str]) -> Any:
        evidence = read_evidence(choices.evidence, name, value, examples=_sample_ids(page))
        return None if evidence is None else replace(choices, evidence=evidence)

    return read


def _read_heads_as(name: str) -> Any:
    def read(choices: Any, value: str, _: Mapping[str, str]) -> Any:
        patterns = read_heads(choices.patterns, name, value)
        return None if patterns is None else replace(choices, patterns=patterns)

    return read


def _read_adversarial_as(name: str) -> Any:
    def read(choices: Any, value: str, _: Mapping[str, str]) -> Any:
        found = read_adversarial(choices.adversarial, name, value)
        return None if found is None else replace(choices, adversarial=found)

    return read


def _number(value: str) -> int | None:
    return int(value) if _NUMBER.fullmatch(value) and value.isascii() else None


_SHARED_READERS = {
    "model": _read_model,
    "rev": _read_revision,
    "numbers": _read_numbers,
    "layer": _read_layer,
    "head": _read_heads,
}
_TEXT_READERS: Mapping[str, Any] = {
    **_SHARED_READERS,
    "sample": _read_text_sample,
    "t": _read_typed,
    "t2": _read_second,
    "token": _read_token,
    "view": _read_one_of("view", get_args(TextView)),
    "part": _read_one_of("part", get_args(Part)),
    **{name: _read_evidence_as(name, "text") for name in EVIDENCE_PARAMETERS},
    **{name: _read_heads_as(name) for name in HEADS_PARAMETERS},
    **{name: _read_adversarial_as(name) for name in ADVERSARIAL_PARAMETERS},
}
_IMAGE_READERS: Mapping[str, Any] = {
    **_SHARED_READERS,
    "sample": _read_picture_sample,
    "side": _read_side,
    "patch": _read_patch,
    "view": _read_one_of("view", get_args(ImageView)),
    **{name: _read_evidence_as(name, "image") for name in EVIDENCE_PARAMETERS},
    **{name: _read_heads_as(name) for name in HEADS_PARAMETERS},
    **{name: _read_adversarial_as(name) for name in ADVERSARIAL_PARAMETERS},
}


# Fitting to what is there -----------------------------------------------------------------------------------------


def clamped_text(choices: TextChoices, *, layers: int, heads: int, queries: int, keys: int) -> TextChoices:
    """The choices fitted to a model and an input: what lies beyond the end becomes the last, or is dropped.

    Args:
        layers, heads: of the part that is shown.
        queries, keys: tokens on the left and on the right.
    """
    limits = {"left": queries, "right": keys}
    pinned = choices.pinned if choices.pinned and choices.pinned[1] < limits[choices.pinned[0]] else None
    zoom = choices.zoom
    if zoom is not None and (zoom[1] > queries or zoom[3] > keys):
        zoom = None
    rollout_layer = choices.rollout_layer
    return replace(
        choices,
        layer=min(choices.layer, layers - 1),
        heads=_clamped_heads(choices.heads, heads),
        pinned=pinned,
        zoom=zoom,
        cell=choices.cell if choices.cell and choices.cell[0] < queries and choices.cell[1] < keys else None,
        window=choices.window if choices.window < max(queries, keys) else 0,
        rollout_layer=None if rollout_layer is None or rollout_layer >= layers else rollout_layer,
    )


def clamped_image(choices: ImageChoices, *, layers: int, heads: int, rows: int, columns: int) -> ImageChoices:
    """The choices fitted to a model and a picture of ``rows`` × ``columns`` patches."""
    patch = choices.patch
    if patch is not None and (patch[0] >= rows or patch[1] >= columns):
        patch = None
    rollout_layer = choices.rollout_layer
    return replace(
        choices,
        layer=min(choices.layer, layers - 1),
        heads=_clamped_heads(choices.heads, heads),
        patch=patch,
        rollout_layer=None if rollout_layer is None or rollout_layer >= layers else rollout_layer,
    )


def _clamped_heads(chosen: tuple[int, ...] | None, heads: int) -> tuple[int, ...] | None:
    if not chosen:
        return chosen
    kept = tuple(head for head in chosen if head < heads)
    if len(kept) == heads:
        return None
    return kept or (heads - 1,)
