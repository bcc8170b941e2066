"""Does a map depend on what the model learned? Cascading randomisation (Adebayo et al. 2018, section 3).

The weights of the head, then of the last block, the one before it and so on, are replaced by random ones, and the map
is made again after each. A map that stays the same shows the input and not the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from analysis.evidence.faithfulness import rank_correlation
from analysis.evidence.passes import ForwardPass, forward_pass

if TYPE_CHECKING:
    from analysis.evidence.explanation import Explanation

Progress = Callable[[float], None]

UNCHANGED = 0.5
"""Rank correlation with the true model's map, all blocks random, above which a map is said not to show the model."""


@dataclass(frozen=True)
class Randomised:
    """One stage of the cascade.

    Attributes:
        part: name of the module whose weights were the last to be replaced.
        correlation: rank correlation of the map with that of the true model; NaN where a map is constant.
        value: the target's number.
    """

    part: str
    correlation: float
    value: float


@dataclass(frozen=True)
class ModelSensitivity:
    """How a map changes as the model forgets, from the head down.

    Attributes:
        stages: the first is the true model, part "" and correlation 1.
    """

    stages: tuple[Randomised, ...]

    @property
    def warning(self) -> str:
        """What to say; "" where the map changes."""
        last = self.stages[-1].correlation
        if last >= UNCHANGED:
            return (
                f"This map hardly depends on what the model learned: with every block random it still correlates "
                f"{last:.2f} with the true one."
            )
        return ""


def model_sensitivity(
    run: ForwardPass,
    explain: Callable[[ForwardPass], Explanation],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> ModelSensitivity:
    """Cascading randomisation from the head to the first block, on a copy of the model.

    Each weight tensor gets normal numbers with its own mean and standard deviation, so activations keep their scale.

    Args:
        explain: makes the map from a pass, always of the same target.
        progress: told 0 to 1; what it raises stops the cascade.
    """
    module = copy.deepcopy(run.model.module)
    model = replace(run.model, module=module)
    true = explain(run)
    stages = [Randomised("", 1.0, _value(true))]
    generator = torch.Generator().manual_seed(seed)
    parts = cascade(run)
    for done, name in enumerate(parts):
        if progress is not None:
            progress(done / len(parts))
        randomise(module.get_submodule(name), generator)
        found = explain(forward_pass(model, run.inputs))
        stages.append(Randomised(name, rank_correlation(found.scores, true.scores), _value(found)))
    if progress is not None:
        progress(1.0)
    return ModelSensitivity(tuple(stages))


def cascade(run: ForwardPass) -> list[str]:
    """Names of the parts from the output down: head, then the blocks that hold attention, the last first."""
    names = {id(part): name for name, part in run.model.module.named_modules()}
    blocks: dict[str, None] = {}
    for layers in run.layers.values():
        for layer in layers:
            found = _block_of(names.get(id(layer.call.module), ""))
            if found:
                blocks[found] = None
    return [*_heads(run.model.module), *reversed(blocks)]


def _heads(module: nn.Module) -> list[str]:
    """What stands beside the backbone, unless it shares its weights with it (tied word embeddings)."""
    base = getattr(module, "base_model", module)
    own = {id(parameter) for parameter in base.parameters()}
    return [
        name
        for name, child in module.named_children()
        if child is not base and any(id(parameter) not in own for parameter in child.parameters())
    ]


def _block_of(name: str) -> str:
    """The outermost member of a module list that a module lies in."""
    parts = name.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if index is None else ".".join(parts[: index + 1])


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Replace every parameter by normal numbers of its own mean and standard deviation."""
    for parameter in module.parameters():
        values = parameter.float()
        spread = float(values.std()) if values.numel() > 1 else 0.0
        drawn = torch.randn(values.shape, generator=generator) * spread + float(values.mean())
        parameter.copy_(drawn.to(parameter))


def _value(explanation: Explanation) -> float:
    found = explanation.details.get("value", float("nan"))
    return float(found)
