"""Two numbers of Yeh et al. 2019 ("On the (In)fidelity and Sensitivity of Explanations"), through captum.

Infidelity: how badly the scores foretell what happens when random parts are taken away. Sensitivity: how much the map
changes when the picture changes a little. Low is good for both; neither says that a map is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.evidence.gradients import metrics
from analysis.evidence.passes import ForwardPass, forward_pass
from analysis.evidence.perturbation import Replacement, target_values
from attn_core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from analysis.evidence.explanation import Explanation
    from analysis.evidence.targets import Target

Progress = Callable[[float], None]

TAKEN = 0.2
"""Share of the tokens or patches that a random perturbation takes away."""


def infidelity(
    run: ForwardPass,
    target: Target,
    explanation: Explanation,
    *,
    samples: int = 40,
    seed: int = 0,
    replacement: Replacement = "default",
    progress: Progress | None = None,
) -> float:
    """Mean squared (Σ of the scores taken away − fall of the target), as a share of the mean squared fall.

    The scores are scaled by the best factor first (captum's ``normalize``), so that methods of different units can be
    compared: 0 is a map that foretells every fall, 1 one that is no better than saying "no change".

    Args:
        samples: random subsets, each of a fifth of the tokens or patches.
        seed: of the subsets.
        replacement: what stands in place of what is taken away.
        progress: told 0 to 1; what it raises stops the computation.
    Returns:
        NaN where nothing that was taken away changes the target.
    Raises:
        ValueError: as ``analysis.evidence.perturbation.target_values``.
    """
    count = len(explanation.scores)
    generator = torch.Generator().manual_seed(seed)
    taken = torch.rand(samples, count, generator=generator) < TAKEN
    values = target_values(
        run,
        target,
        torch.cat([taken, torch.zeros(1, count, dtype=torch.bool)]),
        replacement=replacement,
        progress=progress,
    ).double()
    falls = values[-1] - values[:-1]  # (S,)
    known = {tuple(row.tolist()): value for row, value in zip(~taken, values[:-1], strict=True)}
    known[(True,) * count] = values[-1]

    def seen(present: Tensor) -> Tensor:
        return torch.stack([known[tuple((row > 0.5).tolist())] for row in present])

    def perturb(present: Tensor) -> tuple[Tensor, Tensor]:
        return taken.double(), present - taken.double()

    found = metrics.infidelity(
        seen,
        perturb,
        torch.ones(1, count, dtype=torch.float64),
        explanation.scores.double()[None],
        n_perturb_samples=samples,
        normalize=True,
    )
    scale = float((falls**2).mean())
    return float(found[0]) / scale if scale > 0 else float("nan")


def sensitivity(
    run: ForwardPass,
    explain: Callable[[ForwardPass], Explanation],
    *,
    samples: int = 5,
    radius: float = 0.02,
    seed: int = 0,
    progress: Progress | None = None,
) -> float:
    """Largest change of the map, as a share of its length, over pictures with noise of at most ``radius``.

    Args:
        explain: makes the map from a pass, always of the same target.
        samples: noisy pictures.
        radius: of uniform noise, as a share of the picture's range of values.
        progress: told 0 to 1; what it raises stops the computation.
    Raises:
        UnsupportedModelError: for a text: its tokens cannot change a little.
    """
    if run.inputs.grid is None:
        raise UnsupportedModelError(
            "sensitivity: the tokens of a text cannot change a little; it is defined for pictures."
        )
    pixels = run.inputs.tensors["pixel_values"]
    spread = radius * float(pixels.max() - pixels.min())
    generator = torch.Generator().manual_seed(seed)
    done = 0

    def explained(given: Tensor | tuple[Tensor, ...]) -> Tensor:
        nonlocal done
        maps = []
        for each in given if isinstance(given, Tensor) else given[0]:
            tensors = MappingProxyType({**run.inputs.tensors, "pixel_values": each[None]})
            noisy = forward_pass(run.model, replace(run.inputs, tensors=tensors))
            maps.append(explain(noisy).scores)
            done += 1
            if progress is not None:
                progress(min(done / (samples + 1), 1.0))
        return torch.stack(maps)

    def perturb(batch: Tensor) -> Tensor:
        noise = 2 * torch.rand(batch.shape, generator=generator) - 1
        return batch + spread * noise.to(batch)

    found = metrics.sensitivity_max(
        explained, pixels, perturb_func=perturb, n_perturb_samples=samples, max_examples_per_batch=1
    )
    return float(found[0])
