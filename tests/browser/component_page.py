"""A component alone in a page: the same script and styles as in the app, a blob, and setters that write down."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from dashboard.components.mount import component_files

if TYPE_CHECKING:
    from playwright.sync_api import Page

_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 12px; background: var(--st-background-color, #fff); }} {style}</style>
<div id="host" style="width: {width}px; height: {height}px"></div>
<script type="module">
{script}
window.said = [];
window.strokes = 0; // line segments that reached a canvas
const curve = Path2D.prototype.bezierCurveTo;
Path2D.prototype.bezierCurveTo = function (...numbers) {{ window.strokes += 1; return curve.apply(this, numbers); }};
window.draw = (text) => {{
  const data = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const parentElement = document.getElementById("host");
  const setters = {setters};
  return view({{ data, parentElement, ...setters }});
}};
window.ready = true;
</script>"""

_SETTERS = """{
  setStateValue: (name, value) => window.said.push([name, value]),
  setTriggerValue: (name, value) => window.said.push([`trigger ${name}`, value]),
}"""


class ComponentPage:
    """Drives one component.

    Args:
        page: an empty page.
        name: folder of the component.
        connected: hand it setters, as the app does; an exported page has none.
    """

    def __init__(
        self, page: Page, name: str, *, width: int = 1200, height: int = 640, connected: bool = True
    ) -> None:
        files = component_files(name)
        self.page = page
        script = files.script.replace("export default function", "const view = function", 1)
        setters = _SETTERS if connected else "{}"
        page.set_content(
            _PAGE.format(style=files.style, script=script, width=width, height=height, setters=setters)
        )
        page.wait_for_function("window.ready")

    def draw(self, payload: bytes) -> None:
        """Hand the component a blob, as Streamlit does each time when the data changed, and wait for the picture."""
        self.page.evaluate(
            "text => { window.ends = [...(window.ends ?? []), window.draw(text)]; }",
            base64.b64encode(payload).decode(),
        )
        self.frames()

    def frames(self) -> None:
        """Wait until two more frames are painted."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def said(self, name: str = "view") -> list[Any]:
        """What the component told Python under a name, oldest first."""
        return [value for told, value in self.page.evaluate("window.said") if told == name]

    def wait_for_word(self, count: int, name: str = "view") -> Any:
        """The newest of at least ``count`` messages under a name."""
        self.page.wait_for_function(
            "([name, count]) => window.said.filter(([told]) => told === name).length >= count",
            arg=[name, count],
        )
        return self.said(name)[-1]

    def data(self, selector: str) -> dict[str, str]:
        """The data attributes of an element."""
        return self.page.eval_on_selector(selector, "element => ({...element.dataset})")
