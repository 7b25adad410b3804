"""The docs are built into a site without a warning, and nothing of it comes from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def rules():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_page(site):
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    assert {
        page
        for page in pages | {"contributing.html", "changelog.html", "in_one_screen.html"}
        if not (site / page).exists()
    } == set()


def test_every_room_has_a_page():
    rooms = {path.parent.name for path in (ROOT / "src" / "wattsmith").glob("*/__init__.py")}
    called = {"cli": "commands", "schedule": "plan", "serve": "service"}
    assert {room for room in rooms if not (ROOT / "docs" / f"{called.get(room, room)}.md").exists()} == set()


def test_a_page_of_the_site_fetches_nothing_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_each_heading_of_the_map_is_a_section_and_each_item_a_page(rules):
    index = "# Map\n## One\n- [A](a.md): first\n- [B](d/b.md)\n## None\ntext\n## Two\n- [C](../CONTRIBUTING.md)\n"
    assert rules.navigation(index) == [
        {"The map": ["index.md"]},
        {"One": [{"A": "a.md"}, {"B": "d/b.md"}]},
        {"Two": [{"C": "contributing.md"}]},
    ]


@pytest.mark.parametrize(
    ("source", "page", "link", "wanted"),
    [
        ("docs/feed.md", "feed.md", "[split](split.md#by-hand)", "[split](split.md#by-hand)"),
        ("docs/decisions/0004-rooms.md", "decisions/0004-rooms.md", "[x](../plan.md)", "[x](../plan.md)"),
        ("docs/index.md", "index.md", "[how](../CONTRIBUTING.md#rooms)", "[how](contributing.md#rooms)"),
        ("CONTRIBUTING.md", "contributing.md", "[d](docs/decisions/0004-rooms.md)", "[d](decisions/0004-rooms.md)"),
        ("docs/terms.md", "terms.md", "[ports.py](../src/wattsmith/terms/ports.py)", "`src/wattsmith/terms/ports.py`"),
        ("docs/split.md", "split.md", "[Tests](../tests/split/steps.py)", "Tests (`tests/split/steps.py`)"),
        ("docs/feed.md", "feed.md", "[x](https://example.org/a)", "[x](https://example.org/a)"),
        ("docs/feed.md", "feed.md", "[x](#state)", "[x](#state)"),
        ("README.md", "in_one_screen.md", "![p](docs/images/a.png)", "![p](images/a.png)"),
    ],
)
def test_a_link_leads_to_its_place_on_the_site(rules, source, page, link, wanted):
    assert rules.with_links_of_the_site(link, ROOT / source, page) == wanted


def test_code_keeps_its_brackets(rules):
    text = "```python\nf = table[0](../x)\n```\n"
    assert rules.with_links_of_the_site(text, ROOT / "docs" / "feed.md", "feed.md") == text
