"""What the training scripts share: low-rank adapters, the schedule, checkpoints, progress, intervals.

Training is reproducible on one machine: every random number comes from the seed, and a run that was interrupted goes
on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a trained update of low rank: W + (alpha / rank) · up · down (Hu et al. 2021, LoRA).

    Args:
        base: the layer; its weights are not trained.
        rank, alpha: of the update.
        dropout: on the update's input.
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        out: Tensor = self.base(hidden)
        update = nn.functional.linear(nn.functional.linear(self.dropout(hidden), self.down), self.up)
        return out + self.scale * update


def adapt(
    model: nn.Module, chosen: Callable[[str], bool], *, rank: int, alpha: float, dropout: float = 0.0
) -> list[str]:
    """Freeze the model and put an adapter around each linear layer whose name is ``chosen``; their names.

    Raises:
        ValueError: if no layer is chosen.
    """
    model.requires_grad_(False)
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and chosen(name)]
    if not names:
        raise ValueError("adapt: chosen must name at least one linear layer of the model but names none.")
    for name in names:
        parent, _, leaf = name.rpartition(".")
        base = model.get_submodule(name)
        assert isinstance(base, nn.Linear)
        setattr(
            model.get_submodule(parent), leaf, LowRankLinear(base, rank=rank, alpha=alpha, dropout=dropout)
        )
    return names


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every trained parameter under its name in the model, on the CPU; adapters as ``<layer>.down`` and ``.up``."""
    return {
        name: parameter.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def restore(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write ``trained_tensors`` back into the model."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def warm_cosine(step: int, steps: int, *, warm_up: float = 0.06) -> float:
    """Share of the learning rate at a step: linear warm-up, then half a cosine to zero."""
    warm = max(int(warm_up * steps), 1)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


OUTSIDE = frozenset({"data", "threads", "work", "output", "patience"})
"""Options that change no step of a run."""


def parser_of(description: str, *, output: str, work: str) -> argparse.ArgumentParser:
    """The options that every training script has.

    Args:
        output: default folder of the shipped files.
        work: name of the default folder of checkpoints.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path(output), help="folder of the shipped files")
    parser.add_argument(
        "--work", type=Path, default=Path(".attnscope/training") / work, help="folder of checkpoints"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def prepare(options: argparse.Namespace) -> None:
    """Threads, seed and work folder of a run."""
    torch.set_num_threads(options.threads)
    seed_all(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The options that a checkpoint must agree with."""
    return {name: str(value) for name, value in vars(options).items() if name not in OUTSIDE}


def write_part(
    folder: Path, facts: Mapping[str, Any], *, weights: dict[str, Tensor], **more: dict[str, Tensor]
) -> None:
    """Write a trained part and tell size and hash of each of its files, to be pinned in ``analysis/trained.py``.

    Args:
        more: further files of tensors, by name without the ending.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in {"weights": weights, **more}.items():
        save_file(tensors, folder / f"{name}.safetensors", metadata={"format": "pt"})
    text = json.dumps(facts, ensure_ascii=False, indent=1)
    (folder / "trained.json").write_text(text + "\n", encoding="utf-8")
    for file in sorted([*folder.glob("*.safetensors"), folder / "trained.json"]):
        data = file.read_bytes()
        print(f'BundledFile("{file.name}", {len(data):_}, "{hashlib.sha256(data).hexdigest()}"),')


@dataclass
class Progress:
    """One line of progress that overwrites itself in a terminal and is rare in a log file."""

    steps: int
    start: float = field(default_factory=time.monotonic)
    shown: float = 0.0
    average: float = 0.0

    def tell(self, step: int, loss: float) -> None:
        """Tell that ``step`` steps are done."""
        self.average = loss if not self.average else 0.98 * self.average + 0.02 * loss
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if now - self.shown < (0.5 if terminal else 20.0) and step < self.steps:
            return
        self.shown = now
        spent = now - self.start
        left = spent / max(step, 1) * (self.steps - step)
        line = f"step {step:,} of {self.steps:,}  loss {self.average:.3f}  {spent / 60:.1f} min, {left / 60:.1f} left"
        sys.stderr.write(("\r" if terminal else "") + line + ("" if terminal and step < self.steps else "\n"))
        sys.stderr.flush()


@dataclass
class Run:
    """State of a training run that a checkpoint holds.

    Attributes:
        step: steps done; ``epoch`` and ``batch``: where the next one is.
        best_score, best: highest score on the development set, and the trained tensors that had it.
        looks: how many times the development set was looked at; ``waited`` since the last best.
        history: (step, score) of each look.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best_score: float = -math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    looks: int = 0
    waited: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def look(self, score: float, model: nn.Module) -> bool:
        """Note a score on the development set; whether it is the best so far."""
        self.looks += 1
        self.history.append((self.step, score))
        better = score > self.best_score
        if better:
            self.best_score, self.best, self.waited = score, trained_tensors(model), 0
        else:
            self.waited += 1
        return better


def save_checkpoint(
    path: Path, run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> None:
    """Write a checkpoint in one step: a run that is killed while it writes keeps the one before."""
    state = {
        "settings": dict(settings),
        "run": vars(run),
        "tensors": trained_tensors(model),
        "optimiser": optimiser.state_dict(),
        "random": torch.get_rng_state(),
    }
    scratch = path.with_suffix(".part")
    torch.save(state, scratch)
    os.replace(scratch, path)


def resume(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> Run:
    """The run of a checkpoint, its tensors put into the model and the optimiser; a new run where there is none.

    Raises:
        ValueError: if the checkpoint is of a run with other settings.
    """
    if not path.is_file():
        return Run()
    state = torch.load(path, weights_only=True)
    if state["settings"] != dict(settings):
        changed = sorted(name for name in settings if state["settings"].get(name) != settings[name])
        raise ValueError(
            f"resume: {path} is of a run with other settings ({', '.join(changed)}); give the same ones, "
            "or delete the file to start anew."
        )
    restore(model, state["tensors"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["random"])
    return Run(**state["run"])


@dataclass(frozen=True)
class Schedule:
    """How long a run lasts and how often it looks at the development set.

    Attributes:
        epochs: passes over the training set.
        per_epoch: steps of one, as near as it is known before.
        look_every: steps between two looks.
        patience: looks without a better score after which the run ends.
        rate: share of the learning rates at (step, steps).
        largest_gradient: norm that gradients are cut to.
    """

    epochs: int
    per_epoch: int
    look_every: int
    patience: int
    rate: Callable[[int, int], float] = warm_cosine
    largest_gradient: float = 1.0


Batch = TypeVar("Batch")


def fit(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    *,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    score: Callable[[], tuple[int, int]],
    options: argparse.Namespace,
) -> Run:
    """Train from the last checkpoint on; the model has the tensors of the best look afterwards.

    Args:
        batches: of an epoch, by its number; the same ones whenever they are asked for.
        loss: of a batch, with the model in training mode.
        score: right answers on the development set and how many there are.
        options: ``work`` holds the checkpoint; the settings must be those it was made with.
    Raises:
        ValueError: as ``resume``.
    """
    checkpoint, settings = options.work / "checkpoint.pt", settings_of(options)
    run = resume(checkpoint, model, optimiser, settings)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rates = [group["lr"] for group in optimiser.param_groups]
    steps = schedule.epochs * schedule.per_epoch
    progress, first = Progress(steps - run.step), run.step

    def take(batch: Batch) -> None:
        model.train()
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.rate(run.step, steps)
        value = loss(batch)
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, schedule.largest_gradient)
        optimiser.step()
        run.step += 1
        run.batch += 1
        progress.tell(run.step - first, float(value.detach()))

    def look() -> None:
        right, total = score()
        better = run.look(right / total, model)
        print(f"step {run.step:,}: development {in_words(right, total)}{' *' if better else ''}", flush=True)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate  # a checkpoint keeps the full rates
        save_checkpoint(checkpoint, run, model, optimiser, settings)

    while run.epoch < schedule.epochs and run.waited < schedule.patience:
        for batch in itertools.islice(batches(run.epoch), run.batch, None):
            take(batch)
            if run.step % schedule.look_every == 0:
                look()
                if run.waited >= schedule.patience:
                    print("stopped: the development score has not risen", flush=True)
                    break
        else:
            run.epoch, run.batch = run.epoch + 1, 0
    if not run.history or run.history[-1][0] != run.step:
        look()
    restore(model, run.best)
    return run


def wilson_interval(right: int, total: int, *, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927)."""
    share = right / total
    centre = share + z**2 / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return (centre - spread) / (1 + z**2 / total), (centre + spread) / (1 + z**2 / total)


def in_words(right: int, total: int) -> str:
    """ "83.1 % (80.7 to 85.3, n = 1,010)"."""
    low, high = wilson_interval(right, total)
    return f"{100 * right / total:.1f} % ({100 * low:.1f} to {100 * high:.1f}, n = {total:,})"


def fit_temperature(logits: Tensor, labels: Tensor, *, lowest: float = 0.05, highest: float = 20.0) -> float:
    """The temperature that makes probabilities of held-out logits (n, C) most likely (Guo et al. 2017).

    The likelihood is concave in 1 / temperature, so bisection of its slope finds it; where every answer is right, or
    none is better than chance, there is no best one and an end of the range comes out.
    """
    logits = logits.double()
    own = logits.gather(-1, labels[:, None]).squeeze(-1)
    low, high = 1 / highest, 1 / lowest
    for _ in range(100):
        middle = (low + high) / 2
        expected = ((logits * middle).softmax(-1) * logits).sum(-1)
        rising = bool((own - expected).mean() > 0)
        low, high = (middle, high) if rising else (low, middle)
    return 2 / (low + high)


def f1(predicted: Tensor, labels: Tensor) -> float:
    """F1 of the positive class."""
    both = int(((predicted == 1) & (labels == 1)).sum())
    return 2 * both / max(int((predicted == 1).sum()) + int((labels == 1).sum()), 1)


def calibration_error(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of (n, C) probabilities in equal-width bins of the top probability."""
    top, predicted = probabilities.max(-1)
    right = (predicted == labels).float()
    index = (top * bins).long().clamp(max=bins - 1)
    error = 0.0
    for each in range(bins):
        inside = index == each
        if inside.any():
            error += float(inside.float().mean() * (right[inside].mean() - top[inside].mean()).abs())
    return error


def area(nearer: list[float], farther: list[float]) -> float:
    """Chance that a value of ``farther`` lies above one of ``nearer`` (area under the ROC curve)."""
    low, high = torch.tensor(nearer)[:, None], torch.tensor(farther)[None]
    return float(((high > low).float() + 0.5 * (high == low).float()).mean())


def half_precision(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in float16, as they are shipped."""
    return {name: tensor.half() for name, tensor in tensors.items()}


def rounded(model: nn.Module) -> dict[str, Tensor]:
    """The trained tensors in float16, as they are shipped; the model has these very values afterwards."""
    shipped = half_precision(trained_tensors(model))
    restore(model, {name: tensor.float() for name, tensor in shipped.items()})
    return shipped


def calibrate(logits: Tensor, labels: Tensor) -> float:
    """The temperature of development logits (n, C); tells it, the score and the calibration error."""
    temperature = fit_temperature(logits, labels)
    error = calibration_error((logits / temperature).softmax(-1), labels)
    print(f"development: {in_words(int((logits.argmax(-1) == labels).sum()), len(labels))}", flush=True)
    print(f"temperature {temperature:.3f}, calibration error on development {error:.3f}", flush=True)
    return temperature


def tell_binary(logits: Tensor, labels: Tensor) -> None:
    """Accuracy and F1 of test logits (n, 2)."""
    predicted = logits.argmax(-1)
    print(f"test: {in_words(int((predicted == labels).sum()), len(labels))}, F1 {f1(predicted, labels):.3f}")
