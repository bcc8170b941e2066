"""The head view in a real browser: it draws the lines that Python would, and says what the user chose."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from analysis.figure_data import HEAD_COLOURS, HeadView, TokenLabel, weight_levels
from analysis.visible import visible_lines
from dashboard.figures import head_view_payload
from scripts.server import AppServer, end, free_port, wait_until_healthy
from tests.browser.component_page import ComponentPage
from tests.conftest import ROOT as ROOT_FOLDER

LAYERS, HEADS = 3, 12
ROOT = ".lines"
LEFT, RIGHT = ".lines-left .lines-row", ".lines-right .lines-row"


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def attention(*shape, seed=0, sharpness=2.0):
    return softmax(np.random.default_rng(seed).normal(scale=sharpness, size=shape))


def pair_tokens(first=18, second=20):
    """[CLS] and words of A, [SEP], words of B, [SEP]; every third word has two pieces."""
    tokens = [TokenLabel("[CLS]", "[CLS]", special=True)]
    for segment, count in ((0, first), (1, second)):
        words = [
            TokenLabel(f"w{i}", f"##w{i}", segment=segment, word=i, continues=i % 3 == 1)
            for i in range(count - 2 + segment)
        ]
        tokens += [*words, TokenLabel("[SEP]", "[SEP]", special=True, segment=segment)]
    return tuple(tokens)


TOKENS = pair_tokens()
WEIGHTS = attention(LAYERS, HEADS, len(TOKENS), len(TOKENS))


def head_view(**changes):
    view = HeadView(
        weights=WEIGHTS[1], left=TOKENS, right=TOKENS, layer=1, layers=LAYERS, active=tuple(range(HEADS))
    )
    return replace(view, **changes)


@pytest.fixture
def component(watched_page):
    """The component in a page that is tall enough for all rows; nothing may go wrong in it."""
    yield ComponentPage(watched_page.page, "head_view", height=1100)
    assert watched_page.errors == []
    assert watched_page.outside == []


def drawn(component):
    data = component.data(ROOT)
    return {name: int(data[name]) for name in ("drawn", "candidates", "cutoff", "layer")}


def expected(view):
    lines = visible_lines(view)
    return {
        "drawn": len(lines.weights),
        "candidates": lines.candidates,
        "cutoff": lines.cutoff,
        "layer": view.layer,
    }


def text_of(component, selector):
    return component.page.locator(selector).inner_text()


VARIANTS = {
    "all": {},
    "some heads": {"active": (0, 3, 7)},
    "one head": {"active": (5,)},
    "threshold": {"threshold": 0.1},
    "high threshold": {"threshold": 0.9},
    "no special tokens": {"hide_special": True},
    "a to b": {"pair_filter": "ab"},
    "b to a without special tokens": {"pair_filter": "ba", "hide_special": True, "threshold": 0.02},
    "pinned query": {"pinned": ("left", 4)},
    "pinned key": {"pinned": ("right", 20), "active": (1, 2)},
    "pinned key of the other sentence": {"pinned": ("right", 20), "pair_filter": "ab"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_it_draws_the_lines_that_python_draws(component, changes):
    view = head_view(**changes)
    component.page.evaluate("window.strokes = 0")
    component.draw(head_view_payload(view, all_layers=WEIGHTS, merged=False))
    assert drawn(component) == expected(view)
    strokes = component.page.evaluate("window.strokes")
    assert strokes % max(expected(view)["drawn"], 1) == 0  # whole pictures
    assert (strokes > 0) == (expected(view)["drawn"] > 0)


def test_what_the_cap_leaves_out_is_told(component):
    view = head_view()
    lines = visible_lines(view)
    assert len(lines.weights) < lines.candidates  # else this shows nothing
    component.draw(head_view_payload(view))
    told = text_of(component, ".lines-note")
    assert told == f"showing the strongest {len(lines.weights):,} of {lines.candidates:,} lines"
    component.page.locator(RIGHT).nth(3).hover()
    expect(component.page.locator(".lines-note")).to_have_text(re.compile(r"^[\d,]+ lines$"))


def test_pointing_at_a_token_shows_its_lines_and_shares(component):
    component.draw(head_view_payload(head_view(active=(2, 5))))
    component.page.locator(LEFT).nth(6).hover()
    component.frames()
    assert drawn(component)["drawn"] == expected(head_view(active=(2, 5), pinned=("left", 6)))["drawn"]
    levels = weight_levels(WEIGHTS[1, [2, 5], 6])  # (2, K)
    means = ((levels / 255.0) ** 2).mean(0)
    shares = component.page.locator(f"{RIGHT} .lines-share").all_inner_texts()
    for share, mean in zip(shares, means, strict=True):
        assert share == percent(mean)
    tints = component.page.locator(f"{RIGHT} .lines-token").evaluate_all(
        "tokens => tokens.map(token => token.style.backgroundColor)"
    )
    assert all("color-mix" in tint for tint in tints)
    component.page.locator(".lines-note").hover()
    expect(component.page.locator(f"{RIGHT} .lines-share").first).to_have_text("")
    component.frames()
    assert drawn(component)["drawn"] == expected(head_view(active=(2, 5)))["drawn"]


def percent(weight):
    share = 100 * weight
    if 0 < share < 0.1:
        return "<0.1\u202f%"
    return f"{share:.1f}\u202f%" if 0 < share < 9.95 else f"{share:.0f}\u202f%"


def test_pointing_at_a_key_tells_who_attends_to_it(component):
    component.draw(head_view_payload(head_view(active=(4,))))
    component.page.locator(RIGHT).nth(9).hover()
    component.frames()
    levels = weight_levels(WEIGHTS[1, 4, :, 9])
    shares = component.page.locator(f"{LEFT} .lines-share").all_inner_texts()
    assert shares == [percent((level / 255.0) ** 2) for level in levels.astype(float)]
    assert "is attended to by" in text_of(component, ".lines-readout")


def test_the_live_line_reads_the_strongest_five(component):
    component.draw(head_view_payload(head_view(active=(3,))))
    component.page.locator(LEFT).nth(2).hover()
    strongest = np.argsort(-WEIGHTS[1, 3, 2])[:5]
    live = component.page.locator("[aria-live=polite]")
    expect(live).to_contain_text("attends to")
    expect(live).to_contain_text("(head 3, layer 1)")
    sentence = live.inner_text()
    for key in strongest:
        level = float(weight_levels(WEIGHTS[1, 3, 2])[key])
        assert f"“{TOKENS[key].text}” {percent((level / 255) ** 2)}" in sentence


def test_a_click_pins_and_escape_clears(component):
    component.draw(head_view_payload(head_view(), merged=False))
    component.page.locator(LEFT).nth(4).click()
    assert component.wait_for_word(1)["pinned"] == ["left", 4]
    component.page.mouse.move(600, 5)
    expect(component.page.locator(".lines-readout")).to_contain_text("Pinned: “w3” attends to")
    assert drawn(component)["drawn"] == expected(head_view(pinned=("left", 4)))["drawn"]
    component.page.locator(RIGHT).nth(1).hover()  # a look at another token, then back to the pinned one
    component.frames()
    assert drawn(component)["drawn"] == expected(head_view(pinned=("right", 1)))["drawn"]
    component.page.locator(".lines-stage").focus()
    component.page.keyboard.press("Escape")
    assert component.wait_for_word(2)["pinned"] is None
    component.frames()
    assert drawn(component) == expected(head_view())
    component.page.locator(LEFT).nth(4).click()
    component.page.locator(LEFT).nth(4).click()
    assert component.wait_for_word(4)["pinned"] is None


def test_the_keyboard_does_it_all(component):
    component.draw(head_view_payload(head_view(), all_layers=WEIGHTS))
    page = component.page
    page.locator(".lines-stage").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    component.frames()
    assert drawn(component)["drawn"] == expected(head_view(pinned=("left", 2)))["drawn"]
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Enter")
    assert component.wait_for_word(1)["pinned"] == ["right", 2]
    page.keyboard.press("End")
    component.frames()
    last = expected(head_view(pinned=("right", len(TOKENS) - 1)))
    assert drawn(component)["drawn"] == last["drawn"]
    page.keyboard.press("ArrowRight")
    assert component.wait_for_word(2)["layer"] == 2
    component.frames()
    assert drawn(component)["layer"] == 2
    page.keyboard.press("ArrowRight")  # there is no further layer
    page.keyboard.press("Escape")
    told = component.wait_for_word(3)
    assert (told["layer"], told["pinned"]) == (2, None)
    page.locator(".lines-chip").nth(4).focus()
    page.keyboard.press("s")
    expect(page.locator(".lines-chip[aria-pressed=true]")).to_have_text("4")


def test_every_control_can_be_reached_by_tab(component):
    component.draw(head_view_payload(head_view(), all_layers=WEIGHTS, merged=False))
    reached = []
    for _ in range(40):
        component.page.keyboard.press("Tab")
        name = component.page.evaluate(
            "() => { const at = document.activeElement;"
            " return at?.getAttribute('aria-label') ?? at?.closest('label')?.innerText ?? at?.innerText ?? ''; }"
        )
        reached.append(name.split(".")[0])
    for name in (
        "Layer",
        "Head 0",
        "Head 11",
        "Smallest weight that is drawn",
        "Special tokens",
        "Whole words",
    ):
        assert name in reached
    assert "Attention lines" in reached
    outline = component.page.eval_on_selector(
        ".lines-stage", "e => { e.focus(); return getComputedStyle(e).outlineStyle }"
    )
    assert outline == "solid"


def test_heads_are_switched_and_shown_alone(component):
    component.draw(head_view_payload(head_view()))
    chips = component.page.locator(".lines-chip")
    chips.nth(3).click()
    rest = [head for head in range(HEADS) if head != 3]
    assert component.wait_for_word(1)["heads"] == rest
    assert drawn(component) == expected(head_view(active=tuple(rest)))
    expect(chips.nth(3)).to_have_attribute("aria-pressed", "false")
    chips.nth(7).dblclick()
    assert component.wait_for_word(2)["heads"] == [7]
    assert drawn(component) == expected(head_view(active=(7,)))
    component.page.get_by_role("button", name="All heads on").click()
    assert component.wait_for_word(3)["heads"] == list(range(HEADS))


def test_no_head_is_a_state_of_the_screen_alone(component):
    component.draw(head_view_payload(head_view(active=(2, 3))))
    component.page.get_by_role("button", name="All heads off").click()
    expect(component.page.locator(".lines-message")).to_have_text("No head is switched on. Choose one above.")
    component.frames()
    assert drawn(component)["drawn"] == 0
    assert component.wait_for_word(1)["heads"] == [2, 3]  # Python keeps the last ones: none would mean all
    component.draw(head_view_payload(head_view(active=(2, 3))))
    assert drawn(component)["drawn"] == 0
    component.page.locator(".lines-chip").nth(5).click()
    assert component.wait_for_word(2)["heads"] == [5]


def test_chips_have_the_colours_of_the_heads(component):
    component.draw(head_view_payload(head_view()))
    colours = component.page.locator(".lines-chip").evaluate_all(
        "chips => chips.map(chip => chip.style.getPropertyValue('--head'))"
    )
    assert colours == [HEAD_COLOURS[head % len(HEAD_COLOURS)] for head in range(HEADS)]


def test_pair_filter_keeps_the_rows_of_its_sentences(component):
    component.draw(head_view_payload(head_view(pinned=("left", 25)), merged=False))
    component.page.get_by_role("button", name="A→B").click()
    told = component.wait_for_word(1)
    assert (told["filter"], told["pinned"]) == ("ab", None)  # the pinned query is in B and went away
    component.frames()
    assert drawn(component) == expected(head_view(pair_filter="ab"))
    first = [index for index, token in enumerate(TOKENS) if token.segment == 0]
    assert visible_rows(component, LEFT) == first
    assert visible_rows(component, RIGHT) == [i for i in range(len(TOKENS)) if i not in first]
    assert component.page.locator(".lines-left .lines-segment").all_inner_texts()[:1] == ["A"]


def visible_rows(component, selector):
    return component.page.locator(selector).evaluate_all(
        "rows => rows.filter(row => row.offsetHeight).map(row => Number(row.dataset.index))"
    )


def test_a_single_sentence_has_no_pair_filter(component):
    tokens = tuple(replace(token, segment=0) for token in TOKENS)
    component.draw(head_view_payload(head_view(left=tokens, right=tokens)))
    assert component.page.locator(".view-choice").count() == 0
    assert component.page.locator(".lines-segment").count() == 0


def test_a_filter_without_a_pair_can_still_be_taken_off(component):
    tokens = tuple(replace(token, segment=0) for token in TOKENS)
    component.draw(head_view_payload(head_view(left=tokens, right=tokens, pair_filter="ab")))
    component.page.get_by_role("button", name="All", exact=True).click()
    assert component.wait_for_word(1)["filter"] == "all"
    assert len(visible_rows(component, LEFT)) == len(TOKENS)


def test_special_tokens_can_be_hidden(component):
    component.draw(head_view_payload(head_view()))
    component.page.get_by_label("Special tokens").uncheck()
    assert component.wait_for_word(1)["hide_special"] is True
    assert drawn(component) == expected(head_view(hide_special=True))
    assert visible_rows(component, LEFT) == [i for i, token in enumerate(TOKENS) if not token.special]
    assert "weights not renormalised" in text_of(component, ".lines-note")


def test_threshold_hides_weaker_lines(component):
    component.draw(head_view_payload(head_view()))
    slider = component.page.get_by_label("Smallest weight that is drawn")
    slider.fill("128")
    slider.dispatch_event("change")
    told = component.wait_for_word(1)["threshold"]
    assert told == pytest.approx((128 / 255) ** 2)
    assert drawn(component) == expected(head_view(threshold=told))
    expect(component.page.locator(".lines-threshold")).to_have_text("≥ 0.252")


def test_words_are_merged_by_python(component):
    component.draw(head_view_payload(head_view(pinned=("left", 3)), merged=False))
    component.page.get_by_label("Whole words").check()
    told = component.wait_for_word(1)
    assert (told["merge_words"], told["pinned"]) == (True, None)
    words = tuple(TokenLabel(f"word{i}", f"word{i}", word=i) for i in range(6))
    merged = head_view(weights=attention(HEADS, 6, 6, seed=4), left=words, right=words)
    component.draw(head_view_payload(merged, merged=True))
    assert component.page.locator(f"{LEFT} .lines-token").all_inner_texts() == [word.text for word in words]
    assert drawn(component) == expected(merged)
    expect(component.page.get_by_label("Whole words")).to_be_checked()


def test_a_missing_layer_is_asked_for_and_waited_for(component):
    component.draw(head_view_payload(head_view()))
    component.page.get_by_label("Layer", exact=True).select_option("2")
    assert component.wait_for_word(1)["layer"] == 2
    expect(component.page.locator(".lines-message")).to_have_text("Loading layer 2 …")
    expect(component.page.locator(".lines-spinner")).to_be_visible()
    assert drawn(component)["layer"] == 1
    arrived = head_view(weights=WEIGHTS[2], layer=2)
    component.draw(head_view_payload(arrived))
    expect(component.page.locator(".lines-message")).to_be_hidden()
    expect(component.page.locator(".lines-spinner")).to_be_hidden()
    assert drawn(component) == expected(arrived)


def test_a_layer_that_does_not_come_is_told(watched_page):
    watched_page.page.clock.install()
    component = ComponentPage(watched_page.page, "head_view")
    draw = "text => { window.draw(text) }"
    watched_page.page.evaluate(draw, base64.b64encode(head_view_payload(head_view())).decode())
    watched_page.page.clock.run_for(200)
    component.page.get_by_label("Layer", exact=True).select_option("2")
    watched_page.page.clock.run_for(15_000)
    expect(component.page.locator(".lines-message")).to_have_text("Loading layer 2 …")
    watched_page.page.clock.run_for(6_000)
    expect(component.page.locator(".lines-note")).to_have_text("Layer 2 did not arrive; layer 1 is shown.")
    assert component.said()[-1]["layer"] == 1
    assert watched_page.errors == []


def test_present_layers_need_no_answer(component):
    component.draw(head_view_payload(head_view(), all_layers=WEIGHTS))
    component.page.get_by_role("button", name="Previous layer").click()
    component.frames()
    assert drawn(component) == expected(head_view(weights=WEIGHTS[0], layer=0))
    expect(component.page.get_by_role("button", name="Previous layer")).to_be_disabled()


def test_a_late_echo_does_not_undo_a_newer_choice(component):
    everyone = tuple(range(HEADS))
    component.draw(head_view_payload(head_view(), all_layers=WEIGHTS))
    following = component.page.get_by_role("button", name="Next layer")
    following.click()
    component.wait_for_word(1)
    component.page.locator(".lines-chip").nth(0).click()
    component.wait_for_word(2)
    component.draw(
        head_view_payload(head_view(layer=2, weights=WEIGHTS[2]), all_layers=WEIGHTS)
    )  # first echo
    assert drawn(component) == expected(head_view(weights=WEIGHTS[2], layer=2, active=everyone[1:]))
    second = head_view(weights=WEIGHTS[2], layer=2, active=everyone[1:])
    component.draw(head_view_payload(second, all_layers=WEIGHTS))
    assert drawn(component) == expected(second)
    component.draw(head_view_payload(head_view(layer=2, weights=WEIGHTS[2]), all_layers=WEIGHTS))
    assert drawn(component) == expected(
        head_view(layer=2, weights=WEIGHTS[2])
    )  # all echoes were heard: this is news
    news = head_view(weights=WEIGHTS[0], layer=0, active=(4,), pinned=("left", 1))  # another view chose
    component.draw(head_view_payload(news, all_layers=WEIGHTS))
    assert drawn(component) == expected(news)


def test_a_new_text_forgets_the_pinned_token(component):
    component.draw(head_view_payload(head_view()))
    component.page.locator(LEFT).nth(4).click()
    first = component.wait_for_word(1)
    words = tuple(TokenLabel(text, text) for text in ("one", "two", "three", "four", "five", "six"))
    other = head_view(weights=attention(HEADS, 6, 6, seed=9), left=words, right=words)
    component.draw(head_view_payload(other))
    component.page.mouse.move(5, 5)
    lines = str(expected(other)["drawn"])
    expect(component.page.locator(ROOT)).to_have_attribute("data-drawn", lines)  # once the pointer has left
    assert drawn(component) == expected(other)
    component.page.locator(LEFT).nth(1).click()
    assert component.wait_for_word(2)["input"] != first["input"]


HOSTILE = (
    "<!--#exec",
    "-->",
    "a<b<c",
    "<script>window.broken=1</script>",
    "</script><img src=x onerror=window.broken=2>",
    "<b onclick=alert(1)>",
    "&lt;i&gt;",
    "javascript:window.broken=3",
    "${window.broken=4}",
)


def test_hostile_tokens_are_plain_text(component):
    tokens = tuple(TokenLabel(text, text, unknown=True) for text in HOSTILE)
    view = head_view(weights=attention(HEADS, len(tokens), len(tokens)), left=tokens, right=tokens)
    component.draw(head_view_payload(view, title=HOSTILE[4]))
    labels = component.page.locator(f"{LEFT} .lines-token").all_inner_texts()
    titles = component.page.locator(LEFT).evaluate_all("rows => rows.map(row => row.title)")
    for text, label, title in zip(HOSTILE, labels, titles, strict=True):
        assert label == text or (label.endswith("…") and text.startswith(label[:-1]))
        assert text in title
        assert "unknown to the model" in title
    for index in range(len(tokens)):
        component.page.locator(LEFT).nth(index).hover()
    component.page.locator(LEFT).nth(4).click()
    expect(component.page.locator("[aria-live=polite]")).to_contain_text("</script>")
    assert component.page.evaluate("window.broken") is None
    assert component.page.locator("#host img, #host script, #host b[onclick]").count() == 0


def test_right_to_left_text_reads_from_the_right(component):
    tokens = tuple(TokenLabel(text, text) for text in ("ذهب", "الولد", "إلى", "المدرسة."))
    view = head_view(weights=attention(HEADS, 4, 4), left=tokens, right=tokens, direction="rtl")
    component.draw(head_view_payload(view))
    directions = component.page.locator(f"{RIGHT} .lines-token").evaluate_all(
        "tokens => tokens.map(token => getComputedStyle(token).direction)"
    )
    assert directions == ["rtl"] * 4
    assert component.page.locator(f"{LEFT} .lines-token").all_inner_texts() == [
        token.text for token in tokens
    ]
    assert component.page.locator(f"{RIGHT} .lines-token").all_inner_texts() == [
        token.text for token in tokens
    ]
    assert "right-to-left text in the model's order" in text_of(component, ".lines-note")


def test_cross_attention_is_rectangular(component):
    decoder = tuple(TokenLabel(text, text) for text in ("le", "chat", "dort"))
    encoder = tuple(TokenLabel(text, text) for text in ("the", "cat", "is", "asleep", "now"))
    weights = attention(HEADS, 3, 5, seed=3)
    view = head_view(weights=weights, left=decoder, right=encoder, kind="cross", active=(1,))
    component.draw(head_view_payload(view))
    assert drawn(component) == expected(view)
    assert text_of(component, ".lines-name >> nth=0") == "Decoder (query) · 3 tokens"
    assert text_of(component, ".lines-name >> nth=1") == "Encoder (key) · 5 tokens"
    component.page.locator(RIGHT).nth(4).hover()
    component.frames()
    levels = weight_levels(weights[1, :, 4]).astype(float)
    shares = component.page.locator(f"{LEFT} .lines-share").all_inner_texts()
    assert shares == [percent((level / 255) ** 2) for level in levels]


def test_heads_that_share_a_key_value_head_stand_together(component):
    component.draw(head_view_payload(head_view(groups=tuple(head // 4 for head in range(HEADS)))))
    groups = component.page.locator(".lines-group")
    assert groups.count() == 3
    for group in range(3):
        chips = groups.nth(group).locator(".lines-chip").all_inner_texts()
        assert chips == [str(head) for head in range(4 * group, 4 * group + 4)]
        expect(groups.nth(group)).to_have_attribute(
            "aria-label", f"Heads that share key and value head {group}"
        )


def test_a_page_without_python_offers_what_it_has(watched_page):
    component = ComponentPage(watched_page.page, "head_view", connected=False)
    component.draw(head_view_payload(head_view(), merged=False))
    enabled = component.page.locator(".lines-select option:not([disabled])").all_inner_texts()
    assert enabled == ["1"]
    assert component.page.get_by_label("Whole words").count() == 0
    component.page.locator(".lines-chip").nth(0).click()
    component.page.locator(LEFT).nth(1).click()
    component.page.get_by_role("button", name="Next layer").click()
    component.frames()
    assert drawn(component)["layer"] == 1
    assert watched_page.errors == []


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 3), (2, 1, 5, 1)])
def test_smallest_inputs_are_drawn(component, shape):
    layers, heads, queries, keys = shape
    weights = attention(*shape)
    view = HeadView(
        weights=weights[0],
        left=tuple(TokenLabel(f"q{i}", f"q{i}") for i in range(queries)),
        right=tuple(TokenLabel(f"k{i}", f"k{i}") for i in range(keys)),
        layer=0,
        layers=layers,
        active=tuple(range(heads)),
    )
    component.draw(head_view_payload(view, all_layers=weights))
    assert drawn(component) == expected(view)


def test_512_tokens_are_drawn_where_they_are_looked_at(component):
    weights = attention(HEADS, 512, 512, seed=1)
    tokens = tuple(TokenLabel(f"t{i}", f"t{i}", word=i) for i in range(512))
    view = head_view(weights=weights, left=tokens, right=tokens)
    component.draw(head_view_payload(view))
    assert drawn(component) == expected(view)
    component.page.locator(".lines-stage").focus()
    for key in ("ArrowDown", "End"):
        component.page.keyboard.press(key)
    component.frames()
    expect(component.page.locator(LEFT).last).to_be_in_viewport()
    assert drawn(component)["drawn"] == expected(replace(view, pinned=("left", 511)))["drawn"]
    shown = component.page.locator(f"{RIGHT} .lines-share").evaluate_all(
        "shares => shares.filter(share => share.textContent).length"
    )
    assert 0 < shown < 80  # the visible rows alone


def test_the_newest_call_alone_ends_the_view(component):
    component.draw(head_view_payload(head_view()))
    component.draw(head_view_payload(head_view(active=(1,))))
    component.page.evaluate("window.ends[0]()")
    assert component.page.locator(ROOT).count() == 1
    component.page.evaluate("window.ends[1]()")
    assert component.page.locator(ROOT).count() == 0


def test_it_fits_600_pixels(watched_page):
    component = ComponentPage(watched_page.page, "head_view", width=600)
    component.draw(head_view_payload(head_view(), merged=False))
    component.page.locator(LEFT).nth(2).hover()
    component.frames()
    over = component.page.eval_on_selector(ROOT, "root => root.scrollWidth - root.clientWidth")
    assert over <= 0
    assert component.page.locator(f"{RIGHT} .lines-share").nth(0).inner_text().endswith("%")
    box = component.page.locator(f"{RIGHT} .lines-token").nth(0).bounding_box()
    assert box["x"] + box["width"] <= 612


# In the app ----------------------------------------------------------------------------------------------------

APP = """
import sys

sys.path.insert(0, {root!r})
import numpy as np
import streamlit as st

from analysis.figure_data import HeadView, TokenLabel
from dashboard.components import head_view, head_view_state
from dashboard.figures import head_view_payload, read_header

tokens = tuple(TokenLabel(f"t{{i}}", f"t{{i}}", word=i) for i in range(200))
weights = np.random.default_rng(0).random((3, 12, 200, 200), dtype=np.float32) / 100


def build(layer=0, heads=tuple(range(12)), pinned=None):
    view = HeadView(weights[layer], tokens, tokens, layer, 3, tuple(heads), pinned=pinned)
    return head_view_payload(view)


said = head_view_state(read_header(build())[0], key="lines")
chosen = {{name: said[name] for name in ("layer", "heads", "pinned") if name in said}}
state = head_view(build(**chosen), key="lines", height=520)
st.text(f"Python heard layer {{state.get('layer')}} pinned {{state.get('pinned')}} heads {{state.get('heads')}}")
"""


@pytest.fixture
def small_app(tmp_path):
    """A page with the component alone, on a server of its own."""
    script = tmp_path / "page.py"
    script.write_text(APP.format(root=str(ROOT_FOLDER)), encoding="utf-8")
    port = free_port()
    options = [
        f"--server.port={port}",
        "--server.headless=true",
        "--server.address=127.0.0.1",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    ]
    command = [sys.executable, "-m", "streamlit", "run", str(script), *options]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT_FOLDER, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            server = AppServer(url=f"http://127.0.0.1:{port}", log=log, process_id=process.pid)
            wait_until_healthy(server, process)
            yield server
        finally:
            end(process)


def test_in_the_app_python_hears_and_sends_the_layer_that_was_asked_for(small_app, watched_page):
    page = watched_page.page
    page.goto(small_app.url)
    heard = page.get_by_text("Python heard")
    expect(heard).to_have_text("Python heard layer None pinned None heads None", timeout=60_000)
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-layer", "0", timeout=30_000)
    assert abs(root.bounding_box()["height"] - 520) <= 1  # the frame's height, not the content's
    page.get_by_label("Layer", exact=True).select_option("2")
    expect(root).to_have_attribute("data-layer", "2", timeout=30_000)
    expect(page.locator(".lines-spinner")).to_be_hidden()
    expect(heard).to_contain_text("layer 2", timeout=30_000)
    page.locator(LEFT).nth(5).click()
    expect(heard).to_contain_text("pinned ['left', 5]", timeout=30_000)
    page.locator(".lines-chip").nth(3).dblclick()
    expect(heard).to_contain_text("heads [3]", timeout=30_000)
    expect(page.locator(".lines-chip[aria-pressed=true]")).to_have_count(1)
    page.locator(".lines-stage").focus()
    page.keyboard.press("Escape")
    expect(heard).to_contain_text("pinned None", timeout=30_000)
    expect(root).to_have_attribute("data-layer", "2")
    assert watched_page.errors == []
    assert watched_page.outside == []
