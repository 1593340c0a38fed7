"""Small pieces of HTML: text, highlighted sources, differences, tables, charts of strangers."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

_SVG = "http://www.w3.org/2000/svg"
_SHAPES = {"svg", "g", "title", "desc", "text", "tspan", "rect", "line", "path", "circle", "polyline", "polygon"}
_PLAIN = re.compile(r'<span class="(?:n|p|o|w|nb|n[nvxa])">([^<]*)</span>')
_PART = re.compile(r"<!-- (?P<name>[\w:]+) -->.*?<!-- /(?P=name) -->", re.DOTALL)


def text(value: object) -> str:
    """Any value, safe inside an element or an attribute."""
    return html.escape(str(value), quote=True)


def prose(value: str) -> str:
    """A sentence in which `backticks` mark code."""
    parts = text(value).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def source(code: str, kind: str) -> str:
    """A rung's source, highlighted."""
    lexer = get_lexer_by_name("cuda" if kind == "cuda" else "python", stripnl=False)
    marked = highlight(code.rstrip() + "\n", lexer, HtmlFormatter(nowrap=True))
    return scrolled(f'<pre class="code"><code>{_PLAIN.sub(lambda m: m[1], marked)}</code></pre>', "source")


def patch(lines: Sequence[str]) -> str:
    """A patch's lines, coloured by what they are."""
    marked = []
    for line in lines:
        kind = {"+": "ins", "-": "del", "@": "hunk"}.get(line[:1], "")
        told = "…" if kind == "hunk" else line
        marked.append(f'<span class="{kind}">{text(told) or " "}</span>')
    return scrolled(f'<pre class="code diff"><code>{"".join(marked)}</code></pre>', "difference")


def scrolled(inner: str, label: str) -> str:
    """Something wide, which a keyboard can scroll as well."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">{inner}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), label: str = "",
          classes: Sequence[str] = ()) -> str:  # fmt: skip
    """A table whose cells are HTML already; `numbers` are the columns set to the right."""

    def cell(tag: str, index: int, value: str) -> str:
        mark = ' class="number"' if index in numbers else ""
        return f"<{tag}{mark}{' scope=col' if tag == 'th' else ''}>{value}</{tag}>"

    head = "".join(cell("th", i, text(c)) for i, c in enumerate(columns))
    body = []
    for number, row in enumerate(rows):
        mark = f' class="{classes[number]}"' if number < len(classes) and classes[number] else ""
        first, *rest = row
        cells = f"<th scope=row>{first}</th>" + "".join(cell("td", i, c) for i, c in enumerate(rest, 1))
        body.append(f"<tr{mark}>{cells}</tr>")
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return scrolled(inner, label or ", ".join(columns))


def story(markdown: str) -> str:
    """A ladder's README without its heading, its generated parts and its links, which lead out of the page."""
    body = _PART.sub("", markdown).partition("\n")[2] if markdown.startswith("# ") else _PART.sub("", markdown)
    marked = MarkdownIt("commonmark", {"html": False}).enable("table").render(body)
    marked = re.sub(r"</?a\b[^>]*>|<img\b[^>]*>", "", marked)
    marked = re.sub(r"<(/?)h[1-3]>", r"<\1h4>", marked)
    marked = marked.replace("<pre>", '<div class="scroll" tabindex="0" role="region" aria-label="example"><pre>')
    marked = marked.replace("</pre>", "</pre></div>").replace(
        "<table>", '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
    )
    return marked.replace("</table>", "</table></div>")


def clean_svg(svg: str) -> str:
    """A chart from a results file, reduced to shapes and text: a file may come from anywhere."""
    try:
        root = ET.fromstring(svg)
    except ET.ParseError:
        return ""
    if _local(root.tag) != "svg":
        return ""
    _strip(root)
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def _strip(element: ET.Element) -> None:
    for name in list(element.attrib):
        value = element.attrib[name].replace(" ", "").lower()
        if name.startswith("{") or name.lower().startswith("on") or name in ("style", "href") or "url(" in value:
            del element.attrib[name]
    for child in list(element):
        if _local(child.tag) in _SHAPES:
            _strip(child)
        else:
            element.remove(child)


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2]
