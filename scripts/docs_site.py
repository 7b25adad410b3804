"""What mkdocs is told beside mkdocs.yml: the navigation, and links that leave the folder of the docs.

Pages are written for whoever reads them in the repository. On the site, a link to CONTRIBUTING or the changelog leads
to a page of the site, and one to a source file becomes its path, since the site holds no sources.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages outside of docs/ that the site has too, and where.
BROUGHT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "in_one_screen.md"}
FENCED = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^## (?P<title>.+)$")
ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def navigation(index: str) -> list[dict[str, Any]]:
    """The map as mkdocs wants it: a section for each heading, an entry for each list item that begins with a link."""
    sections: list[dict[str, Any]] = [{"The map": ["index.md"]}]
    for line in index.splitlines():
        if heading := HEADING.match(line):
            sections.append({heading["title"]: []})
        elif entry := ENTRY.match(line):
            [entries] = sections[-1].values()
            entries.append({entry["title"]: place_on_site(entry["target"], DOCS / "index.md", "index.md")[0]})
    return [section for section in sections if all(section.values())]


def place_on_site(target: str, source: Path, page: str) -> tuple[str, bool]:
    """Where a link of the file SOURCE leads on the site, seen from PAGE; or the path in the repository, and False."""
    name, mark, anchor = target.partition("#")
    if not name or ":" in name:
        return target, True
    path = Path(os.path.normpath(source.parent / name))
    inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else BROUGHT.get(_from_root(path))
    if inside is None:
        return _from_root(path), False
    return os.path.relpath(inside, PurePosixPath(page).parent) + mark + anchor, True


def with_links_of_the_site(text: str, source: Path, page: str) -> str:
    """The text of a page with its links changed; code blocks are left alone."""

    def changed(link: re.Match[str]) -> str:
        target, leads = place_on_site(link["target"], source, page)
        if leads:
            return f"[{link['text']}]({target})"
        return f"`{target}`" if link["text"] in target else f"{link['text']} (`{target}`)"

    return "".join(part if part.startswith("```") else LINK.sub(changed, part) for part in FENCED.split(text))


def _from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def on_config(config: Any) -> Any:
    """mkdocs calls this first."""
    config.nav = navigation((DOCS / "index.md").read_text())
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this with the files it found; pages from outside are added."""
    from mkdocs.structure.files import File

    for name, page in BROUGHT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls this for each page."""
    return with_links_of_the_site(markdown, Path(page.file.abs_src_path), page.file.src_uri)
