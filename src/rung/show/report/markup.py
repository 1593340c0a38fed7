"""Small pieces of HTML: prose, highlighted sources, differences, READMEs."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

_PLAIN = re.compile(r'<span class="(?:n|p|o|w|nb|n[nvxa])">([^<]*)</span>')
_MICROSECONDS = re.compile(r"(?<=\d )us\b")  # as written in sources and stored sentences
_PART = re.compile(r"<!-- (?P<name>[\w:]+) -->.*?<!-- /(?P=name) -->", re.DOTALL)


def text(value: object) -> str:
    """Any value, safe inside an element or an attribute."""
    return html.escape(str(value), quote=True)


def prose(value: str) -> str:
    """A sentence in which `backticks` mark code."""
    parts = text(_MICROSECONDS.sub("µs", value)).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def unit(label: str) -> str:
    """A heading or a unit, with the sign that the tables of times have."""
    return re.sub(r"\bus\b", "µs", label)


def source(code: str, kind: str) -> str:
    """A rung's source, highlighted."""
    lexer = get_lexer_by_name("cuda" if kind == "cuda" else "python", stripnl=False)
    marked = highlight(code.rstrip() + "\n", lexer, HtmlFormatter(nowrap=True))
    return scrolled(f'<pre class="code"><code>{_PLAIN.sub(lambda m: m[1], marked)}</code></pre>', "source")


def patch(lines: Sequence[str]) -> str:
    """A patch's lines, coloured by their kind."""
    marked = []
    for line in lines:
        kind = {"+": "ins", "-": "del", "@": "hunk"}.get(line[:1], "")
        shown = "…" if kind == "hunk" else line
        marked.append(f'<span class="{kind}">{text(shown) or " "}</span>')
    return scrolled(f'<pre class="code diff"><code>{"".join(marked)}</code></pre>', "difference")


def scrolled(inner: str, label: str) -> str:
    """A wide element that can also be scrolled with the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">{inner}</div>'


def story(markdown: str) -> str:
    """A ladder's README without its heading, its generated parts and its links, which lead out of the page."""
    body = _PART.sub("", markdown).partition("\n")[2] if markdown.startswith("# ") else _PART.sub("", markdown)
    marked = MarkdownIt("commonmark", {"html": False}).enable("table").render(_MICROSECONDS.sub("µs", body))
    marked = re.sub(r"</?a\b[^>]*>|<img\b[^>]*>", "", marked)
    marked = re.sub(r"<(/?)h[1-3]>", r"<\1h4>", marked)
    marked = marked.replace("<pre>", '<div class="scroll" tabindex="0" role="region" aria-label="example"><pre>')
    marked = marked.replace("</pre>", "</pre></div>").replace(
        "<table>", '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
    )
    return marked.replace("</table>", "</table></div>")
