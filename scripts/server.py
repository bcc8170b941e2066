"""Start the app the way `make run` does and end it again, for the browser tests and the benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

START_LIMIT = 120.0
"""Seconds that the server may take to answer, on a busy machine."""


@dataclass(frozen=True)
class AppServer:
    """A running app.

    Attributes:
        url: its address without a trailing slash.
        log: the file with everything it printed.
        process_id: of the command that started it, which leads a process group of its own.
    """

    url: str
    log: Path
    process_id: int


@contextmanager
def running_app(log: Path, *, variables: Mapping[str, str] | None = None) -> Iterator[AppServer]:
    """The app on a free port, by the last step of `make run`, with this Python and without a browser window.

    Args:
        log: file for what it prints; its folder is made.
        variables: environment variables to set on top of the caller's.
    Raises:
        RuntimeError: with the end of the log, if the app does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["make", "--no-print-directory", "start", f"PORT={port}", "HEADLESS=true"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"VENV_PYTHON={sys.executable}"],
            cwd=ROOT,
            env={**os.environ, **(variables or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = AppServer(url=f"http://localhost:{port}", log=log, process_id=process.pid)
        wait_until_healthy(server, process)
        yield server
    finally:
        end(process)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_healthy(server: AppServer, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers.

    Raises:
        RuntimeError: with the end of its log, if it ends or takes too long.
    """
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    said = server.log.read_text(encoding="utf-8", errors="replace")[-4000:]
    raise RuntimeError(f"running_app: the app must answer at {server.url} but did not; it said:\n{said}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the make that started it, by their process group."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
