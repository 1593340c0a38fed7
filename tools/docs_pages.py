"""Hooks of the documentation site: README.md, the ladders' pages and the notebooks become pages, links follow, pictures
follow the site's colours, and each page links the first use of a glossary term.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("tools", "benchmarks"))
import ladder_pages
from rung.learn import FOLDER, KINDS, Exercise, chapters, web
from rung.rungs import catalogue

ROOT = Path(__file__).parents[1]
LADDERS = ROOT / "src" / "rung" / "ladders"
TERM = re.compile(r'<a id="([^"]+)"></a>\*\*([^*]+)\*\*(?: \(([^)]*)\))?:')
CODE = re.compile(r"(^```.*?^```|(?<=\n\n)(?:^ {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*<img(?P<rest>[^>]*)>\s*</picture>')
LINK = re.compile(r'(\]\(|(?:src|srcset|href)=")([^)"#\s]+)')


FRONT = "index.md"
WIDE = "---\nhide: [navigation]\n---\n\n"  # pages that stand alone in their part of the site


def _pages() -> dict[str, Path]:
    """Pages of the site that are written elsewhere, by their place in it."""
    found = {f"{name.lower()}.md": ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG")}
    found[FRONT] = ROOT / "README.md"
    found |= {f"ladders/{p.parent.name}.md": p for p in sorted(LADDERS.glob("*/README.md"))}
    return found | {f"notebooks/{p.stem}.md": p for p in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside of docs/."""
    for place, path in _pages().items():
        text = _notebook(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        text = ladder_pages.markdown(text, path.parent.name) if place.startswith("ladders/") else text
        head = WIDE if place == FRONT or place.startswith("ladders/") else ""
        files.append(File.generated(config, place, content=head + text))
    files.append(File.generated(config, "ladders/index.md", content=_ladders()))
    files.append(File.generated(config, "assets/drawings.css", content=ladder_pages.style()))
    return files


def _ladders() -> str:
    """The page that lists the ladders, with what each computes."""
    rows = [
        f"| [{name}]({name}.md) | {len(catalogue.rungs(name, libraries=False))} | {of.summary} | {of.story} |"
        for name, of in catalogue.operations().items()
        if (LADDERS / name / "README.md").is_file()
    ]
    return "\n".join(
        ["# Ladders", "", "| ladder | rungs | what it computes | its story |", "| --- | ---: | --- | --- |", *rows]
    )


def _exercises() -> str:
    """Each chapter's page, and its exercises with kernel, hints and solution."""
    parts = []
    for chapter in chapters():
        text = web.DRAW.sub(_drawing, re.sub(r"(?m)^#", "##", chapter.text))
        parts += [f"\n{text}", *(_exercise(e) for e in chapter.exercises)]
    return "\n".join(parts)


def _drawing(match: re.Match[str]) -> str:
    return f'<div class="drawn">{web.picture(match[1], match[2], FOLDER)}</div>'


def _exercise(e: Exercise) -> str:
    solution = "\n".join(f"{blank}: {text}" for blank, text in e.solution.items() if e.kind != "write") or e.solved
    hints = "\n".join(f"{i}. {text}" for i, text in enumerate(e.hints, 1))
    aim = f"\n\nAim: {e.aim + ': ' if e.aim else ''}`{e.goal}` at {e.shape}." if e.goal else ""
    behind = f"\n\n    See also {', '.join(f'`{name}`' for name in e.story)}." if e.story else ""
    return (
        f"### {e.number}. {e.title}\n\n*{KINDS[e.kind].capitalize()}.* {_no_links(e.task)}{aim}\n\n"
        f'```cuda\n{e.source}```\n\n??? question "Hints"\n\n{_indented(_no_links(hints))}\n\n'
        f'??? success "Solution"\n\n{_indented(f"```cuda{chr(10)}{solution}{chr(10)}```")}\n\n'
        f"    {_no_links(e.why)}{behind}\n"
    )


def _no_links(text: str) -> str:
    """`out[m][n]` is an element, not a link."""
    return text.replace("[", r"\[")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository lead to their page, or to the repository."""
    if page.file.src_uri == "ladders/index.md":
        return markdown
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

    parts = CODE.split(PICTURE.sub(_both_colours, markdown))  # text and blocks of code in turn
    markdown = "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))
    return markdown + _exercises() if page.file.src_uri == "exercises.md" else markdown


def _both_colours(match: re.Match[str]) -> str:
    """A picture in two colours as two images, of which the site's style sheet shows one: it follows the toggle."""
    dark, rest = match["dark"], match["rest"]
    light = re.search(r'src="([^"]+)"', rest)
    assert light is not None
    return "".join(
        f"<img{rest.replace(light[1], f'{path}#only-{name}')}>" for name, path in (("light", light[1]), ("dark", dark))
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the first use of each glossary term in a page's text; headings, code and links stay as they are."""
    if page.file.src_uri in ("glossary.md", "changelog.md", "api.md"):
        return html
    glossary = posixpath.relpath("glossary/", page.url or ".")
    words = _terms()
    wanted = re.compile(rf"\b({'|'.join(sorted(map(re.escape, words), key=len, reverse=True))})\b")
    linked: set[str] = set()
    closed = 0  # how many elements around this text take no links

    def link(match: re.Match[str]) -> str:
        anchor = words[match[0]]
        if anchor in linked:
            return match[0]
        linked.add(anchor)
        return f'<a class="term" href="{glossary}/#{anchor}">{match[0]}</a>'

    parts = re.split(r"(<[^>]+>)", html)
    for i, part in enumerate(parts):
        if tag := re.match(r"<(/?)(a|code|pre|h[1-6]|th|svg|summary|script|style)\b", part):
            closed += -1 if tag[1] else 1
        elif not part.startswith("<") and not closed:
            parts[i] = wanted.sub(link, part)
    html = "".join(parts)
    return ladder_pages.filled(html, Path(page.file.src_uri).stem)


@cache
def _terms() -> dict[str, str]:
    """The glossary's words, their plurals and further forms, with their anchors."""
    found = {}
    for anchor, term, forms in TERM.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")):
        for word in (term, f"{term}s", *filter(None, forms.split(", "))):
            found[word] = anchor
    return found


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its cells, and what they print where `make site` runs them."""
    parts = []
    book = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    if os.environ.get("RUN_NOTEBOOKS"):
        nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in book.cells:
        text = cell["source"]
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            elif plain := "".join(data.get("text/plain", output.get("text", ""))).strip():
                parts.append(f"```text\n{plain}\n```")
    return "\n\n".join(parts) + "\n"
