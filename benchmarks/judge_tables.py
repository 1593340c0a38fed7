"""What the checker catches, beside other tools, and what judging costs: docs/judge.md, docs/corpus.md and their kin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rung.dtypes import DTYPES
from rung.results.row import Row
from rung_reproduce.show import markdown

THOROUGH = "rung --thorough"


def bounds() -> str:
    """The error bounds of each number format."""
    bounds = {d.name: (d.rtol, d.atol, d.norm_cap) for d in DTYPES.values()}
    rows = [(name, *(f"{bound:.1e}".replace("e-0", "e-") for bound in some)) for name, some in bounds.items()]
    return markdown.table(("dtype", "rtol", "least atol", "cap"), rows)


def programs(rows: Iterable[Row]) -> str:
    """Which tool sees the fault of which program (benchmarks/programs_gpu.py of commit f55c2e5e)."""
    tools = ("rung", "memcheck", "racecheck", "initcheck", "synccheck")
    found = {(r.what, r.part): r for r in rows if r.kind == "sanitize" and r.part in tools}

    def word(name: str, tool: str) -> str:
        row = found.get((name, tool))
        if row is None or row.verdict not in ("ok", "failed"):
            return ""
        return "-" if row.verdict == "ok" else row.reason if tool == "rung" else "yes"

    lines = [(name.partition("/")[2], *(word(name, tool) for tool in tools)) for name in sorted({n for n, _ in found})]
    return markdown.table(("program", *tools), lines) if lines else "\nNot measured yet.\n\n"


def machine_speed(rows: Iterable[Row]) -> str:
    """Warp instructions per CPU second (benchmarks/machine_speed.py)."""
    row = next((r for r in reversed(list(rows)) if r.what == "machine/speed"), None)
    if row is None:
        return "\nNot measured yet.\n\n"
    kernels = dict.fromkeys(name.rpartition("_")[0] for name in row.metrics)
    modes = ("plain", "counts", "races")
    rates = {kernel: [f"{row.metrics[f'{kernel}_{mode}']:.1f}" for mode in modes] for kernel in kernels}
    lines = [(kernel.replace("_", " "), *rate) for kernel, rate in rates.items()]
    heads = ("million warp instructions per CPU second", "plain", "counting", "with races")
    return markdown.table(heads, lines) + f"On one core ({row.machine.get('cpu', '')}).\n\n"


def same_bits(rows: Iterable[Row]) -> str:
    """How many rungs' outputs are those of a GPU (benchmarks/same_bits.py)."""
    found = [row for row in rows if row.part == "same bits" and row.verdict == "ok"]
    if not found:
        return "\nNot compared yet.\n\n"
    equal = [row for row in found if not row.metrics["differ"]]
    others = sorted({f"{row.operation}/{row.what.partition('/')[2][:2]}" for row in found if row.metrics["differ"]})
    rest = f" The others: {', '.join(others)}." if others else ""
    gpus = " and ".join(sorted({row.machine["gpu"] for row in found}))
    return (
        f"\nOf {len(found)} runs of CUDA rungs at small cases, here and on an {gpus}, the outputs of {len(equal)} are "
        f"equal in every bit.{rest}\n\n"
    )


def judging(rows: Iterable[Row]) -> str:
    """What the default check takes (benchmarks/judging.py)."""
    row = next((r for r in reversed(list(rows)) if r.what == "judging" and r.part == "seconds"), None)
    if row is None:
        return "\nNot measured yet.\n\n"
    lines = [[markdown.plain(str(cell)) for cell in line] for line in row.detail["rows"]]
    return markdown.table(row.detail["columns"], lines)


def corpus(rows: Iterable[Row], part: str) -> str:
    """Wrong kernels and right twins by class, and each of them (benchmarks/corpus.py)."""
    newest = {r.part: r.detail["rows"] for r in rows if r.what == "corpus"}
    if "kernels" not in newest:
        return "\nNot measured yet.\n\n"
    sanitizers = ("compute-sanitizer", "triton-sanitizer")  # whose rows name kernels by their hashes
    reported: dict[str, dict[str, bool]] = {}
    for by in sanitizers:
        for key, *found in newest.get(by, []):
            reported.setdefault(key, {})[by] = any(found)
    kernels = [
        [*k[:4], k[4] | reported.get(k[3], {}), *k[5:7], k[7] | reported.get(k[6], {})] for k in newest["kernels"]
    ]
    ways = ("rung", THOROUGH, "KernelBench", "GPU MODE", *sanitizers)
    if part == "kernels":
        texts = [markdown.plain(" ".join(k[2].split())).replace("](", "]\\(") for k in kernels]  # a lambda is no link
        cells = [(k[0], k[1], text, k[3], k[5], k[6]) for k, text in zip(kernels, texts, strict=True)]
        return markdown.table(("class", "file", "what of its text becomes what", "hash", "right twin", "hash"), cells)

    def share(told: list[dict[str, bool]], way: str) -> str:
        asked = [one[way] for one in told if way in one]
        return f"{sum(asked)} of {len(asked)}" if asked else ""

    def line(name: str, some: list[list[Any]]) -> tuple[str, ...]:
        twins = list({k[6]: k[7] for k in some}.values())
        wrong = (share([k[4] for k in some], way) for way in ways)
        return name, *wrong, *(share(twins, way) for way in ways if way != THOROUGH)

    lines = [line(name, [k for k in kernels if k[0] == name]) for name in dict.fromkeys(k[0] for k in kernels)]
    heads = ("class", *(f"refused by {way}" for way in ways), *(f"twins: {way}" for way in ways if way != THOROUGH))
    return markdown.table(heads, [*lines, line("all", kernels)])
