"""A figure as one HTML file that opens anywhere: the browser component, its data and its provenance, nothing fetched.

The component is the one that the app mounts, with the same blob, so the page shows what the screen showed and stays
interactive (hover, heads, zoom). Nothing that needs Python works, since there is none. Text from models and users
reaches the page as JSON or base64 inside inert script elements, or escaped; a content security policy lets only the
page's own script run and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.export import document_text, export_figure
from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    EvidenceWords,
    Figure,
    Floats,
    HeadEffects,
    HeadGrid,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenScores,
    TradeOff,
)
from analysis.figure_lab import CurveSheet, Diagram, MatrixSheet, Timeline
from analysis.visible import caption_lines, shown_in_words, source_line, visible_text
from dashboard import figures
from dashboard.components.evidence_table import evidence_table_payload
from dashboard.components.mount import component_files
from dashboard.contrast_payload import attention_contrast_payload
from dashboard.evidence_payload import evidence_maps_payload, evidence_words_payload
from dashboard.heads_payload import head_grid_payload
from dashboard.lab_payload import matrix_sheet_payload
from dashboard.story_payload import diagram_payload, timeline_payload


def figure_html(figure: Figure, provenance: Provenance, *, all_layers: Floats | None = None) -> bytes:
    """A self-contained HTML page of a figure, with the choices on the screen as its first state.

    Args:
        figure: any record of ``analysis.figure_data``.
        provenance: shown below the figure and stored as JSON (``analysis.export.read_provenance`` reads it).
        all_layers: (L, H, Q, K) weights of every layer of a head view, so that the page can step through them.
    Raises:
        ValueError: if ``all_layers`` come with another figure or do not fit it.
    """
    component, pack = _COMPONENTS[type(figure)]
    if isinstance(figure, EvidenceWords) and figure.predicted:
        component, pack = "evidence_table", _evidence_table
    captions, document = caption_lines(figure, provenance), document_text(figure, provenance)
    if isinstance(figure, HeadView) and figure.layers > 1:
        captions = (captions[0], _layers_in_words(figure, whole=all_layers is not None), *captions[1:])
    if all_layers is None:
        return standalone_page(
            component, pack(figure, provenance), provenance, captions=captions, document=document
        )
    if not isinstance(figure, HeadView):
        raise ValueError(
            f"figure_html: all_layers must come with a HeadView but came with a {type(figure).__name__}; "
            "leave them out."
        )
    payload = figures.head_view_payload(figure, all_layers=all_layers)
    several = replace(provenance, layer=f"all {figure.layers} layers, opened at layer {figure.layer}")
    return standalone_page(component, payload, several, captions=captions, document=document)


def _layers_in_words(view: HeadView, *, whole: bool) -> str:
    if whole:
        return (
            f"This file holds all {view.layers} layers. It opens at layer {view.layer} as it was exported, "
            "and the next line describes that."
        )
    return f"This file holds layer {view.layer} alone, of the layers 0 to {view.layers - 1}."


def standalone_page(
    component: str, payload: bytes, provenance: Provenance, *, captions: tuple[str, ...], document: str
) -> bytes:
    """The page around one component.

    Args:
        component: folder name of the component.
        payload: blob that it draws.
        provenance: whose source line heads the page.
        captions: lines below the figure, plain text.
        document: ASCII JSON without ``<``, ``>`` and ``&`` (``analysis.export.document_text``).
    """
    files = component_files(component)
    script = _as_inline_script(files.script, component)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _PAGE.format(
        policy=policy,
        title=html.escape(visible_text(f"{provenance.model} · {component.replace('_', ' ')} · AttnScope")),
        style=_as_inline_style(f"{_STYLE}\n{files.style}", component),
        component=component,
        heading=html.escape(source_line(provenance)),
        captions="\n".join(f'<p dir="auto">{html.escape(line)}</p>' for line in captions[1:]),
        details=_details(provenance),
        document=document,
        payload=base64.b64encode(payload).decode(),
        script=script,
    )
    return page.encode("utf-8")


def _as_inline_script(source: str, component: str) -> str:
    """An ES module as an inline script that mounts itself on the page's blob.

    Raises:
        ValueError: if the module is not of the one form that can be put inline.
    """
    body, exports = re.subn(r"^export default ", "const attnscopeView = ", source, flags=re.MULTILINE)
    if exports != 1 or re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise ValueError(
            f"standalone_page: component must be one module with a default export alone but {component} is not; "
            "put what it imports into the shared kit."
        )
    if re.search(r"</script|<!--", body, re.IGNORECASE):
        raise ValueError(
            f"standalone_page: component must not hold the end of a script element but {component} does; split it."
        )
    return f"{body}\n;{_BOOT}"


def _as_inline_style(source: str, component: str) -> str:
    if "</" in source:
        raise ValueError(
            f"standalone_page: component must not hold '</' in its styles but {component} does; split it."
        )
    return source


def _details(provenance: Provenance) -> str:
    """Everything that is known of the figure's origin, as a table of escaped text."""
    rows: list[tuple[str, str]] = [
        ("Model", provenance.model),
        ("Revision", provenance.revision),
        ("Layer", provenance.layer),
        ("Heads", provenance.heads),
        ("Aggregation", provenance.aggregation),
        ("Method", provenance.method),
        *((name.capitalize(), _plain(value)) for name, value in provenance.settings.items()),
        ("Software", ", ".join(f"{name} {version}" for name, version in provenance.software.items())),
        ("Input", provenance.input),
    ]
    cells = "\n".join(
        f'<tr><th scope="row">{html.escape(visible_text(name))}</th><td dir="auto">{_lines(text)}</td></tr>'
        for name, text in rows
        if text
    )
    return f"<table>{cells}</table>"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _lines(text: str) -> str:
    """Escaped text with its line breaks kept."""
    return "<br>".join(html.escape(visible_text(line)) for line in text.split("\n"))


def _head_view(view: HeadView, _: Provenance) -> bytes:
    return figures.head_view_payload(view)


def _model_view(view: ModelView, _: Provenance) -> bytes:
    return figures.model_view_payload(view)


def _matrix_view(view: MatrixView, _: Provenance) -> bytes:
    return figures.matrix_view_payload(view, scale=view.scale)


def _token_strip(view: TokenScores, _: Provenance) -> bytes:
    return figures.token_strip_payload(view, scale=view.scale)


def _patch_map(view: PatchMaps, provenance: Provenance) -> bytes:
    source = str(provenance.settings.get("from", provenance.method))
    return figures.patch_map_payload(view, has_cls=False, source=source)  # another source needs Python


def _evidence_maps(view: EvidenceMaps, _: Provenance) -> bytes:
    return evidence_maps_payload(view)


def _evidence_words(view: EvidenceWords, _: Provenance) -> bytes:
    return evidence_words_payload(view)


def _head_grid(view: HeadGrid, _: Provenance) -> bytes:
    return head_grid_payload(view)


def _attention_contrast(view: AttentionContrast, _: Provenance) -> bytes:
    return attention_contrast_payload(view)


def _matrix_sheet(view: MatrixSheet, _: Provenance) -> bytes:
    return matrix_sheet_payload(view)


def _timeline(view: Timeline, _: Provenance) -> bytes:
    return timeline_payload(view)


def _diagram(view: Diagram, _: Provenance) -> bytes:
    return diagram_payload(view)


def _drawing(view: CheckedSet | HeadEffects | TradeOff | CurveSheet, provenance: Provenance) -> bytes:
    """The figure as an SVG file inside the page: the app's charts need Python, or megabytes of script."""
    svg = np.frombuffer(export_figure(view, provenance, "svg"), dtype=np.uint8)
    header = {"kind": "drawing", "title": shown_in_words(view), "input": "", "state": {}}
    return figures.pack(header, {"svg": svg})


def _evidence_table(view: EvidenceWords, _: Provenance) -> bytes:
    return evidence_table_payload(view)


_COMPONENTS: Mapping[type, tuple[str, Callable[[Any, Provenance], bytes]]] = {
    HeadView: ("head_view", _head_view),
    ModelView: ("model_view", _model_view),
    MatrixView: ("matrix_view", _matrix_view),
    TokenScores: ("token_strip", _token_strip),
    PatchMaps: ("patch_map", _patch_map),
    EvidenceMaps: ("evidence_maps", _evidence_maps),
    EvidenceWords: ("evidence_words", _evidence_words),
    HeadGrid: ("head_grid", _head_grid),
    AttentionContrast: ("attention_contrast", _attention_contrast),
    CheckedSet: ("drawing", _drawing),
    HeadEffects: ("drawing", _drawing),
    TradeOff: ("drawing", _drawing),
    MatrixSheet: ("matrix_sheet", _matrix_sheet),
    CurveSheet: ("drawing", _drawing),
    Timeline: ("timeline", _timeline),
    Diagram: ("diagram", _diagram),
}

# Without setters a component knows that there is no Python to ask.
_BOOT = """
{
  const text = document.getElementById("attnscope-payload").textContent;
  const data = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const mount = () => attnscopeView({ data, parentElement: document.getElementById("attnscope-view") });
  mount();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", mount);
}
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --st-background-color: #fbfbfa; --st-secondary-background-color: #f0f1f2; --st-text-color: #22262b;
  --st-primary-color: #3b5b92; --st-border-color: #d7dadd;
  --st-font: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --st-background-color: #16181b; --st-secondary-background-color: #212429; --st-text-color: #dfe2e6;
    --st-primary-color: #8badde; --st-border-color: #383d44;
  }
}
body {
  margin: 0; padding: 20px clamp(16px, 3vw, 40px) 28px;
  background: var(--st-background-color); color: var(--st-text-color); font: 14px/1.5 var(--st-font);
}
body > h1 { margin: 0 0 14px; font-size: 15px; font-weight: 600; }
#attnscope-view { height: max(480px, calc(100vh - 190px)); }
#attnscope-view.token_strip, #attnscope-view.attention_contrast,
#attnscope-view.drawing, #attnscope-view.matrix_sheet,
#attnscope-view.timeline, #attnscope-view.diagram { height: auto; }
body > footer {
  max-width: 1180px; margin-top: 16px; font-size: 12px;
  color: color-mix(in srgb, var(--st-text-color) 72%, var(--st-background-color));
}
body > footer p { margin: 2px 0; overflow-wrap: anywhere; unicode-bidi: plaintext; }
body > footer details { margin-top: 8px; }
body > footer summary { cursor: pointer; }
body > footer table { margin-top: 6px; border-collapse: collapse; }
body > footer th { padding: 3px 16px 3px 0; font-weight: 400; text-align: left; vertical-align: top; }
body > footer td { padding: 3px 0; color: var(--st-text-color); overflow-wrap: anywhere; unicode-bidi: plaintext; }
@media print { #attnscope-view { height: 640px; } }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="AttnScope">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1 dir="auto">{heading}</h1>
<div id="attnscope-view" class="{component}">
<noscript>This figure is drawn by the script inside this file; allow scripts to see it.</noscript>
</div>
<footer>
{captions}
<details><summary>Where this figure comes from</summary>{details}</details>
</footer>
<script type="application/json" id="attnscope">{document}</script>
<script type="text/plain" id="attnscope-payload">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""
