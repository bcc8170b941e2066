"""Our head view against BertViz's: what travels to the browser, and when one can use it.

    python -m benchmarks.head_view [--repeats 3]

Both draw the same random softmax weights of 12 layers × 12 heads in the same headless Chromium, each as a page of its
own from a local server: ours as its component's files and its blob of bytes, BertViz's with its scripts inside the
page (as the app serves it; as published it needs a CDN). Dense random attention is the hardest case for lines.
Time to interactive is from the start of the navigation to the second frame after the view is drawn. Hover is from
the pointer event to the second frame after it: 33 ms is the floor.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import numpy as np

from analysis.figure_data import Floats, HeadView, TokenLabel
from benchmarks.measure import MIB, in_fresh_process, print_table
from dashboard.bertviz_view import bertviz_html, bertviz_refusal
from scripts.browser import BROWSER_FLAGS, obtain_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LAYERS, HEADS = 12, 12
LENGTHS = (32, 128, 512)
LAYER = 5
ALL_LAYERS_TOKENS = 128
"""Up to this length the app sends all layers at once; above, one on demand."""

OURS = """<!doctype html><html><head><meta charset="utf-8"><style>{style}</style></head>
<body style="margin: 0"><div id="root" style="width: 1200px; height: 560px"></div>
<script type="module">
import view from "/view.js";
const data = new Uint8Array(await (await fetch("/payload")).arrayBuffer());
const parentElement = document.getElementById("root");
view({{ data, parentElement, setStateValue() {{}}, setTriggerValue() {{}} }});
window.drawn = () => parentElement.querySelector("[data-drawn]") !== null;
</script></body></html>"""

WATCH = """
const frames = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
window.hovers = [];
addEventListener("load", () => {
  const look = () => {
    const ready = window.drawn ? window.drawn() : document.querySelector("svg line") !== null;
    if (ready) frames(() => { window.interactive = performance.now(); });
    else requestAnimationFrame(look);
  };
  look();
});
addEventListener("mousemove", () => {
  const start = performance.now();
  frames(() => window.hovers.push(performance.now() - start));
}, true);
"""


@dataclass(frozen=True)
class Measured:
    """What one view at one length cost.

    Attributes:
        payload: bytes that carry the weights to the browser.
        interactive: milliseconds, median.
        hover: milliseconds, median of the later ones; ``first_hover`` the first.
        elements: in the page.
    """

    payload: int
    interactive: float
    first_hover: float
    hover: float
    elements: int


def random_weights(tokens: int, *, layers: int = LAYERS) -> Floats:
    """(L, H, N, N) dense random attention."""
    scores = (
        np.random.default_rng(0).normal(scale=1.5, size=(layers, HEADS, tokens, tokens)).astype(np.float32)
    )
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def labels(tokens: int) -> tuple[TokenLabel, ...]:
    """Token labels of a usual width."""
    return tuple(TokenLabel(text=f"token{i}", piece=f"token{i}") for i in range(tokens))


def our_page(tokens: int) -> dict[str, tuple[str, bytes]]:
    """Path → type and content of our view's page."""
    from dashboard.components.mount import component_files
    from dashboard.figures import head_view_payload

    together = tokens <= ALL_LAYERS_TOKENS
    weights = random_weights(tokens, layers=LAYERS if together else 1)
    layer = weights[LAYER if together else 0]
    names = labels(tokens)
    view = HeadView(layer, names, names, layer=LAYER, layers=LAYERS, active=tuple(range(HEADS)))
    files = component_files("head_view")
    return {
        "/": ("text/html", OURS.format(style=files.style).encode()),
        "/view.js": ("text/javascript", files.script.encode()),
        "/payload": (
            "application/octet-stream",
            head_view_payload(view, all_layers=weights if together else None),
        ),
    }


def bertviz_page(tokens: int) -> dict[str, tuple[str, bytes]]:
    """Path → type and content of BertViz's page."""
    html = bertviz_html("head", random_weights(tokens), labels(tokens), None, layer=LAYER)
    return {"/": ("text/html", html.encode())}


@contextmanager
def served(files: Mapping[str, tuple[str, bytes]]) -> Iterator[str]:
    """Address of a local server with these files."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = files.get(self.path, ("text/plain", b""))
            self.send_response(200 if self.path in files else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def measured(browser: Browser, files: Mapping[str, tuple[str, bytes]], *, repeats: int) -> Measured:
    """Open the page ``repeats`` times, each in a fresh context, and hover over its left tokens."""
    interactive, first_hovers, hovers, elements = [], [], [], 0
    payload = files.get("/payload", files["/"])[1]
    with served(files) as address:
        for _ in range(repeats):
            # BertViz's page forbids every script but its own, those of this measurement included.
            context = browser.new_context(viewport={"width": 1300, "height": 700}, bypass_csp=True)
            page = context.new_page()
            page.add_init_script(WATCH)
            page.goto(address, timeout=120_000)
            page.wait_for_function("window.interactive !== undefined", timeout=120_000)
            interactive.append(float(page.evaluate("window.interactive")))
            elements = int(page.evaluate("document.getElementsByTagName('*').length"))
            taken = hover_over_tokens(page)
            first_hovers.append(taken[0])
            hovers += taken[1:]
            context.close()
    return Measured(
        payload=len(payload),
        interactive=statistics.median(interactive),
        first_hover=statistics.median(first_hovers),
        hover=statistics.median(hovers),
        elements=elements,
    )


def hover_over_tokens(page: Page, *, count: int = 8) -> list[float]:
    """Milliseconds of each move of the pointer from token to token down the left column."""
    ours, theirs = page.locator(".lines-left .lines-row"), page.locator("#left text")
    labels = ours if ours.count() else theirs
    for index in range(count):
        box = labels.nth(index).bounding_box()
        assert box is not None, "a drawn token has a place on the screen"
        page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
        page.wait_for_function(f"window.hovers.length > {index}", timeout=60_000)
    return [float(value) for value in page.evaluate("window.hovers")][:count]


def published_size(tokens: int) -> int:
    """Bytes of the page that BertViz itself writes, made in a fresh process (it takes gigabytes)."""
    return int(in_fresh_process("benchmarks.head_view", "--published", str(tokens)).splitlines()[-1])


def report_published_size(tokens: int) -> None:
    """What the fresh process does."""
    import bertviz
    import torch

    attention = [torch.from_numpy(layer)[None] for layer in random_weights(tokens)]
    html = bertviz.head_view(attention, [f"token{i}" for i in range(tokens)], html_action="return")
    print(len(html.data.encode()))


def rows(browser: Browser, *, repeats: int) -> Iterator[list[str]]:
    """Lines of the table, two for each length."""
    published = {tokens: published_size(tokens) for tokens in LENGTHS if tokens <= ALL_LAYERS_TOKENS}
    published[512] = published[128] * 16  # the number of weights grows with the square of the length
    for tokens in LENGTHS:
        ours = measured(browser, our_page(tokens), repeats=repeats)
        yield [f"AttnScope, {tokens} tokens", *cells(ours), "–"]
        as_published = f"{published[tokens] / MIB:.1f}" + (" (computed)" if tokens == 512 else "")
        if bertviz_refusal("head", (LAYERS, HEADS, tokens, tokens)) is None:
            theirs = measured(browser, bertviz_page(tokens), repeats=repeats)
            yield [f"BertViz, {tokens} tokens", *cells(theirs), as_published]
        else:
            yield [f"BertViz, {tokens} tokens", "–", "cannot", "–", "–", "–", as_published]


def cells(result: Measured) -> list[str]:
    """A line's figures."""
    return [
        f"{result.payload / MIB:.2f}",
        f"{result.interactive:,.0f}",
        f"{result.first_hover:.0f}",
        f"{result.hover:.0f}",
        f"{result.elements:,}",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--published", type=int, metavar="TOKENS", help="size of BertViz's own page")
    options = parser.parse_args(arguments)
    if options.published:
        report_published_size(options.published)
        return
    path = obtain_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_FLAGS))
        lines = list(rows(browser, repeats=options.repeats))
        browser.close()
    columns = ["head view", "payload MiB", "interactive ms", "first hover ms", "hover ms", "elements"]
    columns.append("BertViz as published MiB")
    print_table(f"Head view, {LAYERS} × {HEADS} heads (median of {options.repeats})", columns, lines)
    print(bertviz_refusal("head", (LAYERS, HEADS, 512, 512)))
    print("As published its page is beyond the longest text that Chromium's engine holds (512 MiB).")


if __name__ == "__main__":
    main()
