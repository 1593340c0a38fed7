"""What a check of a file reports before torch is imported: names that cannot be bound, code that does not compile, a
call that is only proposed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from rung.check.report import OF_THE_KERNEL, REFUSES, Report, Verdict, admitted_by, right_where
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, RungError
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.learned import LearnedCall


def first_look(rung: Rung, dtypes: Sequence[str], archs: Sequence[str]) -> Report | None:
    """A report if the launch that the file itself makes has a fault, names or types of a kernel's parameters cannot be
    bound, a compiler refuses the code, or no call of it is confirmed; torch is not imported for that."""
    known = rung.learned
    if known and known.fault:
        fault, failure = known.fault, {**known.failure}
        report = Report(rung.full_name, rung.dtypes[0], "", "failed", fault["text"], fault["kind"], failure=failure)
        return replace(report, place=dict(fault["place"]), related=[*fault["related"]])
    found = _unbound(rung, dtypes, archs) if isinstance(rung, CudaRung) else None
    if found and (not rung.doubts or found.verdict != "failed"):  # an instance that is only proposed need not compile
        return found
    if known and known.doubts:
        why, *likely = known.doubts
        notes = [f"perhaps {line}" for line in likely]
        report = Report(rung.full_name, rung.dtypes[0], "", "not judged", _computed(known) + why, "call", notes=notes)
        return replace(report, failure={**known.failure})
    return None


def _computed(known: LearnedCall) -> str:
    """What the likeliest call gave."""
    failure = known.failure
    if not known.error:
        return ""
    call = "the file's own launch" if known.own else known.guess or "the likeliest call"
    dims = " ".join(f"{n}={v}" for n, v in failure.get("dims", {}).items())
    if not failure.get("pairs") or failure.get("unwritten"):
        return f"with {call}{f', at {dims}' if dims else ''}: {known.error.rstrip('.')}; "
    pair = failure["pairs"][0]
    at, got = ", ".join(map(str, pair["index"])), "never written" if pair["got"] is None else f"{pair['got']:.6g}"
    pattern = f" ({failure['pattern'].rstrip('.')})" if failure.get("pattern") else ""
    return f"with {call} {failure['output']}[{at}] is {got} instead of {pair['expected']:.6g}, at {dims}{pattern}; "


def _unbound(rung: CudaRung, dtypes: Sequence[str], archs: Sequence[str]) -> Report | None:
    compiled = False
    for name in [d for d in rung.dtypes if not dtypes or d in dtypes]:
        dtype = dtype_named(name)
        for _, values in itertools.islice(rung.cases(dtype), 1):
            try:
                rung.require_bindable(values, dtype)
                if not compiled:
                    rung.require_compiled(values, dtype, tuple(archs) or ("sm_90",))
                    compiled = True
            except RungError as error:
                unknown, place = (error.missing, error.place) if isinstance(error, CompileError) else (rung.guessed, {})
                verdict: Verdict = "not judged" if unknown else "failed"
                return Report(rung.full_name, name, "", verdict, str(error), error.kind, place=place)
    return None


def doubted(report: Report, rung: Rung) -> Report:
    """A failure by a call that rung has found out, at a shape at which no plain run of it is right, is no verdict; nor
    is a race or a deadlock of a launch that it guessed (threads of another block may not meet so), nor the loss of
    NaN, of a file that was not written for rung and does not say what it is for."""
    if report.verdict != "failed" or not rung.foreign or rung.declared:
        return report
    if report.cause in OF_THE_KERNEL and rung.learned and rung.learned.guess:
        told = f"{report.reason.rstrip('.')}; that is with {rung.learned.guess}: --launch, or a header, says another"
        return replace(report, verdict="not judged", reason=told)
    if key := report.failure.get("admitted_by"):
        return replace(report, verdict="not judged", reason=f"right in {report.cases} cases, but {admitted_by(key)}")
    if needs := report.failure.get("needs"):
        return replace(report, verdict="not judged", reason=f"{right_where(needs, report.place)} Else: {report.reason}")
    if report.cause == REFUSES and not report.cases:
        told = f"{report.reason.rstrip('.')} (the file itself refuses the call that rung found)"
        return replace(report, verdict="not judged", reason=told)
    if report.failure.get("unconfirmed"):
        told = f"right in {report.cases} cases; here the call may be another, or the kernel not for such sizes"
        return replace(report, verdict="not judged", reason=f"{report.reason.rstrip('.')} ({told})")
    return report
