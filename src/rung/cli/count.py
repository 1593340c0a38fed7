"""`rung count`: what a rung, or a CUDA program, asks of memory, line by line, counted without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung import progress
from rung.cli import console, options
from rung.errors import RungError
from rung.profile import cubins

if TYPE_CHECKING:
    from gpuless.program.execution import Ended
    from rung.profile.counted import Counted
    from rung.profile.prediction import Prediction
    from rung.rungs.base import Subject


def count(
    rung: Annotated[
        str, typer.Argument(metavar="OP/RUNG", help="A rung; with a file, its operation; or a program's file.")
    ],
    rest: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]... [-- WORD...]", help="Your own kernel; of a program more files, arguments."),
    ] = None,
    vs: Annotated[str | None, typer.Option(help="Another rung to compare with, or `parent`.")] = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: options.Tune = None,
    lines: Annotated[bool, typer.Option("--lines", help="The source, with what each line asks of memory.")] = False,
    goal: Annotated[
        list[str] | None, typer.Option(help="Fail unless this holds: 'sectors_per_request(ld) <= 1.1' (repeatable).")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="GPU", help="Predict the time on this GPU, and what is waited for.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Of a program, with --time: each launch as Nsight Compute measures it.")
    ] = False,
    include: Annotated[list[str] | None, typer.Option("-I", help="A program's folder of headers (repeatable).")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", help="A program's macro, NAME or NAME=VALUE.")] = None,
    grid: options.Grid = None,
    block: options.Block = None,
    shared: options.Shared = 0,
    cluster: options.Cluster = None,
    kernel: options.Kernel = None,
    args: options.Args = "",
    json: options.Json = False,
) -> None:
    """Requests, sectors, bank conflicts, copies and barriers, counted without a GPU: the machine code runs on the CPU.

    The names are Nsight Compute's where they mean the same. Large shapes are counted at small ones and
    extrapolated, where that is exact.

    A program (a .cu file with main) runs as by `rung run`, and each launch is counted; its output comes first.

    So is a launch of a kernel in a .cubin, whatever compiler has made it.

    Examples: rung count transpose/2 --vs transpose/3 · rung count gelu my.cu --lines · rung count main.cu -- 1000
    · rung count k.cubin --grid 4 --block 256 --args 'x:f32[1024] out:f32[1024] n:i32=1024'
    """
    words = rest or []
    if cold and not (time and rung.endswith(".cu")):
        raise RungError("--cold is of a program's predicted times: rung count main.cu --time GPU --cold.")
    if time is not None and time.startswith("-"):  # the next option was taken for the GPU's name
        raise RungError(f"--time needs the name of a GPU before {time}, as in --time h200.")
    launch = cubins.Launch(grid, block, shared, cluster, kernel, args)
    if rung.endswith(".cubin") and time:
        _predicted([(rung, cubins.predict(Path(rung), launch, time), None)], json=json)
        return
    if rung.endswith(".cubin"):
        counted = cubins.count(Path(rung), launch)
        _tell([counted], goal or (), lambda: _tables([counted], {}), ["count", rung, *launch.words()], json=json)
        return
    if launch.given:
        raise RungError(f"{launch.given[0]} is of a cubin: {rung} says itself how its kernels are launched.")
    if rung.endswith(".cu"):
        of_rungs = {"--vs": vs, "--shape": shape, "--dtype": dtype, "--tune": tune}
        for name, given in of_rungs.items():
            if given is not None:
                raise RungError(f"{name} is of rungs: {rung} is a program.")
        if time:
            predict_program([rung, *words], include or (), define or (), time, cold=cold, json=json)
        else:
            of_program([rung, *words], include or (), define or (), lines=lines, goals=goal or (), json=json)
        return
    if len(words) > 1:
        raise RungError(f"{' '.join(words[1:])}: one file is counted as a rung of {rung}.")
    file = Path(words[0]) if words else None
    of_rung(rung, file, vs, shape, dtype, tune, lines=lines, goal=goal, gpu=time, json=json)


def of_rung(
    rung: str, file: Path | None, vs: str | None, shape: str | None, dtype: str | None, tune: list[str] | None,
    *, lines: bool = False, goal: list[str] | None = None, gpu: str | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Counts a rung and prints it; with a GPU, predicts its time there instead."""
    from rung import adopt
    from rung.profile import emulated
    from rung.rungs.subjects import subject_of

    subject = subject_of(adopt.named(rung, file), None, shape, dtype)
    if gpu:
        others = [(_second_subject(subject, vs, shape, dtype), None)] if vs else []
        predict([(subject, options.parse_tuning(tune)), *others], gpu, json=json)
        return
    if lines and file is not None and shape is None and vs is None:  # of one's own kernel, to look at: soon
        subject = emulated.to_draw(subject)
    with console.counting(subject.rung.full_name):
        every = [emulated.count(subject, options.parse_tuning(tune))]
    if vs is not None:
        other = _second_subject(subject, vs, shape, dtype)
        with console.counting(other.rung.full_name):
            every.append(emulated.count(other))

    def show() -> None:
        _print(every, subject, lines)

    words = ["count", rung, *([file] if file else []), "--shape", subject.shape, "--dtype", subject.dtype.name]
    _tell(every, goal or (), show, words, json=json)


def _tell(
    every: Sequence[Counted], goals: Sequence[str], show: Callable[[], None], repeat: Sequence[object] = (), *,
    json: bool, code: int = 0, findings: Sequence[dict[str, Any]] = (), **more: Any,
) -> None:  # fmt: skip
    """Prints counts and goals; a missed goal ends with 1."""
    from gpuless.counts.counters_explained import judge_goals
    from rung.show import document

    judged = judge_goals(goals, every[0].kernels) if every[0].kernels else []
    code = code or int(not all(goal.met for goal in judged))
    if json:
        results = [c.as_json() for c in every]
        missed = [document.finding("goal", str(g), repeat, about=every[0].rung) for g in judged if not g.met]
        notes = [str(goal) for goal in judged if goal.met]
        console.print_json(document.document("count", code, results, [*findings, *missed], notes, **more))
    else:
        show()
        for goal in judged:
            print(goal)
    if code:
        raise typer.Exit(code)


def _second_subject(subject: Subject, vs: str, shape: str | None, dtype: str | None) -> Subject:
    from rung.rungs import catalogue
    from rung.rungs.subjects import subject_of

    parent = catalogue.parent(subject.rung) if vs == "parent" else None
    if vs == "parent" and parent is None:
        raise RungError(f"{subject.rung.full_name} has no parent; name a rung with --vs.")
    return subject_of(parent.full_name if parent else vs, None, shape or subject.shape, dtype or subject.dtype.name)


def predict(subjects: Sequence[tuple[Subject, dict[str, int] | None]], gpu: str, *, json: bool = False) -> None:
    """Predicts the times of rungs on a GPU and prints them."""
    from rung.profile import prediction

    every = []
    for subject, tuning in subjects:
        with console.counting(subject.rung.full_name):
            found = prediction.predict(subject, tuning, gpu)
        name = f"{subject.rung.full_name} {subject.dtype.name} {subject.shape}"
        every.append((name, found, prediction.limit(subject, gpu)))
    _predicted(every, json=json)


def _predicted(every: Sequence[tuple[str, Prediction, float | None]], *, json: bool) -> None:
    from rung.profile import prediction
    from rung.show import document
    from rung.show import predictions as shown

    if json:
        results = [{"what": name, **shown.as_json(found, prediction.error(found.kind))} for name, found, _ in every]
        console.print_json(document.document("count", 0, results, [], []))
        return
    for number, (name, found, limit) in enumerate(every):
        print(("\n" if number else "") + name)
        print(shown.said(found, prediction.error(found.kind), limit / found.us if limit else None))
        for table in (shown.launches(found), shown.waits(found)):
            print()
            console.table(table.columns, table.rows, right=table.right)
    if len(every) == 2:
        print("\n" + shown.compared([name for name, _, _ in every], [found for _, found, _ in every]))


@contextmanager
def _run(
    words: Sequence[str], include: Sequence[str], define: Sequence[str], *, keep: bool, **how: Any
) -> Iterator[tuple[list[Path], Ended, Path]]:
    """Runs a program whose launches are counted: its files, how it ended, and the file of counts."""
    from gpuless.program import building, execution

    files, arguments = execution.split(words)
    program = building.program(files, building.Options(tuple(include), tuple(define)), progress.doing)
    with execution.counted([program, *arguments], execution.Execution(**how), keep=keep) as (ended, counts):
        yield files, ended, counts


def predict_program(
    words: Sequence[str], include: Sequence[str], define: Sequence[str], gpu: str, *, cold: bool = False,
    json: bool = False,
) -> None:  # fmt: skip
    """Predicts the times of a program's launches on a GPU; what they compute is not computed whole."""
    from gpuless import timing
    from gpuless.counts import counting
    from gpuless.facts import gpus
    from rung.profile.prediction import Prediction

    of = gpus.find(gpu)
    how = {"gpu": of.key, "cold": cold, "constants": timing.basis(of).constants.row()}
    with _run(words, include, define, keep=True, **how) as (files, ended, counts):
        found = Prediction(of.name, counting.simulated(counts, of, cold=cold))
    told = [one["text"] for one in ended.findings()]
    if not found.launches:
        raise RungError(f"{files[0]}: no launch was predicted{': ' + told[0] if told else ''}.")
    if not json:
        console.note("only blocks that stand for a grid are executed: the program's own results are of no run.")
    _predicted([(str(files[0]), found, None)], json=json)


def of_program(
    words: Sequence[str], include: Sequence[str], define: Sequence[str], *, lines: bool = False,
    goals: Sequence[str] = (), json: bool = False,
) -> None:  # fmt: skip
    """Runs a program and prints what its kernels asked of memory; ends with its exit code."""
    from gpuless.counts import counting
    from rung.profile.counted import Counted
    from rung.show import document

    sources = [Path(word) for word in words if word.endswith(".cu")]
    if not any(re.search(r"\bmain\s*\(", file.read_text(errors="replace")) for file in sources if file.is_file()):
        raise RungError(f"{words[0]} has no main: name a kernel's operation, as in `rung count gelu {words[0]}`.")
    with _run(words, include, define, keep=json) as (files, ended, counts):
        counted = Counted(str(files[0]), "", "", counting.counted(counts), {})
    repeat = ["count", *words[: len(files)], *(["--", *words[len(files) :]] if words[len(files) :] else [])]
    found = [document.finding(**one, repeat=repeat) for one in ended.findings()]

    def show() -> None:
        if not counted.kernels:
            console.note("no launch was counted.")
        elif lines:
            for file in files:
                print(f"{file}:")
                print(_annotated(counted, file.read_text(errors="replace"), file.name))
        else:
            print()
            _tables([counted], {})

    more: dict[str, Any] = {"code": ended.code, "findings": found, "command": [*words], "output": ended.output}
    _tell([counted], goals, show, repeat, json=json, **more)


def _annotated(counted: Counted, source: str, name: str) -> str:
    from rung.show import counts as tables

    return tables.annotated(counted, source, name, console.margin(tables.MARGIN))


def _print(every: list[Counted], subject: Subject, lines: bool) -> None:
    for counted in every:
        how = "counted" if counted.exact else f"from counts at {'; '.join(counted.sizes)}"
        console.note(f"{counted.rung} {counted.dtype} {counted.shape}: {how}; caches are not modelled.")
    if lines:
        print(_annotated(every[0], subject.rung.source, subject.rung.path.name if subject.rung.path else ""))
        return
    _tables(every, {n: int(v) for n, v in subject.values.items() if isinstance(v, int)})


def _tables(every: list[Counted], sizes: dict[str, int]) -> None:
    from rung.show import counts as tables

    shown = tables.kernels(every)
    console.tables(shown.columns, shown.rows)
    if len(every) > 1:
        print()
        print("\n".join(tables.against(*every)))
    costly = tables.expensive(every[0], sizes)
    if costly.rows:
        print()
        console.table(costly.columns, costly.rows, right=costly.right, drop=(tables.WASTED,))
