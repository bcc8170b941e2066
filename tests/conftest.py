"""What every test relies on: no model hub, one thread, reproducible examples, no result of an earlier run."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch, transformers or streamlit is imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault(
    "TRITON_INTERPRET", "1"
)  # Triton's kernels run on CPU tensors; read when triton is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hypothesis
import pytest

from scripts.browser import BROWSER_FLAGS, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "test-results"
"""Where a failed browser test leaves its screenshot, its console and the server's log."""

hypothesis.settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("project")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def optional_data() -> Path:
    """Folder of reference data outside the checkout (oracles, data sets); skips where it is missing.

    It is named by ``ATTNSCOPE_SHARED``, or lies beside the checkout.
    """
    named = os.environ.get("ATTNSCOPE_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}; name its folder in ATTNSCOPE_SHARED")
    return folder


@pytest.fixture(autouse=True)
def steady_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs behind a page follows from estimates: they must not depend on what else this machine does."""
    cached = sys.modules.get("dashboard.cached")  # of tests that run pages in this process
    if cached is not None:
        from analysis.estimate import MachineRate

        rate = MachineRate(product=1e11, fused=5e10, pooled=2e8, statistics=1e8, rows=4e8, written=1e8)
        monkeypatch.setattr(cached, "machine_rate", lambda device: rate)


@dataclass
class WatchedPage:
    """A browser page and what happened in it that should not.

    Attributes:
        errors: console errors, uncaught exceptions and failed requests.
        outside: addresses of requests that left this machine.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium a test file; skips where there is none, fails there in continuous integration."""
    path = find_browser()
    if path is None:
        message = "no browser found; run `make browser` or set ATTNSCOPE_BROWSER"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def watched_page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[WatchedPage]:
    """A fresh page of 1400 x 900 with downloads allowed; what happens in it is written down from the start."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    watched = WatchedPage(context.new_page())
    watch(watched)
    yield watched
    report = request.node.stash.get(CALL_REPORT, None)
    if report is not None and report.failed:
        RESULTS.mkdir(exist_ok=True)
        name = RESULTS / re.sub(r"[^\w.-]+", "_", request.node.name)
        watched.page.screenshot(path=f"{name}.png", full_page=True)
        Path(f"{name}.txt").write_text("\n".join([*watched.errors, *watched.outside]), encoding="utf-8")
    context.close()


def watch(watched: WatchedPage) -> None:
    """Collect errors and outside requests of a page."""

    def note_request(request: Request) -> None:
        if not is_local(request.url):
            watched.outside.append(request.url)

    page = watched.page
    page.on("request", note_request)
    page.on("pageerror", lambda error: watched.errors.append(f"uncaught: {error}"))
    page.on(
        "console",
        lambda message: (
            watched.errors.append(f"console: {message.text} ({message.location.get('url', '')})")
            if message.type == "error" and not is_known_probe(message.location.get("url", ""))
            else None
        ),
    )


def is_local(url: str) -> bool:
    """Whether an address stays on this machine."""
    return re.match(r"(?:data|blob|about):|(?:https?|wss?)://(?:127\.0\.0\.1|localhost)[:/]", url) is not None


def is_known_probe(url: str) -> bool:
    """Streamlit looks for its server below a deep-linked page first and gets a harmless 404 there."""
    return re.search(r"/\w+/_stcore/(?:health|host-config)$", url) is not None


CALL_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Keep the report of the test itself where its fixtures find it."""
    report = yield
    if report.when == "call":
        item.stash[CALL_REPORT] = report
    return report
