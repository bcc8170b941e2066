"""A component alone in a blank page with the app's colours; what it says to Python is written down.

``component_page`` drives the components for text with a class of its own; this one also mounts in a shadow root, as
Streamlit does, and in either theme, and measures the time until it has drawn.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from dashboard.components import component_files

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIGHT = {"background": "#ffffff", "secondary-background": "#f0f2f6", "text": "#1f2733", "primary": "#3b5b92"}
DARK = {"background": "#0e1117", "secondary-background": "#262730", "text": "#fafafa", "primary": "#8fb0e8"}

_MOUNT = """async ({script, payload, shadow, alone}) => {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const url = URL.createObjectURL(new Blob([script], {type: "text/javascript"}));
  const component = (await import(url)).default;
  const frame = document.getElementById("frame");
  const parentElement = shadow ? frame.attachShadow({mode: "open"}) : frame;
  if (shadow) parentElement.append(document.getElementById("style"));
  window.said = [];
  const setters = alone ? {} : {
    setStateValue: (name, value) => window.said.push([name, value]),
    setTriggerValue: (name, value) => window.said.push([name, value]),
  };
  window.send = (text) => {
    const data = bytes(text);
    const start = performance.now();
    window.end = component({data, parentElement, ...setters});
    return performance.now() - start;
  };
  return window.send(payload);
}"""


def show(
    page: Page,
    name: str,
    payload: bytes,
    *,
    width: int = 1000,
    height: int = 560,
    dark: bool = False,
    shadow: bool = False,
    alone: bool = False,
) -> float:
    """Put a component into an empty page; returns the milliseconds until it had drawn.

    Args:
        shadow: in a shadow root, as Streamlit does; else as an exported page does.
        alone: without a way to tell Python anything, as in an exported page.
    """
    files = component_files(name)
    colours = DARK if dark else LIGHT
    variables = "".join(f"--st-{key}-color: {value};" for key, value in colours.items())
    page.set_content(
        f"<!doctype html><style id=style>{files.style}</style>"
        f"<body style='margin: 20px; background: {colours['background']}; {variables}'>"
        f"<div id=frame style='width: {width}px; height: {height}px'></div>"
    )
    arguments = {"script": files.script, "payload": _text(payload), "shadow": shadow, "alone": alone}
    return float(page.evaluate(_MOUNT, arguments))


def send(page: Page, payload: bytes) -> float:
    """Hand the mounted component new data; returns the milliseconds until it had drawn."""
    return float(page.evaluate("payload => window.send(payload)", _text(payload)))


def said(page: Page, count: int | None = None) -> list[list[Any]]:
    """[name, value] of everything that the component told Python so far, once ``count`` of these have come."""
    if count is not None:
        page.wait_for_function("count => window.said.length >= count", arg=count)
    return list(page.evaluate("window.said"))


def tooltip(page: Page) -> list[str]:
    """Lines of the tooltip, which must be visible."""
    box = page.locator(".view-tooltip")
    box.wait_for(state="visible")
    return box.locator("> *").all_text_contents()


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")
