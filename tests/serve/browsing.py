"""A real browser for tests of the page, and pictures to look at where WATTSMITH_SCREENSHOTS=FOLDER asks for them."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
NO_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="THE PAGE IS NOT TRIED IN A BROWSER: there is no chromium")
WIDTHS = (1280, 390, 360)
DESK, PHONE, _ = WIDTHS
NEWS_MS = 8000  # a change is seen within a second or two; a busy machine takes longer


@contextmanager
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="THE PAGE IS NOT TRIED IN A BROWSER: no playwright")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def logged_in(browser, url, token, width=DESK, scheme="light", expected=()):
    """A page that is logged in with TOKEN; no error may be on its console but EXPECTED ones."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda told: wrong.append(str(told)))
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Power now").wait_for()
    try:
        yield page
        assert [one for one in wrong if not any(word in one for word in expected)] == []
    finally:
        context.close()


def picture(page, name, width):
    if folder := os.environ.get("WATTSMITH_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}_{width}.png", full_page=True)


def both_widths(page, name):
    """PAGE fits a desk and a phone; a picture of each."""
    for width in (DESK, PHONE):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(100)
        wide = overflow(page)
        assert wide == [0, []], f"{name} at {width}: {wide}"
        picture(page, name, width)
    page.set_viewport_size({"width": DESK, "height": 900})


def overflow(page):
    """By how many pixels the page can be scrolled sideways, and what is wider than the window.

    Text on a lane is cut off at the end of its piece, and counts as long as it would be all the same: it is left out.
    """
    return page.evaluate(
        """() => [document.documentElement.scrollWidth - document.documentElement.clientWidth,
        [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1
          && !one.closest(".scroll, details:not([open]), .piece")).slice(0, 3)
          .map((one) => one.outerHTML.slice(0, 120))]"""
    )
