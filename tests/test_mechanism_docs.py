"""What the pages of the mechanisms promise: their Python runs and prints what they show, and their names exist."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import attn_core
from analysis.lab.timeline import HISTORY
from attn_core.variants import flex
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "mechanisms"
PAGES = sorted(FOLDER.glob("*.md"))
NAMES = {
    "README",
    "scores",
    "scaled-dot-product",
    "additive-and-luong",
    "heads",
    "masks-and-mods",
    "equivariance",
    "positions",
    "alignments",
    "linear-attention",
    "linformer",
    "reformer",
    "sparse",
    "flex-attention",
    "cost",
    "flash",
    "history",
}
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def prose(page: Path) -> str:
    """The page without its blocks of Python."""
    return re.sub(r"```python\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def formulas(page: Path) -> list[str]:
    return re.findall(r"\$\$.*?\$\$|\$[^$\n]+\$", re.sub(r"`[^`\n]*`", "", prose(page)), flags=re.DOTALL)


@cache
def vocabulary() -> set[str]:
    """Public names of attn_core and of its mods, with their parameters, fields and methods."""
    found = {*attn_core.__all__, *attn_core.ALIGNMENTS, "attn_core", "None"}
    found |= {"layer", "score"}  # what the pages call any layer, and the argument of any score mod
    objects = [getattr(attn_core, name) for name in attn_core.__all__]
    mods = [value for name, value in vars(flex).items() if inspect.isfunction(value) and name[0] != "_"]
    found |= {mod.__name__ for mod in mods}
    for thing in [*objects, *mods]:
        members = [thing]
        if inspect.isclass(thing):
            members += [value for _, value in inspect.getmembers(thing, inspect.isfunction)]
            found |= {name for name in dir(thing) if not name.startswith("_")}
            found |= (
                {entry.name for entry in dataclasses.fields(thing)}
                if dataclasses.is_dataclass(thing)
                else set()
            )
        for member in members:
            with suppress(ValueError, TypeError):  # type aliases and exceptions have no signature
                found |= set(inspect.signature(member).parameters)
    return found


def exists(name: str) -> bool:
    """Whether a dotted name is one of PyTorch's, a module of ours, or all of its parts are known."""
    if name.startswith(("torch.", "attn_core.")):
        module, _, attribute = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(module), attribute) or bool(importlib.import_module(name))
        except ImportError:
            return False
    return all(part in vocabulary() for part in name.split("."))


def test_every_page_is_there_and_in_the_index() -> None:
    assert {page.stem for page in PAGES} == NAMES
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", index)) == NAMES - {"README"}


@by_page
def test_the_python_prints_what_the_page_shows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks or page.stem in ("README", "history")
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted >= 5 or not blocks


@by_page
def test_names_of_the_code_exist(page: Path) -> None:
    unknown = []
    for span in re.findall(r"`([^`\n]+)`", prose(page)):
        if "/" in span and " " not in span:
            assert (ROOT / span).exists(), f"{page.name} names {span}"
            continue
        call = re.match(r"^([A-Za-z_][\w.]*)(\(.*\))?$", span)
        keywords = re.findall(r"(\w+)=", span)
        names = [call.group(1), *keywords] if call else keywords
        unknown += [name for name in names if not exists(name)]
    assert unknown == []


def test_a_name_that_does_not_exist_is_found() -> None:
    for name in ("flash_atention", "MaskRule.causl", "torch.nn.Linar", "attn_core.scorez"):
        assert not exists(name)
    for name in ("flash_attention", "MaskRule.causal", "torch.nn.Linear", "attn_core.scores", "half_window"):
        assert exists(name)


@by_page
def test_formulas_have_no_escape_that_a_reader_of_markdown_takes_for_its_own(page: Path) -> None:
    outside = re.sub(r"^\$\$\n.*?\n\$\$$", "", prose(page), flags=re.DOTALL | re.MULTILINE)
    assert "$$" not in outside  # a fence stands alone, or a reader takes its line for the name of a language
    assert [line for line in outside.split("\n") if line.count("$") % 2] == []
    wrong = [formula for formula in formulas(page) if re.search(r"\\[^A-Za-z]|\|", formula)]
    assert wrong == []
    for formula in formulas(page):
        assert formula.count("{") == formula.count("}"), formula
        assert len(re.findall(r"\\left\b", formula)) == len(re.findall(r"\\right\b", formula)), formula


def test_years_are_those_of_the_timeline() -> None:
    rows = re.findall(
        r"^\| (\d{4}) \| (\w+)", (FOLDER / "history.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(rows) > 25
    assert [year for year, _ in rows] == sorted(year for year, _ in rows)
    known = 0
    for year, surname in rows:
        years = {entry.year for entry in HISTORY if surname in entry.authors.split(",")[0].split()}
        known += bool(years)
        assert not years or int(year) in years, f"{surname} {year}: the timeline has {sorted(years)}"
    assert known > 20
