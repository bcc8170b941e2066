"""The samples: ids for links, licences that allow shipping them, texts of every kind that views must bear."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest

from analysis.images import read_picture
from analysis.samples import (
    PICTURE_SAMPLES,
    PICTURES,
    TEXT_SAMPLES,
    picture_sample,
    sample_picture_bytes,
    text_sample,
)

FREE = ("CC0 1.0", "CC BY 2.0", "CC BY 4.0", "Public domain")


def test_ids_are_unique_and_fit_into_a_link():
    ids = [sample.id for sample in (*TEXT_SAMPLES, *PICTURE_SAMPLES)]
    assert len(set(ids)) == len(ids)
    assert all(sample_id.isascii() and sample_id.islower() and sample_id.isalnum() for sample_id in ids)


def test_texts_cover_what_views_must_bear():
    assert len(TEXT_SAMPLES) >= 12
    assert sum(sample.pair is not None for sample in TEXT_SAMPLES) >= 3
    everything = "".join(sample.text for sample in TEXT_SAMPLES)
    scripts = {unicodedata.name(character).split()[0] for character in everything if character.isalpha()}
    assert {"LATIN", "ARABIC", "CJK", "DEVANAGARI"} <= scripts
    assert "a<b<c" in everything
    assert "</script>" in everything
    assert "Great😀" in everything
    assert all(sample.title and sample.note and sample.text == sample.text.strip() for sample in TEXT_SAMPLES)
    assert 200 < len(text_sample("long").text.split()) < 330


@pytest.mark.parametrize("sample", PICTURE_SAMPLES, ids=lambda sample: sample.id)
def test_pictures_are_small_upright_and_credited(sample):
    picture = read_picture(sample_picture_bytes(sample.id), name=sample.file)
    assert max(picture.pixels.shape) <= 640
    assert picture.notes == ()
    assert picture.pixels.std() > 20  # a photograph, not an empty canvas
    assert sample.licence in FREE
    credits = (PICTURES / "CREDITS.md").read_text(encoding="utf-8")
    row = next(line for line in credits.splitlines() if f"`{sample.file}`" in line)
    assert sample.credit.split(",")[0].split(" on ")[0] in row
    assert sample.licence in row
    assert f"{picture.pixels.shape[1]} × {picture.pixels.shape[0]}" in row
    assert sample.source.split(" of ")[0] in row


def test_the_folder_holds_the_samples_and_nothing_else():
    files = {path.name for path in PICTURES.iterdir()}
    assert files == {sample.file for sample in PICTURE_SAMPLES} | {"CREDITS.md"}
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 700_000


@pytest.mark.parametrize("find", [text_sample, picture_sample, sample_picture_bytes])
@pytest.mark.parametrize("name", ["", "nothing", "../../etc/passwd", "Cat"])
def test_an_unknown_id_is_refused_with_the_known_ones(find, name):
    with pytest.raises(ValueError, match=r"sample_id must be one of .+ but is"):
        find(name)


@pytest.mark.parametrize("module", ["samples", "images", "words", "figure_data", "token_labels"])
def test_what_the_first_page_needs_imports_no_heavy_library(module):
    heavy = "{'torch', 'transformers', 'matplotlib'}"
    code = f"import sys, analysis.{module}; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PICTURES.parent.parent)
    assert result.stdout.strip() == "[]"
