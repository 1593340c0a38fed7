"""The results of `check`, `bench` and `inspect` as tables, for the command line and the Python API."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuless.compile.source import Unreached
    from rung.bench.race import Timed
    from rung.check.report import Report
    from rung.profile.resources import Compiled


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """The header and the rows as lines; `right` names the columns of numbers."""
    widths = [max([len(c), *(len(r[i]) for r in rows)]) for i, c in enumerate(columns)]
    lines = []
    for row in [columns, *rows]:
        parts = [c.rjust(w) if n in right else c.ljust(w) for n, c, w in zip(columns, row, widths, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return lines


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under columns; `right` names columns of numbers, `drop` what a narrow terminal leaves out first."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    right: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def _filled(self) -> tuple[list[str], list[list[str]]]:
        """The non-empty columns, as text."""
        cells = [["" if c is None else str(c) for c in row] for row in self.rows]
        used = [i for i in range(len(self.columns)) if any(row[i] for row in cells)]
        return [self.columns[i] for i in used], [[row[i] for i in used] for row in cells]

    def __repr__(self) -> str:
        columns, rows = self._filled()
        return "\n".join(aligned(columns, rows, self.right))

    def _repr_html_(self) -> str:
        columns, rows = self._filled()
        side = ["right" if c in self.right else "left" for c in columns]

        def line(tag: str, cells: Sequence[str]) -> str:
            made = (f'<{tag} style="text-align:{s}">{escape(c)}</{tag}>' for s, c in zip(side, cells, strict=True))
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line("td", row) for row in rows)
        return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def checked(reports: Iterable[Report]) -> Table:
    """The verdicts of a check."""
    rows = [
        (r.rung, r.dtype, r.cases or "", f"{r.element:.3f}" if r.verdict == "ok" else "", r.verdict, remark(r))
        for r in reports
    ]
    return Table(("rung", "dtype", "cases", "of bound", "verdict", "remark"), rows, ("cases", "of bound"))


def remark(report: Report) -> str:
    """Where and why a rung failed, and further remarks on a verdict."""
    parts = [f"case {report.case!r}:"] if report.case else []
    if report.reason:
        parts.append(report.reason)
    if report.nondeterministic:
        parts.append("nondeterministic")
    if report.unreached:
        parts.append(f"{len({(p.file, p.line) for p in report.unreached})} lines not reached")
    if report.tunings:
        parts.append(f"{report.tunings} other tunings")
    parts += report.notes
    if report.left_out and not report.reason:
        parts.append(cases_left_out(report.rung, report.left_out))
    return parts[0] + " " + "; ".join(parts[1:]) if report.case else "; ".join(parts)


def cases_left_out(rung: str, rules: Mapping[str, str]) -> str:
    """How many cases a rung refuses, and by which rules."""
    listed = "; ".join(sorted({rule.removeprefix(f"{rung} ") for rule in rules.values()}))
    return f"{len(rules)} case{'s' if len(rules) != 1 else ''} left out ({listed})"


_TIMES = ("cold us", "p20-p80", "warm us", "GB/s", "TFLOP/s", "of limit", "vs lib")


def timed(rows: Iterable[Timed], *, where: bool = False) -> Table:
    """The figures of races, rungs and libraries sorted together by speed; with `where` shape and dtype as columns."""
    front = ("rung", "dtype", "shape") if where else ("rung",)
    lines = []
    for r in rows:
        place = (r.rung.partition("/")[2], r.dtype, r.shape)[: len(front)]
        if r.verdict != "ok":
            lines.append((*place, *[""] * len(_TIMES), r.verdict, r.reason))
            continue
        lines.append(
            (
                *place,
                f"{r.cold_us:.2f}",
                "" if r.cold_p20_us is None else f"{r.cold_p20_us:.2f}-{r.cold_p80_us:.2f}",
                "" if r.warm_us is None else f"{r.warm_us:.2f}",
                "" if r.gbps is None else f"{r.gbps:.0f}",
                "" if r.tflops is None else f"{r.tflops:.1f}",
                f"{max(r.of_bandwidth or 0, r.of_rate or 0):.0%}",
                "" if r.library_ratio is None else f"{r.library_ratio:.2f}x",
                r.against_before,
                "; ".join(r.notes),
            )
        )
    drop = ("p20-p80", "TFLOP/s", "GB/s", "notes", "vs before")
    return Table((*front, *_TIMES, "vs before", "notes"), lines, _TIMES, drop)


_COMPILED = ("rung", "kernel", "arch", "dtype", "registers", "shared", "spills", "stack", "block",
             "occupancy", "limited by", "remark")  # fmt: skip
_NUMBERS = ("registers", "shared", "spills", "stack", "occupancy")
_LEAST = ("remark", "stack", "kernel", "block", "arch", "dtype")


def compiled(rows: Iterable[Compiled]) -> Table:
    """The compiler's report on kernels."""
    return Table(_COMPILED, [_compiled(row) for row in rows], _NUMBERS, _LEAST)


def _compiled(row: Compiled) -> tuple[object, ...]:
    if row.registers is None:
        reason = "does not compile (see its reason)" if "\n" in row.reason else row.reason
        return (row.rung, row.kernel, row.arch, row.dtype, *[""] * 7, f"{row.state}: {reason}")
    shared = f"{row.static_shared}+{row.dynamic_shared}" if row.dynamic_shared else row.static_shared
    spills = f"{row.spill_stores}+{row.spill_loads}" if row.spills else 0
    block = "x".join(str(n) for n in row.block or () if n > 1) or "1"
    note = row.reason or (f"more with {row.hint}" if row.hint else "")
    return (
        row.rung, row.kernel, row.arch, row.dtype, row.registers, shared, spills, row.stack, block,
        f"{100 * (row.occupancy or 0):.0f} %", row.limiter, note,
    )  # fmt: skip


def sum_up(reports: Sequence[Report], expected: int, device: str) -> str:
    from rung.check.report import NOT_JUDGED

    if not reports:
        return ""
    verdicts = ("ok", *NOT_JUDGED, "failed")
    counts = {v: sum(r.verdict == v for r in reports) for v in verdicts}
    text = ", ".join(f"{n} {v}" for v, n in counts.items() if n)
    stopped = f"; stopped before the other {expected - len(reports)}" if len(reports) < expected else ""
    shares = [r.norm / r.norm_cap for r in reports if r.verdict == "ok" and r.norm_cap]
    within = "each value is within its bound, and the overall relative error at most"
    more = f" Where ok, {within} {max(shares):.2f} of its cap." if shares else ""
    return f"\n{text} on {device}{stopped}.{more}"


def unreached(reports: Sequence[Report]) -> Iterator[str]:
    """The places that no case has reached in any number format, with their source."""
    sites: dict[str, list[set[Unreached]]] = {}
    for report in reports:
        sites.setdefault(report.rung, []).append(set(report.unreached))
    places = sorted(set().union(*(set.intersection(*found) for found in sites.values())))
    for file, of_file in itertools.groupby(places, key=lambda place: place.file):
        yield f"\n{file}"
        for line, of_line in itertools.groupby(of_file, key=lambda place: place.line):
            here = list(of_line)
            yield (f"{line:6}  {here[0].text}\n        ^ {', '.join(dict.fromkeys(p.never for p in here))}")


def inspected(rows: Sequence[Compiled]) -> Iterator[str | Table]:
    yield compiled(rows)
    shapes = dict.fromkeys(row.shape for row in rows if row.registers is not None)
    if shapes:
        yield f"\nCompiled for the shape {', '.join(shapes)}; shared memory is static+dynamic bytes per block."
    mixed = [row for row in rows if row.mix]
    if mixed:
        from gpuless.facts import opcodes

        present = {name for row in mixed for name in row.mix}
        order = [n for c in (*opcodes.groups(), "other") for n in (c, f"{c}.64", f"{c}.128") if n in present]
        columns = ("kernel", "arch", "instructions", *order)
        yield "\nInstructions in the code, by class (.64 and .128: bits per thread):"
        cells = [(r.kernel, r.arch, r.mix["total"], *(r.mix.get(n, "") for n in order)) for r in mixed]
        yield Table(columns, cells, right=columns[2:])


def warnings_of(rows: Sequence[Compiled]) -> Iterator[str]:
    spilling = sorted({f"{row.rung} ({row.kernel}) on {row.arch}" for row in rows if row.spills})
    if spilling:
        yield (
            f"warning: registers spill to local memory in {', '.join(spilling)}: give each thread fewer values to "
            "hold, or relax __launch_bounds__."
        )
    for row in rows:
        if "\n" in row.reason:
            yield f"{row.rung} on {row.arch}: {row.reason}"


def ceilings(measured: float, flops: Mapping[str, float], sheet: Mapping[str, float]) -> Table:
    """Measured bytes/s and FLOP/s beside the data sheet's."""
    rows = [("copy, GB/s", f"{measured / 1e9:.0f}", f"{sheet['bytes'] / 1e9:.0f}" if sheet else "")]
    for name, rate in flops.items():
        rows.append((f"matmul {name}, TFLOP/s", f"{rate / 1e12:.0f}", f"{sheet[name] / 1e12:.0f}" if sheet else ""))
    return Table(("ceiling", "measured", "datasheet"), rows, right=("measured", "datasheet"))
