"""Every method by name: what it needs, what it claims, what it cannot show, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal

from analysis.evidence.attention import attention, attention_flow, gradient_rollout, rollout_row_map
from analysis.evidence.cdam import cdam, integrated_cdam, smooth_cdam
from analysis.evidence.explanation import Explanation
from analysis.evidence.gradcam import attention_gradcam, gradcam
from analysis.evidence.gradients import (
    input_x_gradient,
    integrated_gradients,
    occlusion,
    saliency,
    smooth_grad,
)
from analysis.evidence.passes import ForwardPass
from analysis.evidence.perturbation import leave_one_out
from analysis.evidence.relevance import relevance
from analysis.evidence.targets import Target

Progress = Callable[[float], None]
"""Told how much is done, 0 to 1; what it raises stops the method and comes out of it."""

Cost = Literal["shared", "passes"]


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

    @property
    def tells_progress(self) -> bool:
        """Whether it takes so many passes that it says how far it is, and can be stopped."""
        return "progress" in signature(self.function).parameters


_ATTENTION_BLIND = "It is the same for every class, and high attention need not mean influence."
_POSITIVE_ONLY = "It shows no evidence against the target."

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
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.key: method for method in _ALL})
"""Every method by key, in the order in which a reader meets them."""


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
