"""How many mutants of right kernels the checker refuses, and why others survive, as docs/notes/mutation.md shows it.

A survivor is classified by hand, in its row's notes: `equivalent: ...` or `missing: ...`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rung.results.row import Row
from rung_reproduce.show import markdown

EQUIVALENT = "equivalent:"


def parts(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """The note's generated parts, from all rows: they describe the checker at that commit."""
    found = [r for r in rows if r.kind == "mutate"]
    some = [r for r in found if r.options["device"] == "emulator"]
    on_gpu = [r for r in found if r.options["device"] == "cuda"]
    return {
        "mutants:ladders": partial(_scores, some, "ladder", lambda r: r.operation),
        "mutants:kinds": partial(_scores, some, "kind", lambda r: r.part),
        "mutants:survivors": partial(_survivors, some),
        "mutants:gpu": partial(_scores, on_gpu, "kind", lambda r: r.part),
        "mutants:gpu-survivors": partial(_survivors, on_gpu),
    }


def _equivalent(row: Row) -> bool:
    return any(note.startswith(EQUIVALENT) for note in row.notes)


def _scores(rows: list[Row], head: str, of: Callable[[Row], str]) -> str:
    def line(name: str, some: list[Row]) -> tuple[str, ...]:
        judged = [r for r in some if r.verdict in ("ok", "failed")]  # not those that do not compile or take too long
        refused, same = sum(r.verdict == "failed" for r in judged), sum(_equivalent(r) for r in judged)
        share = f"{refused / (len(judged) - same):.1%}" if len(judged) > same else ""
        return name, f"{len(judged)}", f"{refused}", f"{same}", f"{len(judged) - refused - same}", share

    if not rows:
        return "\nNot measured yet.\n\n"
    lines = [line(name, [r for r in rows if of(r) == name]) for name in sorted({of(r) for r in rows})]
    heads = (head, "mutants", "refused", "equivalent", "missed", "refused of those that are not equivalent")
    return markdown.table(heads, [*lines, line("all", rows)])


def _survivors(rows: list[Row]) -> str:
    if not rows:
        return ""
    alive = sorted((r for r in rows if r.verdict == "ok"), key=lambda r: (_equivalent(r), r.what, r.options["line"]))
    return markdown.table(
        ("rung", "line", "kind", "change", "why it survives"),
        [
            (r.what, f"{r.options['file']}:{r.options['line']}", r.part, f"`{r.options['change']}`",
             "; ".join(r.notes) or "not classified yet")
            for r in alive
        ],
        words=5,
    )  # fmt: skip
