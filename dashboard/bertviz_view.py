"""BertViz's own head view and model view as one page that loads nothing from anywhere.

The drawing scripts are those of the installed ``bertviz`` package, unchanged. What BertViz does around them is
done here anew, because its page loads three scripts from a CDN, carries every weight twice with twenty digits, and
puts tokens into a script as they are. tests/test_bertviz_view.py compares the data with BertViz's own.
``bertviz`` itself is never imported (it would import torch and IPython).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Literal

import numpy as np

from analysis.figure_data import Floats, TokenLabel

Kind = Literal["head", "model"]

LINE_LIMIT = 200_000
"""Most lines that BertViz is given to draw at once.

It makes an SVG element of every weight, zeros too. About 200,000 took 6 to 10 s to appear and 1.2 GB of memory
on two cores (12 heads x 128 tokens in the head view); three times as many took half a minute and 2 GB.
"""

ALL_LAYERS_LIMIT = 600_000
"""Most weights for which the head view gets all layers to switch between; above, the chosen layer alone."""

DIGITS = 4
"""Decimals of a weight in the page; BertViz shows weights as opacity only, in 255 steps."""

VENDOR = Path(__file__).parent / "static" / "vendor"
SCRIPTS = ("jquery-3.7.1.min.js", "d3-5.7.0.min.js")
LOADER = "window.requirejs = (names, start) => start(window.jQuery, window.d3);"
"""Takes the place of require.js: the two libraries are there already."""

MARKER = "const params = PYTHON_PARAMS;"
SENTENCE_PARTS = ((0, 0), (1, 1), (0, 1), (1, 0))
"""From and to sentence of the parts that BertViz offers beside "All", in its order."""


def bertviz_html(
    kind: Kind,
    weights: Floats,
    left: Sequence[TokenLabel],
    right: Sequence[TokenLabel] | None,
    *,
    layer: int | None = None,
    sentence_b_start: int | None = None,
    dark: bool = False,
) -> str:
    """A whole HTML page with BertViz's view of ``weights``, for an iframe's ``srcdoc`` or a file.

    Args:
        kind: "head" (one layer, lines between two columns) or "model" (all heads as thumbnails).
        weights: (L, H, Q, K).
        left: Q query tokens.
        right: K key tokens; None when they are the same.
        layer: the layer that the head view opens with, from 0; of a large input the only one in the page.
        sentence_b_start: index of the first token of sentence B; adds BertViz's choice A -> B and so on.
        dark: for a dark page.
    Raises:
        ValueError: when shapes do not fit, or BertViz cannot bear the input (``bertviz_refusal`` says why).
    """
    right = left if right is None else right
    check_inputs(kind, weights, left, right, layer=layer, sentence_b_start=sentence_b_start)
    if refusal := bertviz_refusal(kind, weights.shape):
        raise ValueError(f"bertviz_html: {refusal}")
    layers = list(range(weights.shape[0]))
    if kind == "head" and weights.size > ALL_LAYERS_LIMIT:
        layers = [layer or 0]
    parts = attention_parts(weights[layers], left, right, sentence_b_start=sentence_b_start)
    parameters: dict[str, object] = {
        "attention": parts,
        "default_filter": "0",
        "root_div_id": "bertviz",
        "include_layers": layers,
    }
    if kind == "head":
        parameters |= {"layer": layer, "heads": None}
    else:
        heads = weights.shape[1]
        parameters |= {
            "display_mode": "dark" if dark else "light",
            "include_heads": list(range(heads)),
            "total_heads": heads,
        }
    filters = [str(part["name"]) for part in parts]
    return page(kind, parameters, filters=filters, indent=left_indent(kind, left), dark=dark)


def bertviz_refusal(kind: Kind, shape: Sequence[int]) -> str | None:
    """Why BertViz cannot show weights of this shape and what can, as one sentence; None if it can.

    Args:
        shape: (L, H, Q, K).
    """
    layers, heads, queries, keys = shape
    drawn = heads * queries * keys * (layers if kind == "model" else 1)
    if drawn <= LINE_LIMIT:
        return None
    what = f"{layers} × {heads} heads" if kind == "model" else f"{heads} heads"
    return (
        f"BertViz's {kind} view draws every weight as a line of its own: {what} × {queries} × {keys} tokens "
        f"are {drawn:,} lines, and above {LINE_LIMIT:,} a browser stands still for many seconds; "
        f"use AttnScope's {kind} view, which draws the strongest ones, or a shorter text."
    )


def bertviz_height(kind: Kind, shape: Sequence[int]) -> int:
    """Height in pixels that the view needs, by the sizes in BertViz's scripts.

    Args:
        shape: (L, H, Q, K).
    """
    layers, heads, queries, keys = shape
    longest = max(queries, keys)
    if kind == "head":
        return int(longest * 22.5 + 30) + 72
    thumbnails = layers * (longest * 7 * 12 / heads + 10) + 38
    detail = longest * 18 + 30 + 25
    return int(max(thumbnails, detail)) + 72


def check_inputs(
    kind: str,
    weights: Floats,
    left: Sequence[TokenLabel],
    right: Sequence[TokenLabel],
    *,
    layer: int | None,
    sentence_b_start: int | None,
) -> None:
    """Raise ValueError for what cannot be drawn."""
    if kind not in ("head", "model"):
        raise ValueError(f'bertviz_html: kind must be "head" or "model" but is {kind!r}; choose one.')
    if weights.ndim != 4:
        raise ValueError(
            "bertviz_html: weights must have the axes (layer, head, query, key) but has the shape "
            f"{weights.shape}; stack the layers of one input."
        )
    if weights.shape[2:] != (len(left), len(right)):
        raise ValueError(
            f"bertviz_html: weights has {weights.shape[2]} queries and {weights.shape[3]} keys but there are "
            f"{len(left)} left and {len(right)} right tokens; pass the tokens of this input."
        )
    if not np.isfinite(weights).all():
        raise ValueError(
            "bertviz_html: weights must be finite but has NaN or infinity; pass softmax weights."
        )
    if layer is not None and not 0 <= layer < weights.shape[0]:
        raise ValueError(
            f"bertviz_html: layer must be from 0 to {weights.shape[0] - 1} but is {layer}; count from 0."
        )
    if sentence_b_start is not None and (left is not right or not 0 < sentence_b_start < len(left)):
        raise ValueError(
            f"bertviz_html: sentence_b_start must split the tokens of one self-attention but is "
            f"{sentence_b_start} for {len(left)} tokens; leave it out for a single text."
        )


def attention_parts(
    weights: Floats, left: Sequence[TokenLabel], right: Sequence[TokenLabel], *, sentence_b_start: int | None
) -> list[Mapping[str, object]]:
    """What BertViz offers under "Attention": everything, then the four parts of a sentence pair.

    Args:
        weights: (L, H, Q, K); a part's rows are cut out and not normalised again, as in BertViz.
    """
    rounded = np.round(weights.astype(np.float64), DIGITS)
    names = [[token.text for token in side] for side in (left, right)]

    def part(name: str | None, rows: slice, columns: slice) -> Mapping[str, object]:
        return {
            "name": name,
            "attn": rounded[:, :, rows, columns].tolist(),
            "left_text": names[0][rows],
            "right_text": names[1][columns],
        }

    everything = slice(None)
    if sentence_b_start is None:
        return [part(None, everything, everything)]
    sentences = (slice(0, sentence_b_start), slice(sentence_b_start, None))
    return [
        part("All", everything, everything),
        *(
            part(f"Sentence {'AB'[a]} -> Sentence {'AB'[b]}", sentences[a], sentences[b])
            for a, b in SENTENCE_PARTS
        ),
    ]


def script_json(value: object) -> str:
    """JSON that can stand inside a script element: no character in it can end the element or a line."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # all beyond ASCII is escaped
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(
    kind: Kind, parameters: Mapping[str, object], *, filters: Sequence[str], indent: int, dark: bool
) -> str:
    """The page around BertViz's script; its security policy allows these very scripts and no request at all."""
    before, after = drawing_script(kind)
    scripts = [LOADER, *(library(name) for name in SCRIPTS), before + script_json(parameters) + after]
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(map(script_source, scripts))}"
    )
    controls = ""
    if kind == "head":
        controls += '<label>Layer: <select id="layer"></select></label> '
    if len(filters) > 1:
        options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(filters))
        controls += f'<label>Attention: <select id="filter">{options}</select></label>'
    elements = "\n".join(f"<script>{script}</script>" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<title>BertViz {kind} view</title>
<style>{style(indent=indent, dark=dark)}</style>
</head>
<body>
<!-- {kind} view of BertViz {version("bertviz")} by Jesse Vig, Apache License 2.0 -->
<div id="bertviz"><div class="controls">{controls}</div><div id="vis"></div></div>
{elements}
</body>
</html>
"""


def left_indent(kind: Kind, left: Sequence[TokenLabel]) -> int:
    """Pixels to keep free on the left of the head view, so that words wider than BertViz's column can be read."""
    longest = max(len(token.text) for token in left)
    return min(max(longest * 9 - 100, 0), 600) if kind == "head" else 0


def style(*, indent: int, dark: bool) -> str:
    """Colours of the app's theme; BertViz writes black on whatever is behind, and draws black boxes when dark."""
    text, background, border = (
        ("#dfe2e6", "#16181b", "#383d44") if dark else ("#22262b", "#fbfbfa", "#d7dadd")
    )
    return f"""
body {{ margin: 0; color: {text}; background: {background}; color-scheme: {"dark" if dark else "light"};
  font: 14px "Source Sans", "Helvetica Neue", Helvetica, Arial, sans-serif; }}
#bertviz {{ padding: 6px; }}
#vis {{ padding-left: {indent}px; }}
svg {{ overflow: visible; }}
.controls {{ user-select: none; padding-bottom: 8px; }}
select {{ font: inherit; color: inherit; background: {background}; border: 1px solid {border}; }}
svg text:not([fill]), svg text[fill="black"] {{ fill: {text}; }}
svg .background {{ fill: {border}; }}
svg[fill="black"], svg[fill="white"], .attn_background[fill="black"], .attn_background[fill="white"]
  {{ fill: {background}; }}"""


@cache
def library(name: str) -> str:
    """Text of a script that is kept in the checkout."""
    return (VENDOR / name).read_text(encoding="utf-8").strip()


@cache
def drawing_script(kind: Kind) -> tuple[str, str]:
    """BertViz's own script, cut where the data belong.

    Its set-up of require.js (the CDN addresses) is left out, and so is the comment behind the marker: it
    contains the marker again, which makes BertViz 1.4.1 write all data twice.
    """
    package = distribution("bertviz")
    source = Path(str(package.locate_file(f"bertviz/{kind}_view.js"))).read_text(encoding="utf-8")
    _, start, script = source.partition("requirejs([")
    before, marker, rest = script.partition(MARKER)
    if not (start and marker):
        raise ValueError(
            f"drawing_script: bertviz/{kind}_view.js must have the form of BertViz 1.4.1 but is of "
            f"{package.version}; install the version in requirements.txt."
        )
    _, newline, after = rest.partition("\n")
    return start + before + "const params = ", ";" + newline + after


def script_source(script: str) -> str:
    """The expression by which a Content-Security-Policy allows exactly this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
