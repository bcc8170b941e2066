"""Make or refresh ``.venv`` from the pinned requirements; when up to date, touch neither it nor a network.

    python3 scripts/environment.py app|dev [--torch-index cpu|cu130|URL]

A stamp in ``.venv`` holds a digest of the requirement files and of the interpreter, so an edit of either
installs again and nothing else does. An install that was cut off leaves no stamp and is taken up again.
Standard library only: it runs before anything is installed, also under a Python that is too old (to say so).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
TORCH_INDEXES = "https://download.pytorch.org/whl/"
"""PyTorch's own indexes; read only when the user asks for one."""

FILES = {
    "app": ("requirements.txt", "constraints.txt"),
    "dev": ("requirements.txt", "constraints.txt", "requirements-dev.txt"),
}
"""Files that decide what a set contains. ``dev`` contains ``app``."""

INSTALLED = {"app": "requirements.txt", "dev": "requirements-dev.txt"}


def requirements_digest(name: str, *, root: Path, python_version: str) -> str:
    """Digest that changes when the set ``name`` has to be installed again."""
    digest = hashlib.sha256(python_version.encode())
    for file_name in FILES[name]:
        digest.update(file_name.encode() + b"\0" + (root / file_name).read_bytes() + b"\0")
    return digest.hexdigest()


def torch_index_address(index: str) -> str:
    """Address of a PyTorch index: a name such as ``cpu`` or ``cu130``, or an address as it is."""
    return index if "://" in index else TORCH_INDEXES + index


def pinned_line(package: str, *, root: Path) -> str:
    """The line of requirements.txt that pins ``package``."""
    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.split("==")[0].strip() == package:
            return line.strip()
    raise ValueError(f"pinned_line: requirements.txt has no line for {package}; add an exact pin.")


def prepare(name: str, *, root: Path = ROOT, torch_index: str | None = None) -> bool:
    """Bring ``root/.venv`` to the set ``name``.

    Args:
        name: "app" or "dev".
        torch_index: take torch from this PyTorch index; None takes whatever index pip is set up with, and
            keeps what an earlier run chose.
    Returns:
        True if something was installed, False if the environment was up to date.
    Raises:
        SystemExit: with a message, when the environment cannot be made.
    """
    with single_preparation(root):
        environment = root / ".venv"
        python = environment / "bin" / "python"
        found = installed_python(python)
        stamp_file = environment / f"attnscope-{name}.json"
        if found is not None:
            stamp = read_stamp(stamp_file)
            same_files = stamp.get("digest") == requirements_digest(name, root=root, python_version=found)
            if same_files and (torch_index is None or stamp.get("torch_index") == torch_index):
                return False
        else:
            make_environment(environment)
            found = installed_python(python)
            if found is None:
                raise SystemExit(
                    f"environment: the Python of {environment} does not run; remove that folder."
                )
        for stale in environment.glob("attnscope-*.json"):
            stale.unlink()
        install(name, python=python, root=root, torch_index=torch_index)
        for included in ("app", "dev") if name == "dev" else ("app",):
            digest = requirements_digest(included, root=root, python_version=found)
            write_stamp(environment / f"attnscope-{included}.json", digest=digest, torch_index=torch_index)
        return True


@contextlib.contextmanager
def single_preparation(root: Path) -> Iterator[None]:
    """Let one preparation of this checkout run at a time; a second one waits, then finds the work done."""
    folder = root / ".attnscope"
    folder.mkdir(exist_ok=True)
    with (folder / "environment.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def installed_python(python: Path) -> str | None:
    """Version of the environment's Python, or None if there is none that runs and has pip."""
    if not python.exists():
        return None
    command = [str(python), "-c", "import pip, sys; print(sys.version)"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def make_environment(environment: Path) -> None:
    """Make an empty virtual environment with the Python that runs this file."""
    print(f"Making {environment.name} with Python {sys.version.split()[0]} ...", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(environment)]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(
            "environment: this Python cannot make virtual environments; install its venv module "
            "(Debian and Ubuntu: `apt-get install python3-venv`) and run make again."
        )


def install(name: str, *, python: Path, root: Path, torch_index: str | None) -> None:
    """Install the set ``name`` with pip; torch first and alone when it comes from an index of its own."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if torch_index is not None:
        address = torch_index_address(torch_index)
        alone = ["--force-reinstall", "--no-deps", "--index-url", address, pinned_line("torch", root=root)]
        run_pip([*pip, *alone], root=root)
    print(f"Installing {INSTALLED[name]} (once; the first time takes a few minutes) ...", flush=True)
    run_pip([*pip, "--quiet", "-r", INSTALLED[name], "-c", "constraints.txt"], root=root)


def run_pip(command: list[str], *, root: Path) -> None:
    """Run pip in the checkout, outside any environment that the caller has active."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    if subprocess.run(command, cwd=root, env=variables, check=False).returncode != 0:
        raise SystemExit(
            "environment: pip could not install everything (its own message is above); "
            "check the network and the free disk space, then run make again: it goes on from here."
        )


def read_stamp(stamp_file: Path) -> dict[str, str | None]:
    """What an earlier run noted, or nothing when it did not finish."""
    try:
        stamp = json.loads(stamp_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp_file: Path, *, digest: str, torch_index: str | None) -> None:
    """Note that a set is complete, in one step."""
    part = stamp_file.with_suffix(".part")
    part.write_text(json.dumps({"digest": digest, "torch_index": torch_index}), encoding="utf-8")
    part.replace(stamp_file)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    if sys.version_info < OLDEST:
        wanted, found = ".".join(map(str, OLDEST)), sys.version.split()[0]
        raise SystemExit(
            f"AttnScope needs Python {wanted} or newer, but {sys.executable} is {found}; "
            f"install a newer one and name it: `make run PYTHON=python{wanted}`."
        )
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", choices=sorted(FILES))
    parser.add_argument("--torch-index", default="", help="cpu, cu130 ... or an address; empty: pip's own")
    options = parser.parse_args(arguments)
    prepare(options.set, torch_index=options.torch_index or None)


if __name__ == "__main__":
    main()
