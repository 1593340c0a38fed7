"""Markdown of the documents: tables, and pictures in both colour schemes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rung.show.charts import escape


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A table; the first `words` columns are not numbers. Empty if it has no rows."""
    cells = [[str(c).replace("|", "\\|") for c in row] for row in rows]
    if not cells:
        return ""
    marks = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in (heads, marks, *cells)) + "\n\n"


def picture(name: str, alt_text: str, folder: str) -> str:
    """A picture of `folder` for light and dark pages; `alt_text` describes it."""
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{folder}/{name}-dark.svg">\n'
        f'  <img alt="{escape(alt_text)}" src="{folder}/{name}-light.svg">\n'
        "</picture>\n"
    )


def plain(text: str) -> str:
    """Text with Markdown's special characters escaped, except for code in backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([_*<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def ms(seconds: float) -> str:
    """Milliseconds with three figures, and three decimals below one."""
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def times(factor: float) -> str:
    """A ratio of speeds."""
    return f"{factor:,.2f}×"
