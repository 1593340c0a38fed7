"""`rung check`: is a rung right?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from gpuless.base.files import read_text
from rung import progress
from rung.cli import console, cubins, options
from rung.cli.ending import exit_code_of
from rung.errors import RungError
from rung.profile.cubins import Launch

if TYPE_CHECKING:
    from rung.check.report import CheckRequest, Report
    from rung.rungs.base import Rung

INTERRUPTED = 130  # exit code


def check(
    rung: Annotated[
        str | None, typer.Argument(metavar="[OP[/RUNG]]", help="A ladder or one rung; all when left out.")
    ] = None,
    file: options.File = None,
    problem: Annotated[
        Path | None,
        typer.Option(help="A problem in GPU MODE's format (reference.py, task.yml); the file is a submission to it."),
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(help="A host function of the file that launches kernels, or a pattern such as 'softmax_*'."),
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option("--with", help="With --call: block_size=128, or a condition as 'C % 4 == 0'.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or emulator (default: the GPU if there is one).")] = None,
    dtype: options.Dtypes = None,
    case: Annotated[str | None, typer.Option(help="Only this case of the operation.")] = None,
    seed: options.Seed = 0,
    tune: options.Tune = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the first case of each rung.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Many more shapes, tunings and runs of each rung (minutes).")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Check the file again at each save, until ^C.")] = False,
    coverage: Annotated[bool, typer.Option("--coverage", help="Emulated: show branches that no case reaches.")] = False,
    libraries: Annotated[bool, typer.Option(help="Check the library calls as well.")] = True,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Launch each rung under compute-sanitizer instead (needs a GPU).")
    ] = False,
    jobs: options.Jobs = None,
    output: options.Output = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only rungs without a verdict for their present code.")
    ] = False,
    arch: Annotated[
        list[str] | None, typer.Option(help="Also compile a file for this architecture, as in sm_80 (repeatable).")
    ] = None,
    goal: Annotated[
        list[str] | None, typer.Option(help="Of a file: fail unless 'sectors_per_request(ld) <= 1.1' (repeatable).")
    ] = None,
    grid: options.Grid = None,
    block: options.Block = None,
    shared: options.Shared = 0,
    cluster: options.Cluster = None,
    kernel: options.Kernel = None,
    args: options.Args = "",
    write: Annotated[bool, typer.Option("--write", help="Put the header that was proposed into the file.")] = False,
    json: options.Json = False,
) -> None:
    """Is a rung right? Every case and dtype against a float64 reference, on a GPU or emulated.

    A file runs in a separate process with limits on time, memory and output; it is still native code.

    Exit code 0: all right; 1: a rung failed; 2: invalid arguments; 3: a rung was not judged.

    Examples: rung check · rung check softmax/3 --dtype bf16 · rung check layernorm mine.cu
    · rung check k.cubin --grid 4 --block 256 --args 'x:f32[1024] out:f32[1024]=unset n:i32=1024'
    · rung check --problem ./vectoradd submission.py
    · rung check layernorm prog.cu --call 'layernorm_forward*' --with block_size=128
    """
    launch = Launch(grid, block, shared, cluster, kernel, args)
    if rung is not None and rung.endswith(".cubin"):
        raise typer.Exit(cubins.check(Path(rung), launch, json=json))
    if launch.given:
        raise RungError(f"{launch.given[0]} is of a cubin by itself, as in `rung check k.cubin --grid 4 --block 256`.")
    from gpuless.compile.source import kernels_in
    from rung.check import child
    from rung.check.first_look import doubted, first_look
    from rung.check.report import LADDER, QUICK, THOROUGH, CheckRequest, exit_code
    from rung.dtypes import dtype as dtype_named
    from rung.rungs import catalogue
    from rung.rungs.cuda import CudaRung
    from rung.rungs.header import has_header
    from rung.rungs.python import PythonRung

    for name in dtype or []:
        dtype_named(name)
    if coverage and device == "cuda":
        raise RungError("branches are counted on the emulator; add --device emulator.")
    effort = QUICK if quick else THOROUGH if thorough else LADDER
    tuning = tuple(sorted((options.parse_tuning(tune) or {}).items()))
    asked = CheckRequest(seed=seed, case=case, tuning=tuning, coverage=coverage, effort=effort)

    def work() -> int:
        if call:
            from rung.check.judge import requests
            from rung.rungs import launcher

            operation, path = options.operation_and_file(rung, file)
            if operation is None or path is None or device == "cuda":
                raise RungError("--call needs an operation and a .cu file, and runs on the emulator.")
            launchers = launcher.select(catalogue.operation(operation), path, call, given or [])
            again = ["check", operation, path, *(w for c in call for w in ("--call", c))]
            again += [w for g in given or [] for w in ("--with", g)]
            return _report(requests(launchers, asked, dtype or []), launchers, jobs, output, False, json, again)
        if problem is not None:
            from rung.exchange.problem import submission

            if rung is None or file is not None:
                raise RungError("--problem takes the submission alone, as in `rung check --problem FOLDER sub.py`.")
            chosen = [submission(problem, Path(rung))]
            operation = path = None
        else:
            operation, path = options.operation_and_file(rung, file)
            if path is not None and path.suffix in (".cu", ".cuh") and path.is_file():
                text = read_text(path)
                if kernels_in(text) and not has_header(text):
                    console.note(f"rung: {path} has no header; those that fit it are tried.")
            chosen = [r for r in catalogue.select(operation, path) if libraries or r.kind != "library"]
        own = chosen[0]
        again = ["check", "--problem", problem, rung] if problem else ["check", operation, path] if path else []
        if goal and (path is None or not isinstance(own, CudaRung) or own.emulate):
            raise RungError("--goal needs a file whose kernels the emulator runs, as in `rung check gelu mine.cu`.")
        if isinstance(own, CudaRung) and own.guessed:
            console.note(options.proposed(own, write=write))
        if isinstance(own, PythonRung) and own.facts.entry:
            console.note(f"rung: of {path} this is called: {own.facts.entry}")
        if own.kind == "launcher":
            console.note(f"rung: no kernel of {path} can be judged by itself; its host function {own.name} is.")
        if path is not None and (failed := first_look(own, dtype or [], arch or [])):
            failed = doubted(failed, own)
            code = exit_code([failed], set())
            if json:
                from rung.show import document

                console.print_json(document.of_reports(code, [failed], lambda r: [*again, "--dtype", r.dtype], ""))
            else:
                _say(failed, [replace(asked, rung=failed.rung, dtype=failed.dtype)], sys.stdout)
            return code
        here = device == "emulator" or coverage or not Path("/dev/nvidiactl").exists()
        imports = path is not None and own.kind in ("python", "triton")  # torch, meanwhile
        if imports and here and not sanitize:
            child.prestart("emulator", own.operation.name, str(own.path))
        from rung.check.judge import device_named, requests

        where = device_named("emulator" if coverage else device)
        if sanitize:
            return _sanitize([r.full_name for r in chosen if r.kind != "library"], where, jobs, json)
        requested = requests(chosen, replace(asked, device=where), dtype or [])
        uncounted = path is None or not isinstance(own, CudaRung) or own.emulate or (effort is QUICK and not goal)
        goals = None if uncounted else goal or []
        return _report(requested, chosen, jobs, output, missing, json, again, goals)

    def once() -> int:
        if problem is None:
            return work()
        from rung.check.processes import completed

        return completed(lambda: exit_code_of(work), "the problem's code")

    code = _again_at_each_save(once, file or Path(rung or "")) if watch else once()
    if code:
        raise typer.Exit(code)


def _again_at_each_save(once: Callable[[], int], file: Path) -> int:
    """The code of the last check, when ^C ends the wait for another save. The next check's process is started ahead."""
    from rung.check import child

    if not file.is_file():
        raise RungError("--watch needs a file, as in `rung check softmax mine.cu --watch`.")
    with child.reused():
        while True:
            saved = file.stat().st_mtime_ns
            try:
                code = once()
            except RungError as error:
                print(f"rung: {error}", file=sys.stderr)
                code = 2
            if code == INTERRUPTED:
                return code
            try:
                console.note(f"rung: waiting for {file.name} to be saved; ^C ends.")
                progress.doing("")
                child.started_ahead()
                while not file.is_file() or file.stat().st_mtime_ns == saved:
                    time.sleep(0.1)
            except KeyboardInterrupt:
                return code


def _report(
    work: list[CheckRequest], chosen: Sequence[Rung], jobs: int | None, output: Path | None, missing: bool, json: bool,
    again: list[object], goals: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """The exit code. `again` are the words that repeat the check of a file; with `goals`, a right file is counted."""
    from rung.check.first_look import doubted
    from rung.check.processes import report_on_all
    from rung.check.report import THOROUGH, as_result, exit_code
    from rung.check.report import known as known_right
    from rung.profile.goals import Remarks, counted
    from rung.results import store
    from rung.show import document, verb_tables

    where = work[0].device
    if missing:
        rows = store.gather() + (store.load(output) if output is not None and output.exists() else [])
        right = known_right(where, rows)
        work = [t for t in work if (t.rung, t.dtype) not in right]
        if not work:
            console.note("rung: every chosen rung has a verdict of its present code; nothing is left to check.")
    by_name = {r.full_name: r for r in chosen}
    known: list[Report] = []

    def repeat(r: Report) -> list[object]:
        asked = next(t for t in work if (t.rung, t.dtype) == (r.rung, r.dtype))
        tuned = (word for name, value in asked.tuning for word in ("--tune", f"{name}={value}"))
        known = r.case in [case.name for case in by_name[r.rung].operation.cases]
        asks = ("--quick", asked.quick), ("--thorough", asked.effort == THOROUGH)
        rest = [*tuned, *(word for word, on in asks if on), *(["--case", r.case] if known else [])]
        return [*(again or ["check", r.rung]), "--dtype", r.dtype, "--seed", asked.seed, *rest]

    code, remarks = INTERRUPTED, Remarks()

    def count() -> int:
        nonlocal remarks
        if code or goals is None:
            return code
        progress.doing("counting what the kernels do to memory")
        remarks = counted(chosen[0], work[0].dtype, goals)
        progress.doing("printing the remarks")
        return int(bool(remarks.missed))

    progress.doing(f"0 of {len(work)} are judged")
    try:
        for report in (doubted(r, by_name[r.rung]) for r in report_on_all(work, jobs, by_name)):
            known.append(report)
            progress.doing(f"{len(known)} of {len(work)} are judged")
            if output is not None:
                store.append(as_result(report, by_name[report.rung]), output)
            _say(report, work, file=sys.stderr if json else sys.stdout)
        code = exit_code(known, {r.full_name for r in chosen if r.kind == "library"}) if work else 0
        code = count() if json else code
    finally:  # verdicts are printed at once, so that they are visible if the check is stopped
        order = {(t.rung, t.dtype): i for i, t in enumerate(work)}
        known.sort(key=lambda r: order[(r.rung, r.dtype)])
        if json:
            complete = len(known) == len(work)
            name = _device_name(where)
            console.print_json(document.of_reports(code, known, repeat, name, *remarks, complete=complete))
        else:
            print("".join(f"{line}\n" for line in verb_tables.unreached(known)), end="")
            if known:
                print(verb_tables.sum_up(known, len(work), _device_name(where)))
    if not json:
        code = count()
        print("".join(f"{line}\n" for line in (*remarks.others, *remarks.missed)), end="")
    return code


def _sanitize(rungs: list[str], device: str, jobs: int | None, json: bool) -> int:
    from rung.profile import sanitize as sanitizer

    if device != "cuda":
        raise RungError("compute-sanitizer needs a GPU, and none was found; the emulator checks bounds too.")
    findings = list(sanitizer.sanitize(rungs, jobs=jobs or 6))
    code = 0 if all(f.clean for f in findings) else 1
    if json:
        from rung.show import document

        found = [document.finding(f.tool, f.text, about=f.operation) for f in findings if not f.clean]
        notes = [f"{f.operation}, {f.tool}: {f.launched} launches" for f in findings]
        console.print_json(document.document("check", code, [], found, notes, device=device))
    else:
        columns = ("operation", "tool", "launches", "errors", "verdict")
        rows = [(f.operation, f.tool, f.launched, f.errors, "ok" if f.clean else "failed") for f in findings]
        console.table(columns, rows, right=("launches", "errors"))
        for finding in findings:
            if finding.text:
                print(f"\n{finding.operation}, {finding.tool}:\n{finding.text}")
    return code


def _device_name(device: str) -> str:
    if device != "cuda":
        return "CPU emulator"
    import torch

    return torch.cuda.get_device_name()


def _say(report: Report, work: Sequence[CheckRequest], file: TextIO) -> None:
    """One verdict, as soon as it is known."""
    from rung.show import verb_tables

    name, dtype = (max(len(getattr(t, part)) for t in work) for part in ("rung", "dtype"))
    text = verb_tables.verdict_line(
        f"{report.rung:{name}}", f"{report.dtype:{dtype}}", report.cases, report.element, report.verdict,
        verb_tables.remark(report),
    )  # fmt: skip
    if console.is_terminal() and file is sys.stdout:
        from rich.console import Console
        from rich.text import Text

        line = Text(text)
        line.highlight_words([f"  {report.verdict}"], console.STYLES.get(report.verdict, "yellow"))
        Console(highlight=False).print(line, soft_wrap=True)
    else:
        print(text, file=file, flush=True)
    for told in verb_tables.failure_lines(report):
        print(f"    {told}", file=file, flush=True)
