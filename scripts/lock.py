"""Write constraints.txt: the exact version of every package that the pinned ones pulled in.

    make lock

Packages that only one platform needs (CUDA libraries) and the pins themselves are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Versions of what the requirement files pull in. Written by `make lock`, not by hand.\n"
PLATFORM_PACKAGES = re.compile(r"^(nvidia|cuda|triton)")


def normalised(name: str) -> str:
    """Package name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")


def pinned_names(root: Path, *, files: Sequence[str] = REQUIREMENTS) -> set[str]:
    """Normalised names of the packages that the requirement files pin."""
    lines = [
        line.strip()
        for file_name in files
        for line in (root / file_name).read_text(encoding="utf-8").splitlines()
    ]
    return {normalised(Requirement(line).name) for line in lines if line and line[0] not in "#-"}


def needed_versions(roots: set[str]) -> dict[str, str]:
    """Name and version of every installed package that ``roots`` lead to, themselves included."""
    installed = {normalised(item.name): item for item in distributions()}
    environment = {key: str(value) for key, value in default_environment().items()} | {"extra": ""}
    found: dict[str, str] = {}
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name in found or name not in installed:
            continue
        found[name] = installed[name].version
        requirements = map(Requirement, installed[name].requires or ())
        waiting += [
            normalised(item.name)
            for item in requirements
            if item.marker is None or item.marker.evaluate(environment)
        ]
    return found


def main(root: Path = ROOT) -> None:
    """Write the file."""
    pinned = pinned_names(root)
    versions = needed_versions(pinned)
    lines = [
        f"{name}=={version.partition('+')[0]}\n"
        for name, version in sorted(versions.items())
        if name not in pinned and not PLATFORM_PACKAGES.match(name)
    ]
    (root / "constraints.txt").write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
