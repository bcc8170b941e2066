"""What the first page waits for, against ``import torch``.

    python -m benchmarks.startup [--repeats 5]

The first page is painted before torch is imported, from numbers that ship with the program. Each import is measured
in a fresh process; the page itself in a real browser on a server that has just started.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks.measure import ROOT, print_table
from scripts.browser import BROWSER_FLAGS, obtain_browser
from scripts.loading import ROOMS, loaded_with, module_name
from scripts.server import running_app

FIRST_PAGE = (ROOT / "dashboard" / "app.py", ROOT / "dashboard" / "views" / "text.py")
"""Files that Streamlit runs for the first page. Importing them would run the page; what they import is imported."""

MEASURE = """
import importlib, json, sys, time
cpu, wall = time.process_time(), time.perf_counter()
for name in {names!r}:
    importlib.import_module(name)
print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall, "torch" in sys.modules]))
"""


def first_page_modules() -> list[str]:
    """Every module that loads before the first page is painted, outside libraries first."""
    outside: list[str] = ["numpy", "streamlit"]
    own: list[str] = []
    for start in FIRST_PAGE:
        for path, imported in loaded_with(start).items():
            outside += [name.partition(".")[0] for name in imported]
            if path not in FIRST_PAGE:
                own.append(module_name(path))
    names = [*(name for name in outside if name not in ROOMS), *own]
    return [name for name in dict.fromkeys(names) if name not in ("", "__future__")]


def import_seconds(names: list[str]) -> tuple[float, float, bool]:
    """CPU seconds and seconds to import ``names`` in a fresh process, and whether torch came along."""
    command = [sys.executable, "-c", MEASURE.format(names=names)]
    variables = {**os.environ, "STREAMLIT_LOGGER_LEVEL": "error"}
    result = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    output = result.stdout
    cpu, wall, with_torch = json.loads(output.strip().splitlines()[-1])
    return cpu, wall, with_torch


def first_paint_seconds(repeats: int) -> list[float]:
    """Seconds from opening the page to the drawn head view, each on a new server and a new browser."""
    from playwright.sync_api import sync_playwright

    path = obtain_browser()
    seconds = []
    with sync_playwright() as playwright:
        for _ in range(repeats):
            with running_app(ROOT / "benchmarks" / "output" / "server.log") as server:
                browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_FLAGS))
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                start = time.perf_counter()
                page.goto(server.url)
                page.locator("[data-drawn]").first.wait_for(timeout=60_000)
                seconds.append(time.perf_counter() - start)
                browser.close()
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    modules = first_page_modules()
    kinds = {
        "first page": modules,
        "import torch": ["torch"],
        "all that a model needs": ["analysis.hf.loading"],
    }
    measured: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in kinds}
    for round_number in range(options.repeats + 1):
        for name, names in kinds.items():
            result = import_seconds(names)
            if round_number:  # the first one fills the file cache
                measured[name].append(result)
    if any(with_torch for _, _, with_torch in measured["first page"]):
        raise RuntimeError(
            "startup: the first page must load without torch but imports it; see test_project.py."
        )
    medians = {
        name: [statistics.median(result[i] for result in results) for i in (0, 1)]
        for name, results in measured.items()
    }
    base = medians["import torch"]
    rows = [
        [name, f"{cpu:.2f}", f"{wall:.2f}", f"{cpu / base[0]:.2f}", f"{wall / base[1]:.2f}"]
        for name, (cpu, wall) in medians.items()
    ]
    columns = ["imports", "CPU s", "s", "CPU / torch", "s / torch"]
    print_table(f"Start-up (fresh processes, median of {options.repeats})", columns, rows)
    paint = first_paint_seconds(3)
    print_table(
        "First page in a browser, server just started",
        ["from opening the page to the head view drawn", "s"],
        [["median of 3", f"{statistics.median(paint):.2f}"], ["slowest", f"{max(paint):.2f}"]],
    )


if __name__ == "__main__":
    main()
