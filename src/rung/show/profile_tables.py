"""Profiles as tables: Nsight Compute's counters of kernels, and where a token's time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rung.profile.counters import Profile, Report, side_by_side
from rung.show.verb_tables import Table

if TYPE_CHECKING:
    from rung.profile.generation import Found
    from rung.profile.stopwatch import Inside

SHOWN = 15


def counters(reports: Sequence[Report]) -> Iterator[str | Table]:
    """A column for each kernel; then what was moved beside the cost model, and why warps waited."""
    yield "  against  ".join(f"{r.rung} {r.dtype} {r.shape}" for r in reports)
    groups = side_by_side(reports)
    kernels = [(r, k) for group in groups for r, k in zip(reports, group, strict=True) if k is not None]
    names = tuple(f"{r.rung.partition('/')[2]} {k.kernel}" for r, k in kernels)
    rows = [(title, *(cell(k) for _, k in kernels)) for title, cell in _ROWS]
    rows = [(title, *(c or "-" for c in cells)) for title, *cells in rows if any(cells)]
    yield Table(("", *names), rows, right=names)
    yield ""
    for report in reports:
        counted = report.dram_bytes
        if counted is not None:
            yield (
                f"{report.rung}: {counted / 1e6:.2f} MB to and from memory; its cost model says "
                f"{report.model_bytes / 1e6:.2f} MB at least ({counted / report.model_bytes:.2f}x)."
            )
    for report, kernel in kernels:
        yield f"\n{report.rung} {kernel.kernel}: why warps waited"
        yield from (f"  {stall.share:4.0%}  {stall.name}: {stall.meaning}." for stall in kernel.stalls)
        if total := sum(kernel.classes.values()):
            shares = sorted(kernel.classes.items(), key=lambda item: -item[1])
            yield "  instructions: " + ", ".join(f"{n} {c / total:.0%}" for n, c in shares if c / total > 0.005)


def generation(of: Found) -> Iterator[str | Table]:
    found, floor = of.breakdown, of.floor
    what = "kernel" if found.device == "cuda" else "operator"
    overlap = any(s.running > 1.02 * s.seconds for s in found.shares)
    rows = [
        (
            s.name[:70],
            f"{s.calls:.1f}",
            f"{s.running * 1e6:.1f}" if overlap else "",
            f"{s.seconds * 1e6:.1f}",
            f"{s.seconds / found.seconds:.1%}",
        )
        for s in found.shares[:SHOWN]
    ]
    rest = sum(s.seconds for s in found.shares[SHOWN:])
    if rest:
        rows.append((f"{len(found.shares) - SHOWN} others", "", "", f"{rest * 1e6:.1f}", f"{rest / found.seconds:.1%}"))
    # On a CPU, rung's compiled step calls no torch operator, so the profiler does not see its time.
    idle = "gaps" if found.device == "cuda" else "outside of torch's operators: rung's compiled step, Python"
    rows.append((f"({idle})", "", "", f"{found.gap * 1e6:.1f}", f"{found.gap / found.seconds:.1%}"))
    columns = (what, "calls", "runs, us", "us per token", "share")
    yield Table(columns, rows, right=columns[1:])
    place = "in gaps" if found.device == "cuda" else "outside of operators"
    yield (
        f"\n{found.seconds * 1e6:.1f} us per token on the {found.device} under the profiler, "
        f"{found.gap / found.seconds:.0%} of it {place}, over {found.tokens} tokens and their prompt."
    )
    if overlap:
        yield "Kernels may overlap: each is assigned the time by which it outlasts those that started before it."
    for title, totals in (("copies", found.copies), ("calls of CUDA", found.calls)):
        if totals:
            yield f"\n{title} of the whole run:\n"
            lines = [
                (t.name[:70], t.calls, f"{t.seconds * 1e3:.3f}", f"{t.bytes / 1e6:.2f}" if t.bytes else "")
                for t in totals[:SHOWN]
            ]
            yield Table((title, "how many", "ms", "MB"), lines, right=("how many", "ms", "MB"))
    if floor is not None:
        yield (
            f"Reading a step's {floor.bytes / 1e6:,.0f} MB of weights takes at least {floor.seconds * 1e6:.0f} us "
            f"({floor.bandwidth / 1e12:.2f} TB/s here): {floor.seconds / found.seconds:.0%} of a token's time."
        )
    if of.inside is not None:
        yield from inside(of.inside)


def inside(inside: Inside) -> Iterator[str | Table]:
    """The table of a kernel that timed itself, a line for each row and thread."""
    columns = (*(f"{c}, us" for c in inside.columns), "all, us", "share")
    rows = []
    for group in inside.groups():
        all_of_it = [sum(spent) for _, spent in group]
        for (name, spent), whole in zip(group, all_of_it, strict=True):
            rows.append((name, *map(_us, spent), _us(whole), f"{whole / inside.timed_seconds:.1%}"))
        if len(group) > 1:
            sums = [sum(part) for part in zip(*(spent for _, spent in group), strict=True)]
            rows.append(("together", *map(_us, sums), _us(sum(sums)), f"{sum(sums) / inside.timed_seconds:.1%}"))
    yield f"\nInside {inside.rung}, the mean of {inside.blocks} blocks:\n"
    yield Table((" ", *columns), rows, right=columns)
    yield (
        f"\nThe build with timers took {inside.timed_seconds * 1e6:.1f} us per call, "
        f"the usual one {inside.seconds * 1e6:.1f} us."
    )
    if inside.default_tuning:
        yield "Both with the rung's default tuning: with this shape's own, the timers' registers spill."


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds > 0 else ""


def _plain(name: str, text: str = "{:.0f}", scale: float = 1.0) -> Any:
    def cell(kernel: Profile) -> str:
        value = kernel.figures.get(name)
        return "" if value is None else text.format(value * scale)

    return cell


def _shared(kernel: Profile) -> str:
    static, dynamic = kernel.figures.get("shared_static"), kernel.figures.get("shared_dynamic")
    return "" if static is None else f"{static:.0f}+{dynamic or 0:.0f}"


def _opcodes(kernel: Profile) -> str:
    return ", ".join(f"{name} {kernel.opcodes[name]:,.0f}" for name in OPCODES_SHOWN if kernel.opcodes.get(name))


OPCODES_SHOWN = ("FADD", "FMUL", "FFMA", "HMMA", "HGMMA", "BRA")
_ROWS = (
    ("duration, us", _plain("seconds", "{:.2f}", 1e6)),
    ("grid", lambda k: k.grid),
    ("block", lambda k: k.block),
    ("SM throughput, %", _plain("sm_throughput", "{:.1f}")),
    ("memory throughput, %", _plain("memory_throughput", "{:.1f}")),
    ("DRAM throughput, %", _plain("dram_throughput", "{:.1f}")),
    ("achieved occupancy, %", _plain("achieved_occupancy", "{:.1f}")),
    ("theoretical occupancy, %", _plain("theoretical_occupancy", "{:.1f}")),
    ("registers per thread", _plain("registers")),
    ("shared memory, static+dynamic", _shared),
    ("waves per multiprocessor", _plain("waves", "{:.2f}")),
    ("bank conflicts, loads", _plain("conflicts_load", "{:,.0f}")),
    ("bank conflicts, stores", _plain("conflicts_store", "{:,.0f}")),
    ("wavefronts per shared load", _plain("ways_load", "{:.2f}")),
    ("wavefronts per shared store", _plain("ways_store", "{:.2f}")),
    ("sectors per global load", _plain("sectors_per_request", "{:.2f}")),
    ("L1 hit rate, %", _plain("l1_hit", "{:.1f}")),
    ("L2 hit rate, %", _plain("l2_hit", "{:.1f}")),
    ("DRAM read, MB", _plain("dram_read", "{:.2f}", 1e-6)),
    ("DRAM written, MB", _plain("dram_write", "{:.2f}", 1e-6)),
    ("instructions", _plain("instructions", "{:,.0f}")),
    ("threads per instruction", _plain("threads_per_instruction", "{:.1f}")),
    ("branch efficiency, %", _plain("branch_uniform", "{:.1f}")),
    ("global loads", _plain("global_loads", "{:,.0f}")),
    ("global stores", _plain("global_stores", "{:,.0f}")),
    ("global memory's share of bytes, %", _plain("global_share", "{:.1f}")),
    ("by opcode", _opcodes),
    ("eligible warps", _plain("eligible_warps", "{:.2f}")),
    ("cycles of a warp per issue", _plain("cycles_per_issue", "{:.1f}")),
    ("ALU pipe, %", _plain("pipe_alu", "{:.1f}")),
    ("FMA pipe, %", _plain("pipe_fma", "{:.1f}")),
    ("LSU pipe, %", _plain("pipe_lsu", "{:.1f}")),
    ("tensor pipe busy, %", _plain("tensor_active", "{:.1f}")),
    ("issue slots used, %", _plain("issue_active", "{:.1f}")),
)
