"""Columns of plain text, for pipes and for pages."""

from collections.abc import Sequence


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """The header and the rows as lines; `right` names the columns of numbers."""
    widths = [max([len(c), *(len(r[i]) for r in rows)]) for i, c in enumerate(columns)]
    lines = []
    for row in [columns, *rows]:
        parts = [c.rjust(w) if n in right else c.ljust(w) for n, c, w in zip(columns, row, widths, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return lines
