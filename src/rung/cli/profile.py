"""`rung profile`: Nsight Compute's counters of a rung, or where a token's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.profile.counters import Profile, Report


def profile(
    rung: Annotated[
        str,
        typer.Argument(
            metavar="OP/RUNG", help="A rung; `all`: the rungs that the sources profile; `generate`: text generation."
        ),
    ],
    file: options.File = None,
    vs: Annotated[str | None, typer.Option(help="Another rung to compare with.")] = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: options.Tune = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="With generate: which model; random:gpt2-xl has random weights.")
    ] = "inner",
    device: Annotated[
        str | None,
        typer.Option(help="emulator: counts without a GPU. With generate: cpu or cuda (default: what is here)."),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="With generate: which plan computes the model.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="With generate: how many tokens.")] = 32,
    trace: Annotated[
        Path | None, typer.Option(help="With generate: write a Chrome trace (open it in ui.perfetto.dev).")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="With generate: include loading and compiling.")] = False,
    limit: Annotated[float, typer.Option(min=1, help="With all: start nothing new after this many seconds.")] = 600.0,
    again: Annotated[
        bool, typer.Option("--again", help="With all: also rungs that have a row for their present code.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Nsight Compute's counters of one checked launch: throughput, occupancy, caches, conflicts, stalls.

    Clocks are left as they are. `rung profile generate` shows where a token's time goes, on a CPU too.

    `rung profile all` keeps the counters of every rung that a source profiles (`rung reproduce` shows them).

    Examples: rung profile attention/13 --vs attention/14 · rung profile generate -m gpt2 --trace token.json
    """
    if rung == "generate":
        from rung.cli import profile_generate

        profile_generate.run(model, device, plan, dtype, tokens, trace, json, whole)
        return
    if rung == "all":
        _all(limit, again, json)
        return
    if device == "emulator":
        from rung.cli.count import of_rung

        of_rung(rung, file, vs, shape, dtype, tune, json=json)
        return
    if device not in (None, "cuda"):
        raise RungError(f"--device {device} is for `rung profile generate`; a rung takes cuda or emulator.")
    from rung.profile import counters
    from rung.results import store
    from rung.rungs.subjects import subject_of

    subject, tuning = subject_of(rung, file, shape, dtype), options.parse_tuning(tune)
    reports = [counters.profile(subject, tuning)]
    store.append(counters.as_result(subject, tuning, reports[0]))
    if vs is not None:
        other = subject_of(vs, None, shape or subject.shape, dtype or subject.dtype.name)
        reports.append(counters.profile(other))
        store.append(counters.as_result(other, None, reports[1]))
    if json:
        console.print_json([r.as_json() for r in reports])
    else:
        _print(reports)


def _all(limit: float, again: bool, json: bool) -> None:
    """Profile rungs without a row, within the time limit; each row is stored at once."""
    from rung.profile import atlas

    chosen = atlas.planned()
    chosen = chosen if again else atlas.missing(chosen)
    rows = []
    for row in atlas.collect(chosen, limit, lambda text: console.note(f"  {text}")):
        rows.append(row)
        if row.verdict != "ok":
            console.note(f"  {row.what} {row.dtype} {row.shape}: {row.reason}")
    if json:
        console.print_json([row.as_json() for row in rows])
    else:
        right = sum(row.verdict == "ok" for row in rows)
        print(f"{right} of {len(chosen)} profiled; `rung reproduce` shows them next to the sources' figures.")
    if any(row.verdict != "ok" for row in rows):
        raise typer.Exit(1)


def _print(reports: list[Report]) -> None:
    print("  against  ".join(f"{r.rung} {r.dtype} {r.shape}" for r in reports))
    from rung.profile.counters import side_by_side

    groups = side_by_side(reports)
    kernels = [(r, k) for group in groups for r, k in zip(reports, group, strict=True) if k is not None]
    names = [f"{r.rung.partition('/')[2]} {k.kernel}" for r, k in kernels]
    rows = [(title, *(cell(k) for _, k in kernels)) for title, cell in _ROWS]
    rows = [(title, *(c or "-" for c in cells)) for title, *cells in rows if any(cells)]
    console.table(("", *names), rows, right=names)
    print()
    for report in reports:
        counted = report.dram_bytes
        if counted is not None:
            print(
                f"{report.rung}: {counted / 1e6:.2f} MB to and from memory; its cost model says "
                f"{report.model_bytes / 1e6:.2f} MB at least ({counted / report.model_bytes:.2f}x)."
            )
    for report, kernel in kernels:
        print(f"\n{report.rung} {kernel.kernel}: why warps waited")
        for stall in kernel.stalls:
            print(f"  {stall.share:4.0%}  {stall.name}: {stall.meaning}.")
        total = sum(kernel.classes.values())
        if total:
            shares = sorted(kernel.classes.items(), key=lambda item: -item[1])
            print("  instructions: " + ", ".join(f"{n} {c / total:.0%}" for n, c in shares if c / total > 0.005))


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
