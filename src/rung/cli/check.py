"""`rung check`: is a rung right?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuless.base.files import read_text
from rung import progress
from rung.cli import console, cubins, options
from rung.cli.ending import exit_code_of
from rung.errors import RungError
from rung.profile.cubins import Launch

if TYPE_CHECKING:
    from rung.check.report import CheckRequest, Report
    from rung.profile.goals import Remarks
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
    against: Annotated[
        Path | None,
        typer.Option(help="A file with Model and get_inputs, reference(...), or GPU MODE's pair, as the reference."),
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
    launch: Annotated[
        str, typer.Option(help="With --kernel: 'grid=ceil_div(N, 256), block=256, shared=0', as in a header.")
    ] = "",
    layout: Annotated[
        str, typer.Option("--format", help="text, or gcc: FILE:LINE: error: ... alone, as editors and CI read it.")
    ] = "text",
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
    cubin = Launch(grid, block, shared, cluster, kernel if file is None else None, args)
    if rung is not None and rung.endswith(".cubin"):
        raise typer.Exit(cubins.check(Path(rung), cubin, json=json))
    if cubin.given:
        raise RungError(f"{cubin.given[0]} is of a cubin by itself, as in `rung check k.cubin --grid 4 --block 256`.")
    from rung.check.report import LADDER, QUICK, THOROUGH, CheckRequest
    from rung.dtypes import dtype as dtype_named

    for name in dtype or []:
        dtype_named(name)
    if coverage and device == "cuda":
        raise RungError("branches are counted on the emulator; add --device emulator.")
    if launch and not kernel:
        raise RungError("--launch is of one kernel: name it by --kernel.")
    effort = QUICK if quick else THOROUGH if thorough else LADDER
    tuning = tuple(sorted((options.parse_tuning(tune) or {}).items()))
    asked = CheckRequest(seed=seed, case=case, tuning=tuning, coverage=coverage, effort=effort)
    what = Subjects(rung, file, problem, against, call or [], given or [], kernel or "", launch, libraries, write)
    how = Manner(device, dtype or [], arch or [], goal, jobs, output, missing, json, layout)

    def once() -> int:
        if problem is None and against is None:
            return _checked(what, how, asked)
        from rung.apart import completed

        return completed(lambda: exit_code_of(lambda: _checked(what, how, asked)), "the problem's code")

    code = _again_at_each_save(once, file or Path(rung or "")) if watch else once()
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True)
class Subjects:
    """What the command line names to be judged."""

    spec: str | None
    file: Path | None
    problem: Path | None
    against: Path | None
    functions: list[str]
    words: list[str]  # of the functions' parameters
    kernel: str
    launch: str
    libraries: bool
    write: bool

    def rungs(self, device: str | None) -> tuple[list[Rung], Path | None, list[object]]:
        """The rungs, the file that they stand in, and the words that repeat the check of it."""
        from rung import adopt
        from rung.rungs import catalogue

        if self.problem is not None:
            from rung.exchange.problem import submission

            if self.spec is None or self.file is not None:
                raise RungError("--problem takes the submission alone, as in `rung check --problem FOLDER sub.py`.")
            return [submission(self.problem, Path(self.spec))], None, ["check", "--problem", self.problem, self.spec]
        if self.against is not None:
            from rung.exchange.against import candidate

            if self.spec is None or self.file is not None:
                raise RungError("--against takes the candidate alone, as in `rung check --against ref.py kernel.py`.")
            rungs = candidate(self.against, Path(self.spec))
            return rungs, None, ["check", "--against", self.against, self.spec]
        operation, path = options.operation_and_file(self.spec, self.file)
        again: list[object] = ["check", operation, path] if path else []
        if self.functions or self.kernel:
            if operation is None or path is None or device == "cuda":
                raise RungError("--call and --kernel need an operation and a .cu file, and run on the emulator.")
            of = catalogue.operation(operation)
            again += [word for call in self.functions for word in ("--call", call)]
            again += [word for given in self.words for word in ("--with", given)]
            again += ["--kernel", self.kernel] if self.kernel else []
            again += ["--launch", self.launch] if self.launch else []
            if self.functions:
                return adopt.of_functions(of, path, self.functions, self.words), path, again
            return adopt.of_kernel(of, path, self.kernel, self.launch), path, again
        chosen = [r for r in adopt.select(operation, path) if self.libraries or r.kind != "library"]
        return chosen, path, again


@dataclass(frozen=True)
class Manner:
    """How the verdicts are reached and reported."""

    device: str | None
    dtypes: list[str]
    archs: list[str]
    goal: list[str] | None
    jobs: int | None
    output: Path | None
    missing: bool
    json: bool
    layout: str


def _checked(what: Subjects, how: Manner, asked: CheckRequest) -> int:
    """The exit code."""
    from rung.check import child
    from rung.check.first_look import doubted, first_look
    from rung.check.report import QUICK
    from rung.rungs.cuda import CudaRung

    chosen, path, again = what.rungs(how.device)
    own = chosen[0]
    emulated = (path is not None or what.against is not None) and isinstance(own, CudaRung) and not own.emulate
    if how.goal and not emulated:
        raise RungError("--goal needs a file whose kernels the emulator runs, as in `rung check gelu mine.cu`.")
    _note_calls(chosen, path, write=what.write)
    known: list[Report] = []
    for rung in chosen if path is not None else []:
        if report := first_look(rung, how.dtypes, how.archs):
            known.append(replace(doubted(report, rung), kernels=_kernels(rung)))
    settled = {report.rung for report in known}
    left = [rung for rung in chosen if rung.full_name not in settled]
    here = how.device == "emulator" or asked.coverage or not Path("/dev/nvidiactl").exists()
    if left and path is not None and left[0].kind in ("python", "triton") and here:
        child.prestart("emulator", own.operation.name, str(own.path))  # it imports torch, meanwhile
    if not left:
        return _Report(asked, [], chosen, path, how, again, known).run()
    from rung.check.judge import device_named, requests

    where = device_named("emulator" if asked.coverage else how.device)
    requested = requests(left, replace(asked, device=where), how.dtypes)
    uncounted = not emulated or (asked.effort is QUICK and not how.goal)
    goals = None if uncounted or own not in left else how.goal or []
    return _Report(replace(asked, device=where), requested, chosen, path, how, again, known, goals).run()


def _note_calls(chosen: Sequence[Rung], path: Path | None, *, write: bool) -> None:
    """Says how a file without a header is called."""
    from rung.rungs.cuda import CudaRung
    from rung.rungs.python import PythonRung

    own = chosen[0]
    if write and len([rung for rung in chosen if rung.learned]) > 1:
        raise RungError(f"{path} has several kernels; name the one whose header is written, as in --kernel {own.name}.")
    for rung in chosen:
        if isinstance(rung, CudaRung) and rung.learned and (len(chosen) == 1 or write):
            console.note(options.proposed(rung, write=write))
        elif isinstance(rung, PythonRung) and rung.facts.entry:
            console.note(f"rung: of {path} this is called: {rung.facts.entry}")
        elif rung.kind == "launcher":
            console.note(f"rung: {path} is called by its host function {rung.name}.")


def _kernels(rung: Rung) -> list[str]:
    """The kernels that a rung of a file launches."""
    from rung.rungs.cuda import CudaRung
    from rung.rungs.python import PythonRung

    if isinstance(rung, PythonRung):
        return [kernel for kernel, reached in rung.facts.kernels.items() if reached]
    if rung.learned:
        return [*rung.learned.kernels]
    launches = rung.header.launches if isinstance(rung, CudaRung) else ()
    return list(dict.fromkeys(entry.kernel.partition("<")[0].rpartition("::")[2] for entry in launches))


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


@dataclass
class _Report:
    """Judges, prints each verdict as soon as it is known, and sums up."""

    asked: CheckRequest
    work: list[CheckRequest]
    chosen: Sequence[Rung]
    path: Path | None
    how: Manner
    again: list[object]  # words that repeat the check of a file
    known: list[Report]
    goals: Sequence[str] | None = None  # with these a right file is counted
    remarks: Remarks | None = None

    def run(self) -> int:
        """The exit code."""
        from rung.check.report import exit_code

        by_name = {r.full_name: r for r in self.chosen}
        self._leave_out_known(by_name)
        progress.doing(f"0 of {len(self.work)} are judged" if self.work else "printing the verdict")
        code, total = INTERRUPTED, len(self.work) + len(self.known)
        try:
            for report in self.known:
                self._print(report)
            for report in self._judged(by_name):
                self.known.append(report)
                progress.doing(f"{len(self.known)} of {total} are judged")
                self._print(report)
            libraries = {r.full_name for r in self.chosen if r.kind == "library"}
            code = exit_code(self.known, libraries) if total else 0
            code = self._count(code) if self.how.json else code
        finally:  # verdicts are printed at once, so that they are visible if the check is stopped
            self._sum_up(code, total)
        if not self.how.json:
            code = self._count(code)
            if self.remarks:
                print("".join(f"{line}\n" for line in (*self.remarks.others, *self.remarks.missed)), end="")
        return code

    def _judged(self, by_name: Mapping[str, Rung]) -> Iterator[Report]:
        if not self.work:
            return
        from rung.check.first_look import doubted
        from rung.check.processes import report_on_all  # it imports torch
        from rung.check.report import as_result
        from rung.results import store

        for report in report_on_all(self.work, self.how.jobs, by_name):
            rung = by_name[report.rung]
            report = replace(doubted(report, rung), kernels=_kernels(rung) if self.path is not None else [])
            if self.how.output is not None:
                store.append(as_result(report, rung), self.how.output)
            yield report

    def _leave_out_known(self, by_name: Mapping[str, Rung]) -> None:
        output = self.how.output
        if not self.how.missing:
            return
        from rung.check.report import known as known_right
        from rung.results import store

        rows = store.gather() + (store.load(output) if output is not None and output.exists() else [])
        right = known_right(self.asked.device, rows)
        self.work = [t for t in self.work if (t.rung, t.dtype) not in right]
        if not self.work:
            console.note("rung: every chosen rung has a verdict of its present code; nothing is left to check.")

    def _others(self) -> dict[str, str]:
        """The kernels of the file that no call reaches, and why."""
        from gpuless.compile.source import kernels_in
        from rung import adopt
        from rung.rungs.python import PythonRung

        own = self.chosen[0]
        if self.path is None or not self.known:
            return {}
        if isinstance(own, PythonRung):
            every: Sequence[str] = [*own.facts.kernels]
            plain = f"{own.facts.entry.name if own.facts.entry else 'run'} does not launch it"
        else:
            every = kernels_in(read_text(self.path)) if self.path.suffix in (".cu", ".cuh") else ()
            plain = "no call that was asked for reaches it" if own.learned else "the header does not launch it"
        reached = {kernel for report in self.known for kernel in report.kernels}
        why = adopt.others_in_file(own.operation, self.path)  # none of Python
        return {kernel: why.get(kernel, plain) for kernel in every if kernel not in reached}

    def _repeat(self, r: Report) -> list[object]:
        from rung.check.report import THOROUGH

        asked = next((t for t in self.work if (t.rung, t.dtype) == (r.rung, r.dtype)), self.asked)
        tuned = (word for name, value in asked.tuning for word in ("--tune", f"{name}={value}"))
        rung = next(one for one in self.chosen if one.full_name == r.rung)
        known = r.case in [case.name for case in rung.operation.cases]
        asks = ("--quick", asked.quick), ("--thorough", asked.effort == THOROUGH)
        rest = [*tuned, *(word for word, on in asks if on), *(["--case", r.case] if known else [])]
        return [*(self.again or ["check", r.rung]), "--dtype", r.dtype, "--seed", asked.seed, *rest]

    def _count(self, code: int) -> int:
        if code or self.goals is None:
            return code
        from rung.profile.goals import counted  # it imports torch

        progress.doing("counting the kernels' memory traffic")
        self.remarks = counted(self.chosen[0], self.work[0].dtype, self.goals)
        progress.doing("printing the remarks")
        return int(bool(self.remarks.missed))

    def _print(self, report: Report) -> None:
        if self.how.json or self.how.layout == "gcc":
            return
        from rung.show import verdicts

        names = (max(len(getattr(t, part)) for t in [*self.work, *self.known]) for part in ("rung", "dtype"))
        for line in verdicts.lines(report, *names, file=self.path, width=console.width()):
            console.verdict(line)

    def _sum_up(self, code: int, total: int) -> None:
        from rung.show import document, verb_tables, verdicts

        order = {(t.rung, t.dtype): i for i, t in enumerate(self.work)}
        self.known.sort(key=lambda r: order.get((r.rung, r.dtype), -1))
        device, others = _device_name(self.asked.device), self._others()
        if self.how.json:
            complete = len(self.known) == total
            remarks = self.remarks or ((), ())
            more: dict[str, Any] = {"kernels": verdicts.of_kernels(self.known, others)} if self.path else {}
            console.print_json(
                document.of_reports(code, self.known, self._repeat, device, *remarks, complete=complete, **more)
            )
            return
        if self.how.layout == "gcc":
            print("".join(f"{line}\n" for report in self.known for line in verdicts.gcc(report, self.path)), end="")
            return
        print("".join(f"{line}\n" for line in verb_tables.unreached(self.known)), end="")
        print(
            "".join(f"{line}\n" for line in verdicts.kernels(self.known if self.path else [], others, console.width())),
            end="",
        )
        if self.known:
            print(verb_tables.sum_up(self.known, total, device))


def _device_name(device: str) -> str:
    if device != "cuda":
        return "CPU emulator"
    import torch

    return torch.cuda.get_device_name()
