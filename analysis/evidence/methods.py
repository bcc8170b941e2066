"""Every method by name: what it needs, what it claims, what it cannot show, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal

from analysis.evidence.attention import (
    attention,
    attention_flow,
    default_row,
    gradient_rollout,
    rollout_row_map,
    self_attention_of,
)
from analysis.evidence.cdam import cdam, integrated_cdam, smooth_cdam
from analysis.evidence.explanation import Explanation
from analysis.evidence.gradcam import attention_gradcam, gradcam
from analysis.evidence.gradients import (
    default_window,
    input_x_gradient,
    integrated_gradients,
    occlusion,
    saliency,
    smooth_grad,
)
from analysis.evidence.passes import ForwardPass, Layer
from analysis.evidence.perturbation import (
    PICTURE_FILLS,
    TEXT_FILLS,
    leave_one_out,
    resolved,
    stand_in_token,
    word_parts,
)
from analysis.evidence.relevance import relevance
from analysis.evidence.targets import Target
from attn_core.errors import UnsupportedModelError

Progress = Callable[[float], None]
"""Told how much is done, 0 to 1; what it raises stops the method and comes out of it."""

Cost = Literal["shared", "passes"]

Value = str | int | float
"""Of an option."""

OptionKind = Literal["choice", "integer", "number", "layer", "head"]


def _as_declared(option: Option, _: ForwardPass) -> Option | None:
    return option


@dataclass(frozen=True)
class Option:
    """What may be chosen of a method; ``options_of`` fits it to a model and an input.

    Attributes:
        key: keyword of the method's function.
        title: for readers.
        kind: "choice" of ``values``; "integer", "number", "layer" and "head" lie between ``lowest`` and ``highest``.
        default: what the function takes without it; None leaves it to the function.
        help: one sentence.
        told: what a reader sees of a value that is not the default, {} standing for it.
        values: (value, words) of a choice.
        step: between the numbers that a control offers.
        fit: (option, run) → the option for that run, None where there is nothing to choose.
    """

    key: str
    title: str
    kind: OptionKind
    default: Value | None
    help: str
    told: str = "{}"
    values: tuple[tuple[Value | None, str], ...] = ()
    lowest: float = 0
    highest: float = 0
    step: float = 1
    fit: Callable[[Option, ForwardPass], Option | None] = field(
        default=_as_declared, compare=False, repr=False
    )

    def words(self, value: Value | None) -> str:
        """What a reader sees of a value in a list of them."""
        return dict(self.values).get(value) or (f"{value:g}" if isinstance(value, float) else str(value))

    def accepted(self, value: Value | None) -> Value | None:
        """The value as the function takes it; None where it is the default or none that may be chosen."""
        found = _ACCEPTED[self.kind](self, value)
        return None if found == self.default else found


def _one_of(option: Option, value: Value | None) -> Value | None:
    return next((known for known, _ in option.values if known == value), None)


def _whole(option: Option, value: Value | None) -> Value | None:
    return value if isinstance(value, int) and option.lowest <= value <= option.highest else None


def _number(option: Option, value: Value | None) -> Value | None:
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return None
    return round(float(value), 4) if option.lowest <= value <= option.highest else None


_ACCEPTED: Mapping[OptionKind, Callable[[Option, Value | None], Value | None]] = MappingProxyType(
    {"choice": _one_of, "integer": _whole, "layer": _whole, "head": _whole, "number": _number}
)


@dataclass(frozen=True)
class Method:
    """A way to explain.

    Attributes:
        key, title: for programs and for readers.
        function: (run, target, **options) → Explanation; a method that ignores the target takes the run alone.
        uses_target: whether its answer depends on what is explained.
        signed: whether it can show evidence against the target.
        cost: "shared": from the one forward and backward pass; "passes": many passes of its own, with progress.
        claims: one sentence: what a high score means.
        cannot: one sentence: what it cannot show.
        source: paper and section.
        options: what may be chosen of it.
        gradients: of a method of one pass: whose it asks for, those down to its ``layer`` or of all layers.
        walks: what it takes beside these, in passes over the weights of every layer that carry a row.
    """

    key: str
    title: str
    function: Callable[..., Explanation]
    uses_target: bool
    signed: bool
    cost: Cost
    claims: str
    cannot: str
    source: str
    options: tuple[Option, ...] = ()
    gradients: Literal["none", "layer", "all"] = "none"
    walks: float = 0.0

    @property
    def tells_progress(self) -> bool:
        """Whether it takes so many passes that it says how far it is, and can be stopped."""
        return "progress" in signature(self.function).parameters


# Options -----------------------------------------------------------------------------------------------------------


def _where_tokens(option: Option, run: ForwardPass) -> Option | None:
    return option if run.tokens else None


def _where_attention(option: Option, run: ForwardPass) -> Option | None:
    return option if _attention_layers(run) else None


def _last_layer(option: Option, count: int) -> Option | None:
    return replace(option, default=count - 1, highest=count - 1) if count > 1 else None


def _token_layer(option: Option, run: ForwardPass) -> Option | None:
    return _last_layer(option, len(run.tokens))


def _attention_layer(option: Option, run: ForwardPass) -> Option | None:
    return _last_layer(option, len(_attention_layers(run)))


def _first_layer(option: Option, run: ForwardPass) -> Option | None:
    count = len(_attention_layers(run))
    return replace(option, highest=count - 1) if count > 1 else None


def _head(option: Option, run: ForwardPass) -> Option | None:
    """Heads of the layer that has most; a layer that lacks the chosen one refuses."""
    count = max((layer.map.heads for layer in _attention_layers(run)), default=0)
    return replace(option, highest=count - 1, values=((None, f"mean of {count}"),)) if count > 1 else None


def _row(option: Option, run: ForwardPass) -> Option | None:
    """The first row is CLS's only where a special token or prefix stands first."""
    if not _attention_layers(run):
        return None
    grid, tokens = run.inputs.grid, run.inputs.tokens or ()
    special = bool(grid.prefix_tokens) if grid is not None else bool(tokens and tokens[0].special)
    first = "CLS row" if special else "first row"
    return replace(option, values=tuple((v, first if v == "first" else words) for v, words in option.values))


def _own_row(option: Option, run: ForwardPass) -> Option | None:
    """Without a target the row is known: the default is one of the two."""
    fitted = _row(option, run)
    return None if fitted is None else replace(fitted, default=str(default_row(run)))


def _fill(option: Option, run: ForwardPass) -> Option:
    """What can stand in place of a part of this input; the default is known by its own name."""
    text = run.inputs.grid is None
    known = {*(TEXT_FILLS if text else PICTURE_FILLS), *(("remove",) if text else ())}
    known -= {kind for kind in ("mask", "pad") if stand_in_token(run.model, kind) is None}
    return replace(
        option,
        default=resolved(run, "default", "options_of: default"),
        values=tuple((kind, words) for kind, words in option.values if kind in known),
    )


def _window(option: Option, run: ForwardPass) -> Option | None:
    grid = run.inputs.grid
    most = len(word_parts(run)) if grid is None else min(grid.rows, grid.columns)
    return replace(option, default=default_window(run), highest=most) if most > 1 else None


def _attention_layers(run: ForwardPass) -> tuple[Layer, ...]:
    """Layers in which the input's positions attend to each other; () where there are none."""
    try:
        return self_attention_of(run, "options_of")
    except UnsupportedModelError:
        return ()


_TOKEN_LAYER = Option(
    "layer",
    "Layer",
    "layer",
    -1,
    "Whose attention the scored tokens enter; the last by default.",
    "layer {}",
    fit=_token_layer,
)
_ATTENTION_LAYER = replace(_TOKEN_LAYER, help="Whose attention is looked at.", fit=_attention_layer)
_START_LAYER = Option(
    "start_layer",
    "First layer",
    "layer",
    0,
    "Layers below it are left out.",
    "from layer {}",
    fit=_first_layer,
)
_HEAD = Option("head", "Head", "head", None, "One head, or the mean of all.", "head {}", fit=_head)
_OWN_ROW = Option(
    "row",
    "Row",
    "choice",
    None,
    "From where the input is looked at: one position, or the mean over what you gave.",
    values=(("first", "first row (CLS)"), ("mean", "mean row")),
    fit=_own_row,
)
_ROW = replace(_OWN_ROW, values=((None, "as the target reads"), *_OWN_ROW.values), fit=_row)
_DISCARD = Option(
    "discard_ratio",
    "Discarded",
    "number",
    0.0,
    "Share of each layer's weakest weights that is set to 0.",
    "weakest {} discarded",
    highest=0.99,
    step=0.05,
    fit=_where_attention,
)
_FUSION = Option(
    "fusion",
    "Heads",
    "choice",
    "mean",
    "How heads become one map; the paper takes their mean.",
    "{}",
    values=(("mean", "mean of heads"), ("max", "maximum of heads"), ("min", "minimum of heads")),
    fit=_where_attention,
)
_VARIANT = Option(
    "variant",
    "Variant",
    "choice",
    "gradcam",
    "How gradients weigh the features.",
    "variant {}",
    values=(
        ("gradcam", "GradCAM"),
        ("gradcam++", "GradCAM++"),
        ("hirescam", "HiResCAM"),
        ("elementwise", "element-wise"),
        ("layercam", "LayerCAM"),
        ("xgradcam", "XGradCAM"),
        ("eigencam", "EigenCAM (ignores the target)"),
        ("eigengradcam", "EigenGradCAM"),
    ),
    fit=_where_tokens,
)
_SAMPLES = Option(
    "samples", "Noisy copies", "integer", 50, "More take longer and vary less.", "{} noisy copies", (), 1, 200
)
_LEVEL = Option(
    "level",
    "Noise",
    "number",
    0.05,
    "Standard deviation of the noise, as a share of the range of what it is added to.",
    "noise {}",
    highest=1,
    step=0.05,
)
_SEED = Option(
    "seed",
    "Seed",
    "integer",
    0,
    "Of the noise; another one tells how much hangs on it.",
    "seed {}",
    (),
    0,
    9999,
)
_STEPS = Option(
    "steps", "Steps", "integer", 50, "Points on the way from the empty input.", "{} steps", (), 2, 500
)
_BASELINE = Option(
    "baseline",
    "Empty input",
    "choice",
    "default",
    "What stands where nothing is.",
    "empty input: {}",
    values=(
        ("mask", "mask token"),
        ("pad", "padding token"),
        ("mean", "mean"),
        ("zero", "zero"),
        ("black", "black"),
        ("white", "white"),
        ("blurred", "blurred"),
    ),
    fit=_fill,
)
_REPLACEMENT = replace(
    _BASELINE,
    key="replacement",
    title="In its place",
    help="What stands in place of what is covered or left out.",
    told="in its place: {}",
)
_REMOVAL = replace(_REPLACEMENT, values=(*_REPLACEMENT.values, ("remove", "nothing")))
_WINDOW = Option(
    "window",
    "Window",
    "integer",
    None,
    "Words in a row, or the side of a square of patches, that are covered together.",
    "window of {}",
    (),
    1,
    1,
    fit=_window,
)


# Methods -----------------------------------------------------------------------------------------------------------

_ATTENTION_BLIND = "It is the same for every class, and high attention need not mean influence."
_POSITIVE_ONLY = "It shows no evidence against the target."

GRADIENT_WALK = 2.7
"""How long a pass over weights and their gradients takes, in passes that carry a row (1,025 to 4,097 positions)."""

_ALL = (
    Method(
        "cdam",
        "CDAM",
        cdam,
        uses_target=True,
        signed=True,
        cost="shared",
        claims="The token pushes the target up (or down) through the last attention layer, to first order.",
        cannot="It sees the last layer alone: what lower layers mixed into a token is credited to that token.",
        source="Brocki & Chung 2023, section 3",
        options=(_TOKEN_LAYER,),
        gradients="layer",
    ),
    Method(
        "smooth_cdam",
        "Smooth CDAM",
        smooth_cdam,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="CDAM averaged over noisy copies of the tokens: what holds in the neighbourhood of this input.",
        cannot="The noise is a choice: too much of it drowns the input.",
        source="Brocki & Chung 2023, with Smilkov et al. 2017",
        options=(_TOKEN_LAYER, *(replace(option, fit=_where_tokens) for option in (_SAMPLES, _LEVEL, _SEED))),
    ),
    Method(
        "integrated_cdam",
        "Integrated CDAM",
        integrated_cdam,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="CDAM averaged along the straight path from empty tokens to these.",
        cannot="Its scores do not add up to the target's change, unlike those of Integrated Gradients.",
        source="Brocki & Chung 2023, with Sundararajan et al. 2017",
        options=(_TOKEN_LAYER, replace(_STEPS, fit=_where_tokens)),
    ),
    Method(
        "gradcam",
        "GradCAM",
        gradcam,
        uses_target=True,
        signed=True,
        cost="shared",
        claims="Features that raise the target on average over the input are strong here.",
        cannot="One weight a feature for all tokens: it cannot tell two places with the same feature apart.",
        source="Selvaraju et al. 2017; on transformers as in Gildenblat's pytorch-grad-cam",
        options=(_TOKEN_LAYER, _VARIANT),
        gradients="layer",
    ),
    Method(
        "attention_gradcam",
        "GradCAM on attention",
        attention_gradcam,
        uses_target=True,
        signed=True,
        cost="shared",
        claims="Heads whose attention raises the target on average look here.",
        cannot="One layer alone, and one weight a head.",
        source="Selvaraju et al. 2017 on attention weights, as in Chefer et al. 2021a (baselines)",
        options=(_ATTENTION_LAYER, _ROW),
        gradients="all",
    ),
    Method(
        "relevance",
        "Relevance",
        relevance,
        uses_target=True,
        signed=False,
        cost="shared",
        claims="Attention that raises the target carries this token's content to the answer, through all layers.",
        cannot=_POSITIVE_ONLY,
        source="Chefer, Gur & Wolf 2021, equations 5 to 10",
        options=(_START_LAYER, _ROW),
        gradients="all",
        walks=GRADIENT_WALK,
    ),
    Method(
        "gradient_rollout",
        "Gradient rollout",
        gradient_rollout,
        uses_target=True,
        signed=False,
        cost="shared",
        claims="Attention that raises the target, multiplied through the layers with the residual.",
        cannot=_POSITIVE_ONLY,
        source="Gildenblat 2020 (vit-explain), with the right gradients; Abnar & Zuidema 2020",
        options=(_DISCARD, _START_LAYER, _ROW),
        gradients="all",
        walks=GRADIENT_WALK,
    ),
    Method(
        "rollout",
        "Attention rollout",
        rollout_row_map,
        uses_target=False,
        signed=False,
        cost="shared",
        claims="The token's content can reach the answer through many layers of attention.",
        cannot=_ATTENTION_BLIND,
        source="Abnar & Zuidema 2020, section 3.1",
        options=(_FUSION, _DISCARD, _START_LAYER, _OWN_ROW),
        walks=1.0,
    ),
    Method(
        "attention",
        "Attention",
        attention,
        uses_target=False,
        signed=False,
        cost="shared",
        claims="The answer's position looks at the token in one layer.",
        cannot=_ATTENTION_BLIND,
        source="Vaswani et al. 2017; Caron et al. 2021 for pictures",
        options=(_ATTENTION_LAYER, _HEAD, _OWN_ROW),
    ),
    Method(
        "attention_flow",
        "Attention flow",
        attention_flow,
        uses_target=False,
        signed=False,
        cost="passes",
        claims="As much of the token's content as the narrowest attention on the way lets through.",
        cannot=_ATTENTION_BLIND + " Short inputs only.",
        source="Abnar & Zuidema 2020, section 3.2",
        options=(_OWN_ROW,),
    ),
    Method(
        "input_x_gradient",
        "Input × gradient",
        input_x_gradient,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="The token's embedding pushes the target up (or down), to first order.",
        cannot="Local: where the model is saturated a deciding token scores near 0.",
        source="Shrikumar et al. 2016",
    ),
    Method(
        "integrated_gradients",
        "Integrated Gradients",
        integrated_gradients,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="Scores add up to the target's change from an empty input to this one (see the convergence error).",
        cannot="They are relative to the empty input that was chosen; another one gives other scores.",
        source="Sundararajan, Taly & Yan 2017",
        options=(replace(_STEPS, lowest=1), _BASELINE),
    ),
    Method(
        "saliency",
        "Saliency",
        saliency,
        uses_target=True,
        signed=False,
        cost="passes",
        claims="A small change of the token changes the target most.",
        cannot="It has no sign and says nothing of whether the token is for or against.",
        source="Simonyan et al. 2014",
    ),
    Method(
        "smooth_grad",
        "SmoothGrad",
        smooth_grad,
        uses_target=True,
        signed=False,
        cost="passes",
        claims="Saliency averaged over noisy copies of the input.",
        cannot="It has no sign; the noise is a choice.",
        source="Smilkov et al. 2017",
        options=(replace(_SAMPLES, default=20), replace(_LEVEL, default=0.1), _SEED),
    ),
    Method(
        "occlusion",
        "Occlusion",
        occlusion,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="The target falls by so much when a window of the input is covered.",
        cannot="A covered input is unlike any the model was trained on; redundant evidence hides itself.",
        source="Zeiler & Fergus 2014",
        options=(_WINDOW, _REPLACEMENT),
    ),
    Method(
        "leave_one_out",
        "Leave one out",
        leave_one_out,
        uses_target=True,
        signed=True,
        cost="passes",
        claims="The target falls by so much without this token.",
        cannot="Redundant evidence hides itself: each of two tokens that say the same scores 0.",
        source="Li, Monroe & Jurafsky 2016",
        options=(_REMOVAL,),
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.key: method for method in _ALL})
"""Every method by key, in the order in which a reader meets them."""


def options_of(method: Method, run: ForwardPass) -> tuple[Option, ...]:
    """What may be chosen of a method for this model and input, with the limits and the default that hold there."""
    found = (option.fit(option, run) for option in method.options)
    return tuple(option for option in found if option is not None)


def explain(
    key: str,
    run: ForwardPass,
    target: Target | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Explanation:
    """Explain by the method of that name.

    Args:
        target: what is explained; methods that ignore it need none.
        progress: for methods of many passes; called with 0 to 1, and what it raises stops the method.
        options: of the method's own function.
    Raises:
        ValueError: if there is no such method, or it needs a target; and as the method's function.
    """
    method = METHODS.get(key)
    if method is None:
        raise ValueError(f"explain: key must be one of {', '.join(METHODS)} but is {key!r}.")
    if method.uses_target and target is None:
        raise ValueError(f"explain: {method.title} explains a target; choose a class, a concept or a word.")
    if method.tells_progress and progress is not None:
        options["progress"] = progress
    return method.function(run, target, **options) if method.uses_target else method.function(run, **options)


def unchanging_reason(key: str, explanation: Explanation) -> str:
    """What to say in place of a map that would be empty; "" where there is something to see."""
    if not bool((explanation.scores != 0).any()):
        return "Every score is 0."
    if METHODS[key].signed and not explanation.has_positive:
        return "No positive evidence for this target."
    return ""
