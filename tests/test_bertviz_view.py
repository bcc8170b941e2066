"""BertViz's views served by ourselves: the same data as BertViz's, no request, no text that runs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figure_data import TokenLabel
from dashboard.bertviz_view import (
    ALL_LAYERS_LIMIT,
    VENDOR,
    bertviz_height,
    bertviz_html,
    bertviz_refusal,
    drawing_script,
    script_json,
)

HOSTILE = (
    "</script><img src=x onerror=window.broken=1>",
    "<!--#exec",
    "-->",
    "<script>window.broken=2</script>",
    "a<b<c",
    "&lt;b&gt;",
    "line\u2028two\u2029three",
    'quote"back\\slash',
    "const params = PYTHON_PARAMS;",
    "naïve ⭢ اللغة 🙂",
)


def labels(texts):
    return tuple(TokenLabel(text=text, piece=text) for text in texts)


def random_weights(layers, heads, queries, keys, *, seed=0):
    scores = np.random.default_rng(seed).normal(scale=2.0, size=(layers, heads, queries, keys))
    weights = np.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def embedded(html):
    """The parameters in a page, read back as the browser's parser would."""
    text = re.search(r"const params = (.*);\n", html).group(1)
    return json.loads(text)


def bertviz_own(kind, weights, tokens, **options):
    """The parameters that BertViz itself writes."""
    import bertviz
    import torch

    view = {"head": bertviz.head_view, "model": bertviz.model_view}[kind]
    tensors = [torch.from_numpy(layer)[None] for layer in weights]
    html = view(tensors, tokens, html_action="return", **options).data
    return json.JSONDecoder().raw_decode(html[html.index("const params = ") + len("const params = ") :])[0]


class Elements(HTMLParser):
    """Collects elements and their attributes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("sentence_b_start", [None, 4])
@pytest.mark.parametrize("kind", ["head", "model"])
def test_data_are_those_bertviz_writes(kind, sentence_b_start):
    weights = random_weights(3, 4, 7, 7)
    tokens = ["[CLS]", "the", "cat", "[SEP]", "it", "slept", "[SEP]"]
    ours = embedded(bertviz_html(kind, weights, labels(tokens), None, sentence_b_start=sentence_b_start))
    theirs = bertviz_own(kind, weights, tokens, sentence_b_start=sentence_b_start)
    assert len(ours["attention"]) == len(theirs["attention"]) == (1 if sentence_b_start is None else 5)
    for own, other in zip(ours.pop("attention"), theirs.pop("attention"), strict=True):
        np.testing.assert_allclose(own.pop("attn"), other.pop("attn"), atol=0.5e-4)
        assert own == other
    if kind == "model":
        assert theirs.pop("display_mode") == "dark"
        assert ours.pop("display_mode") == "light"
    for parameters in (ours, theirs):
        parameters.pop("root_div_id")
    assert ours == theirs


def test_cross_attention_has_its_own_tokens_on_each_side():
    weights = random_weights(2, 2, 3, 5)
    html = bertviz_html("head", weights, labels("abc"), labels("vwxyz"), layer=1)
    (part,) = embedded(html)["attention"]
    assert part["left_text"] == list("abc")
    assert part["right_text"] == list("vwxyz")
    assert np.shape(part["attn"]) == (2, 2, 3, 5)
    assert embedded(html)["layer"] == 1


@pytest.mark.parametrize("kind", ["head", "model"])
def test_page_loads_nothing(kind):
    html = bertviz_html(kind, random_weights(1, 2, 3, 3), labels("abc"), None)
    parser = Elements()
    parser.feed(html)
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    assert [found for found in parser.found if loading & found[1].keys()] == []
    assert {"link", "img", "iframe", "object", "embed"}.isdisjoint(tag for tag, _ in parser.found)
    policy = next(attributes["content"] for _, attributes in parser.found if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none';")
    assert "cdnjs" not in html
    # What is left of addresses names XML vocabularies and the libraries' own pages.
    allowed = r"www\.w3\.org|d3js\.org|jquery\.org|bugs\.chromium\.org|github\.com"
    assert re.findall(rf"https?://(?!{allowed})[\w.]*", html) == []


@pytest.mark.parametrize("kind", ["head", "model"])
def test_data_are_in_the_page_once(kind):
    html = bertviz_html(kind, random_weights(1, 1, 2, 2), labels(["zebrafinch", "b"]), None)
    assert html.count("zebrafinch") == 2  # once in each column
    assert html.count('"attention":') == 1


@given(st.text(st.characters(), max_size=40))  # lone surrogates too
def test_any_text_stays_inside_its_script(text):
    encoded = script_json({"text": text})
    assert json.loads(encoded) == {"text": text}
    assert encoded.isascii()
    assert not set("<>&\n\r") & set(encoded)


def test_a_lone_surrogate_does_not_break_the_page():
    html = bertviz_html("head", random_weights(1, 1, 2, 2), labels(["a\ud800", "b"]), None)
    html.encode()
    assert embedded(html)["attention"][0]["left_text"] == ["a\ud800", "b"]


def test_a_page_is_the_same_each_time_it_is_made():
    arguments = ("model", random_weights(1, 2, 3, 3), labels("abc"), None)
    assert bertviz_html(*arguments) == bertviz_html(*arguments)


@pytest.mark.parametrize(
    ("kind", "shape", "borne"),
    [
        ("head", (12, 12, 128, 128), True),
        ("head", (12, 12, 160, 160), False),
        ("model", (12, 12, 32, 32), True),
        ("model", (12, 12, 64, 64), False),
        ("model", (6, 12, 50, 50), True),
        ("model", (2, 2, 512, 512), False),
    ],
)
def test_what_bertviz_cannot_bear_is_refused_with_the_reason(kind, shape, borne):
    refusal = bertviz_refusal(kind, shape)
    assert (refusal is None) is borne
    if not borne:
        tokens = labels(["t"] * shape[2])
        weights = np.broadcast_to(np.float32(1 / shape[3]), shape)
        with pytest.raises(ValueError, match=r"draws every weight as a line.*use AttnScope's"):
            bertviz_html(kind, weights, tokens, None)


def test_a_large_head_view_carries_its_layer_alone():
    weights = random_weights(12, 12, 80, 80)
    assert weights.size > ALL_LAYERS_LIMIT
    html = bertviz_html("head", weights, labels(["t"] * 80), None, layer=7)
    assert embedded(html)["include_layers"] == [7]
    np.testing.assert_allclose(embedded(html)["attention"][0]["attn"][0], weights[7], atol=0.5e-4)
    assert len(html) < 2_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "neuron"}, 'kind must be "head" or "model"'),
        ({"weights": np.ones((2, 3, 3))}, r"must have the axes .* but has the shape \(2, 3, 3\)"),
        ({"weights": np.ones((2, 2, 3, 4))}, "3 queries and 4 keys but there are 3 left and 3 right"),
        ({"weights": np.full((2, 2, 3, 3), np.nan)}, "must be finite"),
        ({"layer": 2}, "layer must be from 0 to 1 but is 2"),
        ({"layer": -1}, "layer must be from 0 to 1 but is -1"),
        ({"sentence_b_start": 3}, "must split the tokens"),
        ({"sentence_b_start": 1, "right": labels("xyz")}, "must split the tokens of one self-attention"),
    ],
)
def test_wrong_arguments_are_told(change, message):
    arguments = {
        "kind": "head",
        "weights": np.ones((2, 2, 3, 3)),
        "left": labels("abc"),
        "right": None,
    } | change
    with pytest.raises(ValueError, match=message):
        bertviz_html(**arguments)


def test_vendored_scripts_are_the_published_ones():
    readme = (VENDOR / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w.-]+\.js)` .* `([0-9a-f]{64})` \|$", readme, flags=re.MULTILINE)
    assert sorted(name for name, _ in named) == sorted(path.name for path in VENDOR.glob("*.js"))
    for name, digest in named:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


def test_bertviz_of_another_form_is_told(monkeypatch, tmp_path):
    (tmp_path / "bertviz").mkdir()
    (tmp_path / "bertviz" / "head_view.js").write_text("draw(PARAMS);")

    class Package:
        version = "9.9"

        def locate_file(self, path):
            return tmp_path / path

    monkeypatch.setattr("dashboard.bertviz_view.distribution", lambda name: Package())
    with pytest.raises(ValueError, match=r"must have the form of BertViz 1\.4\.1 but is of 9\.9"):
        drawing_script.__wrapped__("head")


def test_torch_and_bertviz_are_not_imported():
    code = (
        "import sys, numpy as np; from dashboard.bertviz_view import bertviz_html; "
        "from analysis.figure_data import TokenLabel; "
        "bertviz_html('head', np.ones((1, 1, 1, 1)), [TokenLabel('a', 'a')], None); "
        "print(sorted({'torch', 'bertviz', 'IPython', 'streamlit'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_browser_without_network_draws_it(watched_page, kind, dark):
    tokens = ["[CLS]", *HOSTILE, "[SEP]"]
    count = len(tokens)
    weights = random_weights(2, 3, count, count)
    page = watched_page.page
    page.context.set_offline(True)
    page.set_content(bertviz_html(kind, weights, labels(tokens), None, sentence_b_start=5, dark=dark))
    layers_drawn = 2 if kind == "model" else 1
    assert page.locator("svg line").count() == layers_drawn * 3 * count * count
    if kind == "model":
        page.mouse.click(120, 100)  # opens the thumbnail of layer 0, head 0, with its tokens
    shown = page.locator("svg text").all_text_contents()
    for token in tokens:
        assert shown.count(token) == 2, token
    page.select_option("#filter", label="Sentence A -> Sentence B")
    assert page.locator("svg line").count() == layers_drawn * 3 * 5 * (count - 5)
    if kind == "head":
        page.select_option("#layer", "1")
        opacity = page.locator("svg line").first.get_attribute("stroke-opacity")
        assert float(opacity) == pytest.approx(weights[1, 0, 0, 5] / 3, abs=1e-4)
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert watched_page.errors == []
    assert watched_page.outside == []


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_stated_height_holds_the_view(watched_page, kind):
    weights = random_weights(3, 4, 20, 20)
    page = watched_page.page
    page.set_viewport_size({"width": 1000, "height": bertviz_height(kind, weights.shape)})
    page.set_content(bertviz_html(kind, weights, labels(["t"] * 20), None, sentence_b_start=9))
    needed = page.evaluate("document.body.scrollHeight")
    assert needed <= bertviz_height(kind, weights.shape) <= needed + 80


@pytest.mark.browser
def test_the_page_forbids_what_it_does_not_need(watched_page):
    page = watched_page.page
    page.set_content(bertviz_html("head", random_weights(1, 1, 2, 2), labels("ab"), None))
    page.evaluate("""() => {
        const image = document.createElement("img");
        image.setAttribute("onerror", "window.broken = 1");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
    }""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.broken") is None
    assert any("Content Security Policy" in error for error in watched_page.errors)
