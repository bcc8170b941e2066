"""The stand-alone page of a figure: complete in itself, harmless, and showing what the record says."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.export import read_provenance
from analysis.visible import short_label, visible_lines, visible_text
from dashboard import standalone
from dashboard.components.mount import ComponentFiles
from dashboard.figures import unpack
from dashboard.standalone import figure_html
from tests.sample_figures import (
    HOSTILE,
    all_figures,
    head_view,
    labels,
    matrix_view,
    patch_maps,
    provenance,
    softmax_rows,
    token_scores,
)

ANY_TEXT = (
    st.text(st.characters(codec=None), max_size=40)
    | st.sampled_from(HOSTILE)
    | st.lists(st.sampled_from(["<", ">", "&", '"', "'", "/", "!--", "script", "img", " src=x"])).map("".join)
)

BLOBS = {
    "token_scores": "token_strip",
    "patch_maps": "patch_map",
    "checked_set": "drawing",
    "head_effects": "drawing",
    "trade_off": "drawing",
    "curve_sheet": "drawing",
}
"""Kinds of record whose blob has another name."""


def page_of(figure, **changes):
    return figure_html(figure, provenance(**changes)).decode("utf-8")


def element(page, kind):
    """Content of the one script element of a type."""
    found = re.findall(rf'<script type="{re.escape(kind)}"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", all_figures())
def test_a_page_holds_its_record_and_its_blob(name):
    figure = all_figures()[name]
    page = page_of(figure)
    document = read_provenance(page.encode(), "html")
    assert document["provenance"]["input"] == provenance().input
    header, arrays = unpack(base64.b64decode(element(page, "text/plain")))
    assert header["kind"] == BLOBS.get(document["kind"], document["kind"])
    assert arrays or document["kind"] == "timeline"  # which is texts alone
    assert f'class="{header["kind"]}"' in page


def test_a_page_starts_with_the_choices_on_the_screen():
    state = lambda figure: unpack(base64.b64decode(element(page_of(figure), "text/plain")))[0]["state"]  # noqa: E731
    pinned = state(head_view(pinned=("right", 3), threshold=0.25, hide_special=True))
    assert (pinned["pinned"], pinned["threshold"], pinned["hide_special"]) == (["right", 3], 0.25, True)
    assert state(matrix_view(zoom=(1, 4, 2, 9), selected=(2, 3), scale="sqrt")) == {
        "zoom": [1, 4, 2, 9],
        "selected": [2, 3],
        "scale": "sqrt",
    }
    assert state(token_scores(scale="sqrt")) == {"source": 2, "scale": "sqrt"}
    assert state(patch_maps(opacity=0.3, smooth=True))["opacity"] == 0.3


def every_layer():
    """Weights of six layers of three heads."""
    return softmax_rows((6, 3, len(HOSTILE), len(HOSTILE)), seed=9)


def test_a_head_view_takes_every_layer_along_and_opens_at_its_own():
    layers = every_layer()
    view = head_view(
        weights=layers[3], pinned=("right", 3), threshold=0.1, hide_special=True, pair_filter="ab"
    )
    page = figure_html(view, provenance(), all_layers=layers).decode()
    header, arrays = unpack(base64.b64decode(element(page, "text/plain")))
    assert header["present"] == [0, 1, 2, 3, 4, 5]
    assert arrays["weights"].nbytes == layers.size
    alone, _ = unpack(base64.b64decode(element(page_of(view), "text/plain")))
    assert header["state"] == alone["state"]
    assert (header["state"]["layer"], header["state"]["filter"], header["state"]["heads"]) == (
        3,
        "ab",
        [1, 2],
    )
    assert "This file holds all 6 layers. It opens at layer 3" in page
    assert "all 6 layers, opened at layer 3" in page
    assert read_provenance(page.encode(), "html") == read_provenance(page_of(view).encode(), "html")
    assert "This file holds layer 3 alone, of the layers 0 to 5." in page_of(view)


def test_layers_that_belong_to_no_head_view_are_refused():
    with pytest.raises(
        ValueError, match="figure_html: all_layers must come with a HeadView but came with a TokenS"
    ):
        figure_html(token_scores(), provenance(), all_layers=every_layer())
    with pytest.raises(ValueError, match=r"all_layers must be \(6, 3, 12, 12\)"):
        figure_html(head_view(), provenance(), all_layers=every_layer()[:5])


@pytest.mark.parametrize("name", all_figures())
def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(name):
    page = page_of(all_figures()[name])
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1))
    digest = base64.b64encode(hashlib.sha256(element(page, "module").encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 3
    assert not re.search(r"<(img|iframe|link|object|embed|base)\b", page)
    assert "<!--" not in page
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?\s*(https?:)?//""", page)


@given(text=ANY_TEXT)
@settings(max_examples=100)
def test_any_text_stays_text(text):
    figure = token_scores(scores=softmax_rows((2,)), tokens=labels((text, text)), source=1, title=text)
    page = page_of(figure, model=text, input=text, method=text, notes=(text,), settings={text: text})
    assert re.findall(r"<script|<!--|<img", page) == ["<script"] * 3
    assert read_provenance(page.encode(), "html")["provenance"]["input"] == text
    header, _ = unpack(base64.b64decode(element(page, "text/plain")))
    assert [token["text"] for token in header["tokens"]] == [visible_text(text)] * 2
    assert html.escape(visible_text(text)) in page


def test_a_page_is_the_same_each_time():
    assert figure_html(head_view(), provenance()) == figure_html(head_view(), provenance())


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import x from 'y';\nexport default function () {}", "default export alone"),
        ("export const a = 1;\nexport default function () {}", "default export alone"),
        ("export default 1;\nexport default 2;", "default export alone"),
        ("const a = '</script>';\nexport default function () {}", "end of a script element"),
        ("const a = '<!--';\nexport default function () {}", "end of a script element"),
    ],
)
def test_a_component_that_cannot_be_put_inline_is_refused(monkeypatch, script, message):
    monkeypatch.setattr(standalone, "component_files", lambda name: ComponentFiles(script, ""))
    with pytest.raises(ValueError, match=f"standalone_page: component .*{message}"):
        figure_html(head_view(), provenance())


# In a browser ---------------------------------------------------------------------------------------------------


def opened(watched_page, tmp_path, figure, *, all_layers=None, **changes):
    """The page of a figure, opened from a file in a browser."""
    path = tmp_path / "figure.html"
    path.write_bytes(figure_html(figure, provenance(**changes), all_layers=all_layers))
    watched_page.page.context.set_offline(True)
    watched_page.page.on("dialog", lambda dialog: watched_page.errors.append(f"dialog: {dialog.message}"))
    watched_page.page.goto(path.as_uri())
    watched_page.page.locator("#attnscope-view .view-root").wait_for()
    return watched_page.page


def is_clean(watched_page):
    files = [url for url in watched_page.outside if not url.startswith("file:")]
    return watched_page.errors == [] and files == [] and watched_page.page.evaluate("window.hit") is None


@pytest.mark.browser
@pytest.mark.parametrize("name", all_figures())
def test_every_page_draws_without_error_or_request(watched_page, tmp_path, name):
    page = opened(watched_page, tmp_path, all_figures()[name])
    page.wait_for_timeout(150)  # a frame or two, in which an error would come
    assert is_clean(watched_page)
    ink = page.evaluate(
        """() => [...document.querySelectorAll("canvas")].some((canvas) => canvas.width > 1 &&
             canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value)) ||
             [...document.querySelectorAll("img.drawing-image")].some((image) => image.naturalWidth > 1) ||
             [...document.querySelectorAll(".timeline-entry")].some((entry) => entry.offsetWidth > 1)"""
    )
    assert ink


@pytest.mark.browser
@pytest.mark.parametrize("name", ["head", "head pinned", "head pair"])
def test_the_browser_draws_the_same_lines_as_a_file(watched_page, tmp_path, name):
    view = all_figures()[name]
    page = opened(watched_page, tmp_path, view)
    root = page.locator("#attnscope-view .view-root[data-drawn]")
    root.wait_for()
    lines = visible_lines(view)
    found = [int(root.get_attribute(f"data-{part}")) for part in ("drawn", "candidates", "cutoff")]
    assert found == [len(lines.weights), lines.candidates, lines.cutoff]
    assert is_clean(watched_page)


@pytest.mark.browser
def test_tokens_stand_in_the_page_as_typed(watched_page, tmp_path):
    page = opened(watched_page, tmp_path, token_scores())
    shown = page.locator(".strip-token").all_inner_texts()
    assert [text.strip() for text in shown] == [short_label(text) for text in HOSTILE]
    page.locator("summary").click()
    assert "a<b<c </script><!--#exec --> $x^2$ مرحبا" in page.locator("footer table").inner_text()
    assert is_clean(watched_page)


@pytest.mark.browser
def test_a_page_follows_light_and_dark(watched_page, tmp_path):
    page = opened(watched_page, tmp_path, head_view())
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{background} !== '{light}'")
    assert json.loads(page.evaluate(background).replace("rgb(", "[").replace(")", "]"))[0] < 60
    assert is_clean(watched_page)


@pytest.mark.browser
def test_heads_can_be_switched_in_a_page(watched_page, tmp_path):
    view = head_view(active=(0, 1, 2))
    page = opened(watched_page, tmp_path, view)
    root = page.locator("#attnscope-view .view-root[data-drawn]")
    root.wait_for()
    page.get_by_role("button", name="Head 1", exact=True).click()
    expected = len(visible_lines(head_view(active=(0, 2))).weights)
    root.and_(
        page.locator(f"[data-drawn='{expected}']")
    ).wait_for()  # the page's policy lets no string be run
    assert expected < len(visible_lines(view).weights)
    assert is_clean(watched_page)


@pytest.mark.browser
def test_a_reader_steps_through_the_layers_of_a_page(watched_page, tmp_path):
    layers = every_layer()
    choices = {"active": (0, 2), "threshold": 0.02, "hide_special": True}
    page = opened(watched_page, tmp_path, head_view(weights=layers[3], **choices), all_layers=layers)
    root = page.locator("#attnscope-view .view-root[data-drawn]")

    def check(layer):
        expected = visible_lines(head_view(weights=layers[layer], **choices))
        root.and_(page.locator(f"[data-layer='{layer}']")).wait_for()
        found = [int(root.get_attribute(f"data-{part}")) for part in ("drawn", "candidates", "cutoff")]
        assert found == [len(expected.weights), expected.candidates, expected.cutoff]

    check(3)
    page.get_by_role("button", name="Next layer").click()
    check(4)
    page.locator("select.lines-select").select_option("0")
    check(0)
    assert page.locator("select.lines-select option:not([disabled])").count() == 6
    assert page.get_by_label("Special tokens").is_checked() is False
    assert is_clean(watched_page)
