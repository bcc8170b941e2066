"""The timeline: its facts hang together, every link opens what it names, and it goes through screen and files."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest

from analysis.catalogue import BUNDLED
from analysis.evidence.methods import METHODS
from analysis.heads.measures import STATISTICS
from analysis.lab.timeline import HISTORY, THEMES, timeline
from analysis.trained import OFFERED
from analysis.visible_story import BREAK, check_timeline, lanes, theme_colour, timeline_in_words, years
from dashboard.components.story_views import TimelinePick, checked_timeline
from dashboard.figures import unpack
from dashboard.lab_sections import SECTION_PAGES
from dashboard.selection import default_selection, from_query
from dashboard.story_payload import timeline_payload
from dashboard.timeline_links import TARGETS, addresses, opened, query
from tests.sample_figures import timeline as sample

KEYS = [entry.key for entry in HISTORY]


# Facts --------------------------------------------------------------------------------------------------------------


def test_the_history_runs_from_the_cocktail_party_to_flex_attention():
    assert (HISTORY[0].key, HISTORY[0].year) == ("cherry", 1953)
    assert (HISTORY[-1].key, HISTORY[-1].year) == ("flex", 2024)
    assert [entry.year for entry in HISTORY] == sorted(entry.year for entry in HISTORY)
    assert len(set(KEYS)) == len({entry.name for entry in HISTORY}) == len({entry.title for entry in HISTORY})
    assert {entry.theme for entry in HISTORY} == set(THEMES)
    for entry in HISTORY:
        assert entry.added.endswith("."), entry.key
        assert entry.source, entry.key
        assert entry.authors, entry.key


@pytest.mark.parametrize("entry", HISTORY, ids=KEYS)
def test_the_year_is_that_of_the_first_version_on_arxiv(entry):
    found = [part for part in entry.source.replace(";", " ").split() if part.startswith("arXiv:")]
    if found:
        digits = found[0].removeprefix("arXiv:")[:2]
        assert entry.year == 2000 + int(digits)
    else:
        assert entry.year < 2000 or entry.key == "gpt2"


# Links --------------------------------------------------------------------------------------------------------------


def test_every_entry_has_a_link_and_every_link_an_entry():
    assert set(TARGETS) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_link_reads_back_without_a_note(key):
    target = TARGETS[key]
    page, _, params = addresses()[key].partition("?")
    assert page == ("." if target.page == "text" else target.page)
    assert dict(parse_qsl(params)) == query(target)
    read = from_query(dict(parse_qsl(urlsplit(addresses()[key]).query)), default_selection(), target.page)
    assert read.notes == ()
    assert read == opened(target)


@pytest.mark.parametrize("entry", HISTORY, ids=KEYS)
def test_a_link_leads_where_its_words_say(entry):
    target = TARGETS[entry.key]
    if target.page != "lab":
        assert entry.here.startswith(f"{target.page.capitalize()} page: ")
        return
    titles = {"formula": "Formula", "masks": "Masks", "alignment": "Alignment", "heads": "Heads"}
    section = target.section
    assert section in SECTION_PAGES
    assert entry.here.startswith(titles.get(section, SECTION_PAGES[section].title))


def test_links_name_methods_statistics_and_models_that_there_are():
    models = {model.name for model in (*BUNDLED, *OFFERED)}
    for key, target in TARGETS.items():
        for method in target.choices.get("evidence", {}).get("methods", ()):
            assert method in METHODS, key
        statistic = target.choices.get("patterns", {}).get("statistic")
        assert statistic is None or statistic in STATISTICS, key
        if "model" in target.choices:
            assert target.choices["model"].name in models, key


# The record ---------------------------------------------------------------------------------------------------------


def test_a_theme_shows_its_entries_alone():
    everything = timeline(addresses(), entry="flex")
    assert [entry.key for entry in everything.entries] == KEYS
    assert everything.selected == "flex"
    one = timeline(addresses(), theme="memory", entry="flex")
    assert {entry.theme for entry in one.entries} == {"memory"}
    assert one.selected == ""  # it is of another theme
    assert lanes(one) == (("memory", THEMES["memory"]),)
    assert theme_colour(one, "memory") == theme_colour(everything, "memory")
    assert sum(len(entries) for _, entries in years(everything)) == len(KEYS)
    assert one.title.startswith("Attention, 1964 to ")
    with pytest.raises(ValueError, match=r"theme must be all or one of mind, .* but is 'music'"):
        timeline(addresses(), theme="music")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entries": ()}, "entries must be at least one"),
        ({"entries": sample().entries[::-1]}, "by ascending year"),
        ({"entries": sample().entries[:1] * 2}, "'key0' comes twice"),
        ({"themes": (("mind", "Mind"),)}, "theme of 'key1' must be one of mind but is 'efficient'"),
        ({"selected": "nobody"}, "selected must be the key of an entry but is 'nobody'"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"here: .*{message}"):
        check_timeline(replace(sample(), **changes), "here")


def test_the_caption_counts_and_names_what_is_opened():
    text = timeline_in_words(timeline(addresses(), entry="bahdanau"))
    assert text.startswith(f"{len(KEYS)} works, 1953 to 2024.")
    assert "Opened: Dzmitry Bahdanau, Kyunghyun Cho, Yoshua Bengio (2014), Neural Machine" in text
    assert "Opened" not in timeline_in_words(timeline(addresses()))
    assert timeline_in_words(replace(sample(), entries=sample().entries[:1], selected="")).startswith(
        "1 work,"
    )


# To the browser and back --------------------------------------------------------------------------------------------


def test_the_blob_holds_the_lanes_that_have_entries():
    header, _ = unpack(timeline_payload(sample()))
    assert [lane["key"] for lane in header["lanes"]] == ["mind", "efficient"]
    assert header["break"] == BREAK
    assert header["state"] == {"entry": "key1"}
    assert [entry["alike"] for entry in header["entries"]] == [True, False, True]


@pytest.mark.parametrize(
    ("said", "pick"),
    [
        ({"entry": "key0", "follow": False}, TimelinePick("key0", False)),
        ({"entry": "key0", "follow": True}, TimelinePick("key0", True)),
        ({"entry": "", "follow": True}, TimelinePick("", False)),
        ({"entry": "nobody", "follow": False}, None),
        ({"entry": 3, "follow": False}, None),
        ({"entry": "key0", "follow": "yes"}, None),
        ({"entry": "key0", "follow": False, "input": "of another"}, None),
        (None, None),
    ],
)
def test_what_the_browser_says_is_checked(said, pick):
    header, _ = unpack(timeline_payload(sample()))
    event = None if said is None else {"input": header["input"], **said}
    assert checked_timeline({"pick": event}, header) == pick
    assert checked_timeline("nonsense", header) is None
