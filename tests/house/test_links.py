"""Every link from one of our pages to another leads to a page and a heading that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in ("deploy", "docs", "examples") for page in (ROOT / name).rglob("*.md"))]
)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")


def links_of(text: str) -> Iterator[str]:
    yield from (link for link in LINK.findall(FENCED.sub("", text)) if not link.startswith(ELSEWHERE))


def misspelled_addresses(text: str) -> list[str]:
    """Links out of the project that cannot be right; whether they answer is not asked, as tests use no network."""
    addresses = (link for link in LINK.findall(FENCED.sub("", text)) if link.startswith(ELSEWHERE))
    return [address for address in addresses if not re.fullmatch(r"https://[\w.-]+\.\w+(/[^\s]*)?", address)]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(FENCED.sub("", text)))
    return {heading.replace(" ", "-") for heading in plain}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in links_of(text):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(text if not name else target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert broken_links(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_out_of_the_project_has_the_form_of_one(page):
    assert misspelled_addresses(page.read_text()) == []


def test_the_guard_sees_an_address_that_cannot_be_right():
    text = "[1](https://example.org) [2](http://example.org/a) [3](https://example) [4](https://example.org/a#b)"
    assert misspelled_addresses(text) == ["http://example.org/a", "https://example"]


def test_the_guard_sees_a_link_to_nowhere():
    text = (
        "# A b\n[1](no-such.md) [2](#a-b) [3](#c) [4](test_links.py) [5](https://example.org/x)\n```\n[6](z.md)\n```\n"
    )
    assert broken_links(Path(__file__), text) == ["no-such.md", "#c"]


def test_every_page_of_the_docs_is_on_the_map():
    docs = ROOT / "docs"
    linked = set(links_of((docs / "index.md").read_text()))
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    assert pages - linked == set()
