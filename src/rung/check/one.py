"""Is a rung right? One rung in one dtype gets a verdict: a `Report`. procedure.py defines what is tried."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from rung.check.calls import Here, Host
from rung.check.effort import ALONE, QUICK, Effort
from rung.check.other_code import differs
from rung.check.procedure import Procedure
from rung.check.report import SHARE_REFUSED, Failure, Report
from rung.check.trial import Trials
from rung.cuda.source import without_comments
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.operation import Case, Values
from rung.rungs import identity, source_file
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import INCLUDE, CudaRung

KEPT = 3 << 30  # bytes of GPU memory that a process keeps for its next rung; other processes need some, too
_WAITS = re.compile(r"\bpdl_wait\(|griddepcontrol\.wait|cudaGridDependencySynchronize")


def check(
    rung: Rung,
    dtype: str,
    *,
    device: Device,
    seed: int = 0,
    case: str | None = None,
    tuning: dict[str, int] | None = None,
    quick: bool = False,
    races: bool = False,
    coverage: bool = False,
    effort: Effort = ALONE,
    host: Host | None = None,
) -> Report:
    """Check one rung in one dtype; `quick` stops after its first case.

    With `races` the emulator checks every access for races, not only the results of different orders; with `coverage`
    it reports which branches no case has taken.
    """
    report = Report(rung.full_name, dtype, device, norm_cap=dtype_named(dtype).norm_cap)
    reason = _cannot_run(rung, device)
    if reason is not None:
        return _only_compiled(rung, dtype_named(dtype), report, reason, tuning)
    alone = effort.alone and not quick
    cases = list(_legal_cases(rung, dtype_named(dtype), device, case, tuning, report, alone=alone))
    if not cases:
        report.verdict = "skipped" if case else "failed"
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
    host = host or Here(device)
    trials = Trials(
        rung, dtype_named(dtype), device, report, host, tuning=tuning, races=races, coverage=coverage
    )
    if coverage:
        host.unreached()  # of the rungs before it
    host.unwatched()  # likewise
    procedure = Procedure(trials, seed, QUICK if quick else effort)
    try:
        procedure.follow(cases[:1] if quick else cases)
    except (Failure, RungError) as failure:
        report.verdict, report.reason, report.cause = "failed", str(failure), failure.kind
        trials.explain()
        return report
    except Exception as error:  # a Python rung or a library may raise anything
        text = first_line(f"{type(error).__name__}: {error}")
        report.verdict, report.reason = "failed", text
        return report
    report.case = ""
    if rung.operation.complaint is not None:
        report.notes.append("judged by the problem's own check_implementation; the error figures are rung's")
    if threads := max(host.unwatched(), procedure.unwatched):
        report.notes.append(f"not checked for races with {threads} threads at once, too many for the emulator")
    if coverage:
        report.unreached = host.unreached()
    if host.library_calls:
        report.verdict = "calls the library"
        report.reason = f"right, but not by a kernel of its own: {', '.join(sorted(host.library_calls)[:6])}"
        return report
    if case is None and not quick and _hides(rung, dtype_named(dtype), device, tuning, report):
        rules = "; ".join(sorted({r.removeprefix(f"{rung.full_name} ") for r in report.left_out.values()}))
        report.verdict = "few cases"
        refused = len(report.left_out)
        report.reason = f"right at {report.cases}, but refuses {refused} of the operation's cases ({rules})"
    if report.verdict == "ok" and device == "emulator" and (file := _differs_on_a_gpu(rung)):
        report.verdict = "arithmetic only"
        report.reason = f"{file} has different code for the emulator and for a GPU; the GPU's code was not tried"
    if report.verdict == "ok" and procedure.unwatched and not procedure.watched:
        report.verdict = "arithmetic only"
        report.reason = "every case launches more threads at once than the race check can take"
    return report


def _differs_on_a_gpu(rung: Rung) -> str:
    """A file of the rung with different code for the emulator and for a GPU: the GPU's code was not run."""
    if rung.path is None:
        return ""
    own = (path for path in [rung.path, *identity.files(rung)] if path.resolve().parent != INCLUDE.resolve())
    return next((path.name for path in own if differs(source_file.read(path))), "")


def _never_waits(rung: Rung) -> bool:
    """Whether a launch may begin before the kernel ahead of it has ended, and nothing in the source waits for that."""
    if not isinstance(rung, CudaRung) or not any(launch.pdl for launch in rung.header.launches):
        return False
    texts = identity.texts(rung, lambda path: path.name != "ptx.cuh")
    return not any(_WAITS.search(without_comments(text)) for text in texts)


def _hides(rung: Rung, dtype: Dtype, device: Device, tuning: dict[str, int] | None, report: Report) -> bool:
    """Whether it refuses most of the cases, and most of the model's shapes too."""
    if len(report.left_out) <= SHARE_REFUSED * (report.cases + len(report.left_out)):
        return False
    shapes = [rung.operation.complete(values) for values in rung.operation.shapes.values()]
    refused = [v for v in shapes if rung.refusal(v, dtype, tuning, device=device) is not None]
    return len(refused) > SHARE_REFUSED * len(shapes)


def _cannot_run(rung: Rung, device: Device) -> str | None:
    if device == "cuda":
        return None
    if rung.emulate:
        return rung.emulate
    if isinstance(rung, CudaRung):
        from rung import emulator

        return emulator.available()
    return None


def _only_compiled(rung: Rung, dtype: Dtype, report: Report, reason: str, tuning: dict[str, int] | None) -> Report:
    report.verdict, report.reason = "skipped", reason
    if not isinstance(rung, CudaRung):
        return report
    from rung.cuda import nvrtc

    for case in rung.operation.cases:
        values = rung.operation.complete(case.values)
        if dtype.name in case.dtypes and rung.refusal(values, dtype, tuning) is None:
            try:
                nvrtc.compile_cubin(rung.build(values, dtype, tuning), "sm_90")
            except RungError as error:
                report.verdict, report.reason, report.case = "failed", str(error), case.name
            else:
                report.verdict = "compiled"
            return report
    report.verdict, report.reason = "failed", "no case of the operation fits the rung's needs"
    return report


def _legal_cases(
    rung: Rung,
    dtype: Dtype,
    device: Device,
    only: str | None,
    tuning: dict[str, int] | None,
    report: Report,
    *,
    alone: bool,
) -> Iterator[tuple[Case, Values]]:
    operation = rung.operation
    if only is not None and only not in [c.name for c in operation.cases]:
        names = ", ".join(repr(c.name) for c in operation.cases)
        raise RungError(f"{operation.name} has no case {only!r}; it has {names}.")
    for case in operation.cases:
        if only is not None and case.name != only:
            continue
        if dtype.name not in case.dtypes or (case.where == "cuda" and device != "cuda"):
            continue
        for_alone = case.where == "file" or (case.where == "alone" and device != "cuda")
        if for_alone and not alone and only is None:
            continue
        values = operation.complete(case.values)
        reason = rung.refusal(values, dtype, tuning, device=device)
        if reason is not None:
            report.left_out[case.name] = reason
            continue
        yield case, values
