"""Is a rung right? One rung in one dtype gets a verdict: a `Report`. schedule.py defines what is tried."""

from __future__ import annotations

import copy
import functools
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gpuless
from gpuless.base.processors import processors
from gpuless.compile.source import without_comments
from gpuless.counts import fidelity
from gpuless.counts.coverage import OF_TRITON, SPACES, Coverage, merged, unreached
from rung import progress
from rung.apart import Apart
from rung.check import guarded_memory
from rung.check.child import copied, copies
from rung.check.gpu_limits import clock_read, unfit, unlaunchable
from rung.check.report import (
    ALONE,
    LADDER,
    OF_THE_KERNEL,
    QUICK,
    RAISED,
    REFUSES,
    SHARE_REFUSED,
    TIME,
    CheckRequest,
    Effort,
    Failure,
    Report,
)
from rung.check.runner import LocalRunner
from rung.check.sandbox import Sandbox, computes_beside
from rung.check.schedule import Procedure, afterwards, shape_text
from rung.check.shapes import MOST_FLOPS
from rung.check.trial import WRONG, Trials
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, EmulatorFault, OutOfTime, RungError, first_line
from rung.lazy import has_gpu, only_this_thread, torch
from rung.operation import Case, Values
from rung.rungs import catalogue, identity
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.header import DESCRIPTIVE

SQUARE = 96  # sizes of a case that would be too dear as it is fitted
FEW_LEGAL = 4  # with fewer cases that a rung takes, the others get sizes and scalars that it takes
KEPT = 3 << 30  # bytes of GPU memory that a process keeps for its next rung; other processes need some, too
_WAITS = re.compile(r"\bpdl_wait\(|griddepcontrol\.wait|cudaGridDependencySynchronize")


def device_named(name: str | None) -> Device:
    """The device that the user named; by default the GPU if there is one, else the emulator."""
    if name is None:
        return "cuda" if has_gpu() else "emulator"
    known: dict[str, Device] = {"cuda": "cuda", "emulator": "emulator"}
    if name not in known:
        raise RungError(f"the device {name!r} is not known; there are cuda and emulator.")
    return known[name]


def requests(chosen: Sequence[Rung], asked: CheckRequest, dtypes: Sequence[str] = ()) -> list[CheckRequest]:
    """What is asked, for each of these rungs and its number formats. A rung that is checked by itself gets the effort
    for one; a user's own file is distinguished from the ladder's by its path."""
    if asked.device == "cuda" and not has_gpu():
        raise RungError("no CUDA device was found; use --device emulator, which needs none.")
    chosen = _with_case(chosen, asked.case)
    tuning = dict(asked.tuning)
    if not any(set(tuning) <= set(rung.tune) for rung in chosen):
        chosen[0].tuned(tuning)  # raises, and lists the available ones
        raise RungError(f"none of the chosen rungs has {' and '.join(tuning)}; check one rung with its own.")
    effort = ALONE if len(chosen) == 1 and asked.effort is LADDER else asked.effort
    found = []
    for rung in chosen:
        file = None if catalogue.shipped(rung) else str(rung.path)
        for dtype in rung.dtypes:
            if not dtypes or dtype in dtypes:
                found.append(replace(asked, rung=rung.full_name, file=file, dtype=dtype, effort=effort))
    if not found:
        raise RungError(f"nothing to check: none of the chosen rungs has {' or '.join(dtypes)}.")
    return found


def _with_case(chosen: Sequence[Rung], case: str | None) -> Sequence[Rung]:
    """Those whose operation has the case; a name that none has is a mistake."""
    having = [r for r in chosen if case is None or case in [c.name for c in r.operation.cases]]
    if not having:
        if len({r.operation.name for r in chosen}) > 1:
            raise RungError(f"no ladder has a case {case!r}; name one of them, as in `rung check softmax --case one`.")
        of = chosen[0].operation
        raise RungError(f"{of.name} has no case {case!r}; it has {', '.join(repr(c.name) for c in of.cases)}.")
    return having


def report_on(asked: CheckRequest, rung: Rung | None = None) -> Report:
    """The verdict on one rung and dtype. Every error of a rung becomes a report. In another process than the one that
    chose the rung it is found again."""
    try:
        rung = rung or _find_rung(asked)
        if asked.file and rung.kind != "launcher":  # which runs in a process of its own anyway
            return _judge_file(rung, asked)
        return judge(rung, asked)
    except RungError as error:
        return Report(asked.rung, asked.dtype, asked.device, "failed", str(error), error.kind)
    except OutOfTime as late:
        return Report(asked.rung, asked.dtype, asked.device, "not judged", str(late), TIME)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        reason = f"an error of the checker, which says nothing about the kernel; please report it: {first_line(text)}"
        return Report(asked.rung, asked.dtype, asked.device, "skipped", reason, "checker")


def _find_rung(asked: CheckRequest) -> Rung:
    if not asked.file:
        return catalogue.find(asked.rung)
    name = asked.rung.partition("/")[2]
    return catalogue.rung_from_file(catalogue.operation(asked.operation), Path(asked.file), name)


def _judge_file(rung: Rung, asked: CheckRequest) -> Report:
    """A rung of unknown origin, in a process of its own; on a GPU the emulator checks for races as well."""
    if told := computes_beside(rung):
        return Report(rung.full_name, asked.dtype, asked.device, *told)
    forked = copies(asked.device, str(rung.path))
    with Sandbox(asked.device, rung) as host:
        report = judge(rung, asked, host, forked=forked)
    if asked.device != "cuda" or report.verdict != "ok" or rung.kind not in ("cuda", "triton") or rung.emulate:
        return report
    lesser = {"triton": asked.effort if asked.quick else LADDER}  # each call compiles
    effort = lesser.get(rung.kind, ALONE if asked.quick else asked.effort)
    with Sandbox("emulator", rung) as host:
        emulated = judge(rung, replace(asked, device="emulator", effort=effort), host)
    if emulated.verdict == "failed":
        report.verdict, report.case = "failed", emulated.case
        report.reason = f"right on the GPU, but on the emulator: {emulated.reason}"
    elif emulated.verdict != "ok":
        report.notes.append(f"the emulator did not judge it: {emulated.reason}")
    return report


def check(
    rung: Rung,
    dtype: str,
    *,
    device: Device,
    host: LocalRunner | None = None,
    quick: bool = False,
    effort: Effort = ALONE,
    tuning: dict[str, int] | None = None,
    **asked: Any,
) -> Report:
    """Check one rung in one dtype in this process; `asked` has further fields of `CheckRequest`."""
    request = CheckRequest(rung.full_name, dtype, device, effort=QUICK if quick else effort, **asked)
    return judge(rung, replace(request, tuning=tuple(sorted((tuning or {}).items()))), host, compiled=False)


def judge(
    rung: Rung,
    asked: CheckRequest,
    host: LocalRunner | None = None,
    *,
    compiled: bool = True,
    forked: bool = False,
) -> Report:
    """The report on one rung: names and types, launches and compilation for a GPU, the cases, and the rest; a part of
    that in a copy of this process if it may be `forked`.

    An exception of the checker is raised, never reported as the rung's; interrupted, it reports what is known.
    """
    with guarded_memory.from_the_start(), nullcontext() if asked.device == "cuda" else gpuless.Session():
        return _judge(rung, asked, host, compiled=compiled, forked=forked)


def _judge(rung: Rung, asked: CheckRequest, host: LocalRunner | None, *, compiled: bool, forked: bool) -> Report:
    dtype, device = dtype_named(asked.dtype), asked.device
    report = Report(rung.full_name, asked.dtype, device, norm_cap=dtype.norm_cap)
    began = time.monotonic()

    def tell(stage: str) -> None:
        say = progress.stage if asked.effort.alone or asked.quick else progress.doing
        say(f"{rung.full_name} {asked.dtype}: {stage} ({time.monotonic() - began:.1f} s)")

    lacking = [n for n, _ in asked.tuning if n not in rung.tune]
    if lacking:
        report.verdict, report.reason = "skipped", f"it has no tunable {', '.join(lacking)}"
        return report
    reason = _cannot_run(rung, device)
    if reason is not None:
        return _only_compiled(rung, dtype, report, reason, asked.tuned)
    if asked.file and isinstance(rung, CudaRung) and (unseen := _asks_who_runs_it(rung)):
        report.verdict, report.reason, report.cause = "not judged", unseen, "header"
        return report
    cases = list(_legal_cases(rung, dtype, asked, report))
    few = len(cases) < FEW_LEGAL or len(report.left_out) > SHARE_REFUSED * (len(cases) + len(report.left_out))
    if few and asked.case is None and (asked.effort.alone or not cases):
        cases += _fitted_cases(rung, dtype, device, report)
    if not cases:
        report.verdict = "skipped" if asked.case else "failed"
        report.reason = next(iter(report.left_out.values()), "no case of the operation applies")
        return report
    if _never_waits(rung):
        report.verdict = "failed"
        report.reason = "launched with pdl, but waits nowhere for the kernel before it (pdl_wait)"
        return report
    if device == "cuda":
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > KEPT:
            torch.cuda.empty_cache()
    host = host or LocalRunner(device)
    trials = Trials(rung, dtype, device, report, host, asked)
    procedure = Procedure(trials, asked.seed, asked.effort, tell)
    ahead: AbstractContextManager[Callable[[], None] | None] = nullcontext()
    if compiled and asked.effort.alone and device == "emulator" and isinstance(rung, CudaRung):
        ahead = _compiled_for_a_gpu(rung, dtype, asked.tuned, report)
    try:
        with ahead as wait:
            trials.before_first_run = wait
            beside = functools.partial(_in_a_copy, procedure) if forked else afterwards
            procedure.follow(cases[:1] if asked.quick else cases, beside)
            if asked.case is None and report.verdict == "ok":
                procedure.at_branches()
    except (Failure, RungError) as failure:
        _failed(failure, procedure)
        return report
    except KeyboardInterrupt:
        report.verdict, report.case = "stopped", ""
        report.reason = f"interrupted; right at the {report.cases} cases so far"
        return report
    finally:
        report.fidelity = fidelity.merged(filter(None, [report.fidelity, host.fidelity]))
    if report.verdict == "ok":
        report.case, report.failure = "", {}
        _conclude(report, rung, dtype, asked, trials, procedure)
    return report


def _failed(failure: Failure | RungError, procedure: Procedure) -> None:
    report = procedure.report
    report.verdict, report.reason, report.cause = "failed", str(failure), failure.kind
    if of := " and ".join(one.configuration for one in procedure.trials.host.tuned):
        report.reason += f"; with the tuner's configuration {of}"
    if isinstance(failure, EmulatorFault | CompileError):
        report.place, report.related = failure.place, getattr(failure, "related", [])
    if failure.kind == "unsupported":  # says nothing about the kernel
        report.verdict = "skipped"
    if isinstance(failure, CompileError) and failure.missing:
        report.verdict = "not judged"
    if failure.kind in WRONG or (failure.kind in (CompileError.kind, RAISED, REFUSES) and procedure.ran):
        procedure.advise()
    report.failure = report.failure or procedure.trials.last_call()
    if procedure.rung.header.adopted == "trial" and failure.kind not in OF_THE_KERNEL and not procedure.confirmed():
        report.failure["unconfirmed"] = True


@contextmanager
def _in_a_copy(procedure: Procedure, work: Callable[[], None]) -> Iterator[None]:
    """`work` runs in a copy of this process as it is now, which starts another one for the kernel: meanwhile, or with
    one processor afterwards."""
    trials, report = procedure.trials, procedure.report
    before = copy.deepcopy(report)
    meanwhile = processors() > 1

    def judged(pipe: Connection) -> None:
        only_this_thread()
        copied()
        if not meanwhile:
            pipe.recv()
        try:
            with Sandbox(trials.device, trials.rung) as trials.host:
                try:
                    work()
                    trials.ran = trials.host.coverage() if trials.coverage else {}
                except (Failure, RungError) as failure:
                    _failed(failure, procedure)
                report.fidelity = trials.host.fidelity
            pipe.send((report, trials.ran))
        except (OutOfTime, Exception) as error:
            pipe.send(error if isinstance(error, OutOfTime) else f"{type(error).__name__}: {error}")

    with Apart(judged) as other:
        yield
        try:
            if not meanwhile:
                other.pipe.send("begin")
            found: tuple[Report, Coverage] | OutOfTime | str = other.pipe.recv()
        except EOFError:
            raise Failure(other.ended()) from None
    if isinstance(found, OutOfTime):
        raise found
    if isinstance(found, str):
        raise RuntimeError(found)
    report.add(found[0], before)
    trials.ran = found[1]


def _conclude(
    report: Report, rung: Rung, dtype: Dtype, asked: CheckRequest, trials: Trials, procedure: Procedure
) -> None:
    """The verdict on a rung whose results were right."""
    host = trials.host
    if rung.operation.custom_check is not None:
        report.notes.append("judged by the problem's own check_implementation; the error figures are rung's")
    if trials.coverage:
        trials.ran = merged(trials.ran, host.coverage())
        of_triton = None if trials.cuda else rung.path and rung.path.resolve()  # whose functions have lines, too
        every = unreached(trials.ran, SPACES if trials.cuda else OF_TRITON)
        report.unreached = [p for p in every if of_triton in (None, Path(p.file).resolve())]
    report.notes += [f"{n} of its tuner's {of} configurations ran" for _, n, of in host.tuned if n < of]
    if host.library_calls:
        report.verdict = "calls the library"
        report.reason = f"right, but not by a kernel of its own: {', '.join(sorted(host.library_calls)[:6])}"
        return
    if asked.case is None and not asked.quick and _hides(rung, dtype, asked, report):
        rules = "; ".join(sorted({r.removeprefix(f"{rung.full_name} ") for r in report.left_out.values()}))
        report.verdict = "few cases"
        refused = len(report.left_out)
        report.reason = f"right at {report.cases}, but refuses {refused} of the operation's cases ({rules})"


@contextmanager
def _compiled_for_a_gpu(
    rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None, report: Report
) -> Iterator[Callable[[], None]]:
    """Compiles a rung for a GPU while its first case is compiled for the emulator, and gives what waits for that;
    launches beyond a GPU's limits are found before."""
    reason, planned = unlaunchable(rung, dtype, tuning)
    if reason:
        raise Failure(reason, "launch")

    def compiled() -> str:
        from gpuless.compile import nvrtc

        try:
            nvrtc.version()
        except RungError as error:
            report.notes.append(f"not compiled for a GPU: {error}")
            return ""
        if reason := unfit(rung, planned):
            return reason
        if not catalogue.shipped(rung):
            clock.append(clock_read(rung, planned))
        return ""

    clock: list[tuple[str, dict[str, Any]]] = []

    def wait() -> None:
        with report.phase("compile_for_a_gpu"):
            reason = found.result()
        if reason:
            raise Failure(reason, "launch")
        for text, place in clock:
            if text:
                report.place = place
                raise Failure(text, "clock")

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(compiled)
        pool.shutdown(wait=False)  # its thread ends with that: a process without threads can be copied
        yield wait


def _asks_who_runs_it(rung: CudaRung) -> str:
    """Why the kernels that run here need not be those that a GPU would run."""
    if re.search(r"\bemulated\b", str({n: v for n, v in rung.table.items() if n not in DESCRIPTIVE})):
        return "its header asks whether it is `emulated`, so that a GPU would run other code than was run here"
    return ""


def _never_waits(rung: Rung) -> bool:
    """Whether a launch may begin before the kernel ahead of it has ended, and nothing in the source waits for that."""
    if not isinstance(rung, CudaRung) or not any(launch.pdl for launch in rung.header.launches):
        return False
    texts = identity.texts(rung, lambda path: path.name != "ptx.cuh")
    return not any(_WAITS.search(without_comments(text)) for text in texts)


def _hides(rung: Rung, dtype: Dtype, asked: CheckRequest, report: Report) -> bool:
    """Whether it refuses most of the cases, and most of the model's shapes too."""
    if len(report.left_out) <= SHARE_REFUSED * (report.cases + len(report.left_out)):
        return False
    shapes = [rung.operation.complete(values) for values in rung.operation.shapes.values()]
    refused = [v for v in shapes if rung.refusal(v, dtype, asked.tuned, device=asked.device) is not None]
    return len(refused) > SHARE_REFUSED * len(shapes)


def _cannot_run(rung: Rung, device: Device) -> str | None:
    if device == "cuda":
        return None
    if rung.emulate:
        return rung.emulate
    if isinstance(rung, CudaRung):
        import gpuless

        return gpuless.available()
    return None


def _only_compiled(rung: Rung, dtype: Dtype, report: Report, reason: str, tuning: dict[str, int] | None) -> Report:
    report.verdict, report.reason = "skipped", reason
    if isinstance(rung, CudaRung):
        wrong, planned = unlaunchable(rung, dtype, tuning)
        wrong = wrong or ("" if planned else "no case of the operation fits the rung's needs") or unfit(rung, planned)
        report.verdict, report.reason = ("failed", wrong) if wrong else ("compiled", reason)
    return report


def _legal_cases(rung: Rung, dtype: Dtype, asked: CheckRequest, report: Report) -> Iterator[tuple[Case, Values]]:
    operation, device = rung.operation, asked.device
    _with_case([rung], asked.case)
    for case in operation.cases:
        if asked.case is not None and case.name != asked.case:
            continue
        if dtype.name not in case.dtypes or (case.where == "cuda" and device != "cuda"):
            continue
        for_alone = case.where == "file" or (case.where == "alone" and device != "cuda")
        if for_alone and not asked.effort.alone and asked.case is None:
            continue
        values = operation.complete(case.values)
        reason = rung.refusal(values, dtype, asked.tuned, device=device)
        if reason is not None:
            report.left_out[case.name] = reason
            continue
        yield case, values


def _fitted_cases(rung: Rung, dtype: Dtype, device: Device, report: Report) -> Iterator[tuple[Case, Values]]:
    """The cases that the rung refuses, with sizes and scalars that it takes."""
    operation, seen = rung.operation, list[Values]()
    for case in operation.cases:
        if case.name not in report.left_out:
            continue
        values = rung.fitted(operation.complete(case.values), dtype, device)
        if values is not None and operation.cost(values, dtype.size).flops > MOST_FLOPS:  # such as a square's
            less = {dim: min(int(values[dim]), SQUARE) for dim in operation.dims}
            values = rung.fitted({**values, **less}, dtype, device)
        if values is None or operation.cost(values, dtype.size).flops > MOST_FLOPS:
            continue
        del report.left_out[case.name]
        if values in seen and not case.change:
            continue
        seen.append(values)
        yield replace(case, name=f"{case.name}, at {shape_text(operation, values)}", values=values), values
