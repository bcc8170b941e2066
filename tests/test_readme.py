"""What the documents promise: their Python runs, their links lead somewhere, their figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("**/*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *ROOT.glob("models/**/*.md"),
    ]
)


def python_blocks():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def bundled_or_skip():
    from analysis.catalogue import BUNDLED, is_installed

    missing = [model.name for model in BUNDLED if not is_installed(model)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; run `make bundled`")


def test_the_first_example_runs():
    import torch

    bundled_or_skip()
    names = {}
    exec(compile(python_blocks()[0], "README.md", "exec"), names)
    assert names["layer"].dense().shape[0] == 12
    torch.testing.assert_close(
        names["layer"].dense().sum(-1), torch.ones_like(names["layer"].dense().sum(-1))
    )
    assert names["cls"].shape == (names["grid"].rows, names["grid"].columns)


def test_the_second_example_runs():
    bundled_or_skip()
    from analysis.inputs import encode_text
    from analysis.models import load_model

    loaded = load_model("minilm")
    tensors = encode_text(loaded, "The cat slept.").tensors
    names = {"model": loaded.module, "tensors": tensors}
    exec(compile(python_blocks()[1], "README.md", "exec"), names)
    attention = names["attention"]
    assert (len(attention.encoder), len(attention.decoder), len(attention.cross)) == (6, 0, 0)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_stated_limits_are_those_of_the_code():
    from analysis.catalogue import BUNDLED
    from analysis.figure_data import LINE_CAP

    text = Path(ROOT / "README.md").read_text(encoding="utf-8")
    assert f"At most the {LINE_CAP:,} strongest lines" in text
    limit = re.search(
        r"^TOKEN_LIMIT = (\d+)", (ROOT / "dashboard" / "cached.py").read_text(), flags=re.MULTILINE
    )
    assert f"up to {int(limit.group(1)):,} tokens" in text
    assert f"({sum(model.size for model in BUNDLED) / 1e6:.0f} MB" in text
    for model in BUNDLED:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{model.name}` |"))
        assert model.title in row
        assert model.package in row


def test_every_method_has_its_page():
    from analysis.evidence.methods import METHODS

    pages = {path.stem.replace("-", "_") for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert pages == {*METHODS, "README", "lrp", "every_word"}
