"""Explaining against the pass that every gradient method needs: one forward and one backward pass to the pixels.

    python -m benchmarks.evidence [--repeats 5]

CPU time of one thread on the picture classifier, the alternatives in turn: CDAM, GradCAM and relevance of one class
from one shared pass, the three each with a pass of its own, and CDAM of ten classes with one pass and with ten.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.measure import cpu_seconds, print_table

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

SIDES = (224, 448)
BASE = "forward + backward"


def ways(model: LoadedModel, inputs: Inputs) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    import torch

    from analysis.evidence.cdam import cdam
    from analysis.evidence.gradcam import gradcam
    from analysis.evidence.passes import forward_pass
    from analysis.evidence.relevance import relevance
    from analysis.evidence.targets import class_logit

    target, methods = class_logit(0), (cdam, gradcam, relevance)

    def forward_backward() -> object:
        tensors = dict(inputs.tensors)
        pixels = tensors.pop("pixel_values").clone().requires_grad_()
        number = model.module(pixel_values=pixels, **tensors).logits[0, 0]
        return torch.autograd.grad(number, pixels)

    def shared() -> object:
        run = forward_pass(model, inputs)
        run.gradients(target)
        return [method(run, target) for method in methods]

    def separate() -> object:
        return [method(forward_pass(model, inputs), target) for method in methods]

    def ten_classes() -> object:
        run = forward_pass(model, inputs)
        return [cdam(run, class_logit(index)) for index in range(10)]

    def ten_passes() -> object:
        return [cdam(forward_pass(model, inputs), class_logit(index)) for index in range(10)]

    return {
        BASE: forward_backward,
        "CDAM + GradCAM + relevance, shared": shared,
        "the same, each by itself": separate,
        "CDAM": lambda: cdam(forward_pass(model, inputs), target),
        "CDAM of ten classes, one pass": ten_classes,
        "CDAM of ten classes, ten passes": ten_passes,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    import torch

    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.models import load_model
    from analysis.samples import sample_picture_bytes

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", type=int, nargs="*", default=SIDES, help="pixels of the shorter side")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = load_model("picture-classifier", device="cpu")
    picture = read_picture(sample_picture_bytes("cat"), name="cat")
    rows = []
    for side in options.sides:
        inputs = encode_image(model, picture, side=side)
        seconds = cpu_seconds(ways(model, inputs), repeats=options.repeats if side < 300 else 3)
        rows += [
            (f"{inputs.kept_tokens:,}", name, f"{1000 * spent:,.0f}", f"{spent / seconds[BASE]:.2f}")
            for name, spent in seconds.items()
        ]
    print_table("Evidence", ("tokens", "what", "CPU ms", f"ratio to {BASE}"), rows)


if __name__ == "__main__":
    main()
