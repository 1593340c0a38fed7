"""Hooks of the documentation site: README.md, the ladders' pages and the notebooks become pages, and links follow."""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LADDERS = ROOT / "src" / "rung" / "ladders"
LINK = re.compile(r'(\]\(|(?:src|srcset|href)=")([^)"#\s]+)')


def _pages() -> dict[str, Path]:
    """Pages of the site that are written elsewhere, by their place in it."""
    found = {f"{name.lower()}.md": ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG")}
    found["index.md"] = ROOT / "README.md"
    found |= {f"ladders/{p.parent.name}.md": p for p in sorted(LADDERS.glob("*/README.md"))}
    return found | {f"notebooks/{p.stem}.md": p for p in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The ladders stand in the menu as they are found."""
    assert config.nav is not None
    config.nav.insert(3, {"Ladders": [place for place in _pages() if place.startswith("ladders/")]})
    config.nav.append({"Notes": [f"notes/{p.name}" for p in sorted((ROOT / "docs" / "notes").glob("*.md"))]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside of docs/."""
    for place, path in _pages().items():
        text = _notebook(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository lead to their page, or to the repository."""
    pages = _pages()
    places = {path: place for place, path in pages.items()}
    source = pages.get(page.file.src_uri, Path(config.docs_dir) / page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        front, link = match.groups()
        if re.match(r"[a-z]+:", link):
            return match[0]
        target = Path(os.path.normpath(source.parent / link))
        if not target.exists():
            raise FileNotFoundError(f"{source} links to {link}, which is not there.")
        if target.is_dir() and (target / "README.md") in places:
            target /= "README.md"
        place = places.get(target)
        if place is None and (ROOT / "docs") in target.parents and target.is_file():
            place = target.relative_to(ROOT / "docs").as_posix()
        if place is None or target.suffix == ".cu":
            return f"{front}{config.repo_url}blob/main/{target.relative_to(ROOT).as_posix()}"
        here = posixpath.dirname(page.file.src_uri)
        if front != "](":  # HTML is not rewritten by MkDocs, whose pages are folders
            here = posixpath.dirname(page.file.dest_uri)
        return front + posixpath.relpath(place, here or ".")

    return LINK.sub(moved, markdown)


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its cells and what they printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            elif plain := "".join(data.get("text/plain", output.get("text", ""))).strip():
                parts.append(f"```text\n{plain}\n```")
    return "\n\n".join(parts) + "\n"
