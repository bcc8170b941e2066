"""The link of a view in a real browser: what it shows, and that it is copied with and without a clipboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

import pytest

from dashboard.figures import pack
from tests.browser.component_page import ComponentPage
from tests.browser.test_walk import MINUTES, open_export, pick_view, wait_for_model

if TYPE_CHECKING:
    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

QUERY = "v=1&t=a+%26+b&view=head"


def pasted(page: Any) -> str:
    """What the keyboard's paste brings: the one way to look into a clipboard that a page may not read."""
    page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' }))"
    )
    page.locator("#paste").focus()
    page.keyboard.press("Control+V")
    text = page.locator("#paste").input_value()
    page.evaluate("() => document.getElementById('paste').remove()")
    return str(text)


def test_on_a_plain_address_the_old_way_copies(watched_page: WatchedPage) -> None:
    page = watched_page.page
    component = ComponentPage(page, "page_link", width=300, height=80)
    component.draw(pack({"kind": "page_link", "query": QUERY}, {}))
    assert page.evaluate("() => [window.isSecureContext, typeof navigator.clipboard]") == [False, "undefined"]
    page.get_by_role("button", name="Copy the address of this view").click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert pasted(page).endswith(f"?{QUERY}")
    component.draw(pack({"kind": "page_link", "query": "v=1"}, {}))
    assert page.locator(".link-field").input_value().endswith("?v=1")
    assert page.get_by_text("Copied", exact=True).count() == 0, "the new address is not copied yet"
    assert watched_page.errors == []


def test_where_nothing_may_copy_the_address_stands_selected(watched_page: WatchedPage) -> None:
    page = watched_page.page
    component = ComponentPage(page, "page_link", width=300, height=80)
    component.draw(pack({"kind": "page_link", "query": QUERY}, {}))
    page.evaluate("() => { document.execCommand = () => false; }")
    page.get_by_role("button", name="Copy the address of this view").click()
    page.get_by_text("press Ctrl+C").wait_for()
    field = page.locator(".link-field")
    chosen = field.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)")
    assert chosen == field.input_value()
    assert watched_page.errors == []


def test_the_menu_copies_what_the_address_bar_says(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait_for_model(page)
    pick_view(page, "Matrix")
    expect(page).to_have_url(re.compile("view=matrix"), timeout=MINUTES)
    open_export(page)
    page.get_by_role("button", name="Copy the address of this view").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible(timeout=MINUTES)
    copied, shown = (urlparse(url) for url in (page.evaluate("navigator.clipboard.readText()"), page.url))
    assert copied._replace(query="") == shown._replace(query="")
    assert parse_qs(copied.query) == parse_qs(shown.query)
    assert app_page.errors == []
