"""Counts of the emulator as tables and as annotated source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuless.counts.counters import Access, Counts
from gpuless.counts.counters_explained import figures, is_ratio, per_request, reason
from rung.profile.counted import Counted
from rung.show.verb_tables import Table

ROWS = (
    ("global load requests", "global_read_requests"),
    ("sectors per load request", "sectors_per_request"),
    ("bytes used per sector, loads", "bytes_per_sector_load"),
    ("global bytes loaded (sectors)", "global_read_bytes"),
    ("global store requests", "global_write_requests"),
    ("sectors per store request", "sectors_per_store"),
    ("bytes used per sector, stores", "bytes_per_sector_store"),
    ("global bytes stored (sectors)", "global_write_bytes"),
    ("shared loads", "shared_loads"),
    ("wavefronts of shared loads", "wavefronts_load"),
    ("bank conflicts, loads", "conflicts_load"),
    ("shared stores", "shared_stores"),
    ("wavefronts of shared stores", "wavefronts_store"),
    ("bank conflicts, stores", "conflicts_store"),
    ("ldmatrix", "ldmatrix"),
    ("atomic requests", "atomics"),
    ("bytes by cp.async", "async_copy_bytes"),
    ("bytes by bulk and tensor copies, in", "bulk_read_bytes"),
    ("bytes by bulk and tensor copies, out", "bulk_write_bytes"),
    ("bytes of wgmma operands", "operand_bytes"),
    ("barriers of warps", "barriers"),
    ("instructions of warps", "instructions"),
    ("lanes per instruction", "threads_not_predicated"),
    ("FADD of lanes", "fadd"),
    ("FMUL of lanes", "fmul"),
    ("FFMA of lanes", "ffma"),
    ("MUFU of warps", "mufu"),
    ("HMMA of warps", "hmma"),
    ("IMMA of warps", "imma"),
    ("wgmma of warps", "gmma"),
    ("active lanes per request", "lanes_per_request"),
)
WASTED = "beyond the ideal"
MARGIN = 60  # characters beside a source that say what its lines ask of memory


def number(value: float | None) -> str:
    """A count whole, a ratio with two decimals."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def kernels(every: Sequence[Counted]) -> Table:
    """A column per kernel, and rows that are not zero."""
    columns = [(c, k) for c in every for k in c.kernels]
    names = [f"{c.rung.partition('/')[2]} {k.kernel}" if len(every) > 1 else k.kernel for c, k in columns]
    found = [figures(k) for _, k in columns]
    rows: list[tuple[str, ...]] = [("grid", *(" x ".join(map(str, k.config.grid)) for _, k in columns))]
    rows.append(("block", *(" x ".join(map(str, k.config.block)) for _, k in columns)))
    if any(k.launches > 1 for _, k in columns):
        rows.append(("launches, summed", *(str(k.launches) for _, k in columns)))
    for title, figure in ROWS:
        if any(f.get(figure) for f in found):
            rows.append((title, *(number(f.get(figure)) for f in found)))
    return Table(("", *names), rows, right=tuple(names))


def of_lines(counted: Counted, own: str) -> dict[int, list[tuple[Access, Counts]]]:
    """The accesses of a source's lines, over all kernels."""
    found: dict[int, dict[Access, Counts]] = {}
    for kernel in counted.kernels:
        for access, counts in kernel.accesses.items():
            if access.file == own and access.way != "barrier":
                found.setdefault(access.line, {}).setdefault(access, Counts()).add(counts)
    return {line: sorted(accesses.items()) for line, accesses in sorted(found.items())}


def short(access: Access, counts: Counts) -> str:
    """An access in a few words: `ld global 6,144 x 4.00`."""
    cost, _ = per_request(access, counts)
    verb = {"read": "ld", "write": "st"}[access.direction]
    way = "" if access.way == "plain" else f" {access.way}"
    if not counts.requests or access.way in ("bulk", "operand"):
        return f"{verb} {access.memory}{way} {counts.bytes:,} bytes"
    return f"{verb} {access.memory}{way} {counts.requests:,} x {cost:.2f}"


def annotated(counted: Counted, source: str, own: str, margin: int = MARGIN) -> str:
    """The source, with what each line asks of memory on its left."""
    lines = of_lines(counted, own)
    marks = {n: "; ".join(short(a, c) for a, c in found) for n, found in lines.items()}
    numbered = [(marks.get(n, ""), f"|{n:4} {text}") for n, text in enumerate(source.splitlines(), 1)]
    return "\n".join(_beside(numbered, margin))


def _beside(lines: Sequence[tuple[str, str]], margin: int) -> list[str]:
    """Lines with their marks on their left; a mark that is wider than the margin stands above its line."""
    width = max((len(mark) for mark, _ in lines if len(mark) <= margin), default=0)
    return [
        f"{mark:>{width}} {text}".rstrip() if len(mark) <= width else f"{mark}\n{'':>{width}} {text}".rstrip()
        for mark, text in lines
    ]


def beside_changes(
    changes: Sequence[str], parent: Mapping[str, str], child: Mapping[str, str], margin: int = MARGIN
) -> list[str]:
    """A difference with what each changed line asks of memory on its left, as `of_texts` says it of both rungs; then
    the lines that cost otherwise though they did not change."""
    marks = {"-": parent, "+": child}
    found = [marks.get(line[:1], {}).get(line[1:].strip(), "") for line in changes]
    out = _beside([(mark, f"| {line}") for mark, line in zip(found, changes, strict=True)], margin)
    changed = {line[1:].strip() for line in changes if line[:1] in marks}
    others = [text for text in parent if parent[text] != child.get(text, parent[text]) and text not in changed]
    if others:
        out += ["", "Unchanged lines that cost otherwise:"]
        out += [f"  {text}\n    {parent[text]}\n    {child[text]}" for text in others]
    return out


def of_texts(counted: Counted, sources: Mapping[str, str]) -> dict[str, str]:
    """What lines ask of memory, by their text, equal ones together; `sources` are the texts of files."""
    found: dict[str, dict[tuple[str, str, str], tuple[Access, Counts]]] = {}
    for own in sorted({access.file for kernel in counted.kernels for access in kernel.accesses} & sources.keys()):
        text = sources[own].splitlines()
        for line, accesses in of_lines(counted, own).items():
            of = found.setdefault(text[line - 1].strip(), {})
            for access, counts in accesses:
                of.setdefault((access.memory, access.direction, access.way), (access, Counts()))[1].add(counts)
    return {text: "; ".join(short(*one) for one in of.values()) for text, of in found.items()}


def expensive(counted: Counted, sizes: Mapping[str, int], most: int = 5) -> Table:
    """The lines that waste most, with the reason."""
    every = [(k, a, c) for k in counted.kernels for a, c in k.accesses.items() if c.waste > 0]
    every.sort(key=lambda found: -found[2].waste)
    rows = []
    for kernel, access, counts in every[:most]:
        cost, unit = per_request(access, counts)
        why = reason(access, kernel.worst[access], sizes) if access in kernel.worst else ""
        verb = {"read": "load", "write": "store"}[access.direction]
        asked = f"{access.memory} {verb}, {cost:.2f} {unit}"
        rows.append((f"{access.file}:{access.line}", asked, f"{counts.waste:,}", why))
    return Table(("line", "access", WASTED, "why"), rows, right=(WASTED,))


def against(child: Counted, parent: Counted) -> list[str]:
    """Figures in which a rung differs from its parent."""
    found = [[figures(k) for k in counted.kernels] for counted in (parent, child)]
    return [f"{title}: {before} -> {after}" for title, before, after in beside(found) if before != after and before]


def beside(every: Sequence[Sequence[Mapping[str, float]]]) -> list[tuple[str, ...]]:
    """Rows of the figures of one or more rungs, each given by its kernels' figures, that are not zero."""
    rows = []
    for title, figure in ROWS:
        totals = [_total(kernels, figure) for kernels in every]
        if any(totals):
            rows.append((title, *map(number, totals)))
    return rows


def _total(kernels: Sequence[Mapping[str, float]], figure: str) -> float | None:
    """A rung's figure: the sum over its kernels, or the mean of a ratio weighted by requests."""
    if not is_ratio(figure):
        return sum(f.get(figure, 0) for f in kernels)
    weight = "global_write_requests" if "store" in figure else "global_read_requests"
    weight = "instructions" if figure.startswith("threads") else weight
    requests = sum(f.get(weight, 0) for f in kernels)
    return sum(f.get(figure, 0) * f.get(weight, 0) for f in kernels) / requests if requests else None
