"""Find a Chromium for the browser tests and benchmarks, or get one.

    python -m scripts.browser          prints the browser's path; installs one if the machine has none

Order: ``ATTNSCOPE_BROWSER``, a Chromium or Chrome of the machine, the one Playwright keeps; then Debian's
package (as root), then Playwright's download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge")
APPLICATIONS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)

BROWSER_FLAGS: tuple[str, ...] = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags for a browser that opens nothing but the app: also as root, without a display, without a network."""


def browser_candidates() -> Iterator[str]:
    """Paths where a browser may be, best first."""
    if named := os.environ.get("ATTNSCOPE_BROWSER"):
        yield named
    yield from (path for name in NAMES if (path := shutil.which(name)))
    yield from (path for path in APPLICATIONS if Path(path).exists())
    if downloaded := playwright_browser():
        yield downloaded


def playwright_browser() -> str | None:
    """Chromium that Playwright downloaded earlier, or None."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def find_browser() -> str | None:
    """Path of the first browser that starts, or None.

    A candidate has to answer ``--version``: some systems put a launcher on the PATH for a browser that is
    not there.
    """
    return next((path for path in browser_candidates() if starts(path)), None)


def starts(path: str) -> bool:
    """Whether the program at ``path`` tells its version."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def install_from_debian() -> None:
    """Install Chromium and a font with apt; does nothing where that is not possible."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["chromium", "fonts-dejavu-core", "fonts-liberation"]
    for command in (
        ["apt-get", "-q", "update"],
        ["apt-get", "-q", "install", "--yes", "--no-install-recommends", *packages],
    ):
        subprocess.run(command, env=variables, stdout=sys.stderr, check=False)


def install_from_playwright() -> None:
    """Let Playwright download its Chromium (with the system libraries it needs when root)."""
    with_libraries = ["--with-deps"] if os.geteuid() == 0 and shutil.which("apt-get") else []
    command = [sys.executable, "-m", "playwright", "install", *with_libraries, "chromium"]
    subprocess.run(command, stdout=sys.stderr, check=False)


def obtain_browser() -> str:
    """Path of a browser, installed if there was none.

    Raises:
        SystemExit: with a message, when none can be had.
    """
    for install in (lambda: None, install_from_debian, install_from_playwright):
        install()
        if path := find_browser():
            return path
    raise SystemExit(
        "browser: found no Chromium or Chrome and could not install one; install one yourself "
        "or set ATTNSCOPE_BROWSER to its path, then run make again."
    )


if __name__ == "__main__":
    print(obtain_browser())
