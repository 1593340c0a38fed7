"""What a check of a file tells before torch is imported: names that cannot be bound, code that does not compile."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rung.check.report import Report, Verdict, admitted_by, right_where
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, RungError
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung


def first_look(rung: Rung, dtypes: Sequence[str], archs: Sequence[str]) -> Report | None:
    """A report if the names or types of a kernel's parameters cannot be bound, or a compiler refuses the code; torch is
    not imported for that."""
    if isinstance(rung, CudaRung) and (found := _unbound(rung, dtypes, archs)):
        return found
    if rung.guessed and rung.doubts:  # the trials have failed where a check would
        return Report(rung.full_name, rung.dtypes[0], "", "failed", "")
    return None


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
                unknown = error.missing if isinstance(error, CompileError) else rung.guessed
                verdict: Verdict = "not judged" if unknown else "failed"
                return Report(rung.full_name, name, "", verdict, str(error), error.kind)
    return None


def doubted(report: Report, rung: Rung) -> Report:
    """A failure by a header that is guessed, at a shape at which neither the file's text nor a trial confirms it, is no
    verdict. The loss of NaN is none either, of a file that was not written for rung."""
    if report.verdict == "failed" and rung.foreign and (key := report.failure.get("admitted_by")):
        return replace(report, verdict="not judged", reason=f"right in {report.cases} cases, but {admitted_by(key)}")
    needs = "" if rung.doubts else report.failure.get("needs", "")
    if report.verdict == "failed" and rung.foreign and needs:
        return replace(report, verdict="not judged", reason=f"{right_where(needs)} Else: {report.reason}")
    elsewhere = rung.right is not None and report.failure.get("dims", {}) not in rung.right
    if report.verdict != "failed" or not rung.guessed:
        return report
    if not rung.doubts and (report.cause == "compile" or not elsewhere):
        return report
    why, *likely = rung.doubts or (_elsewhere(report.failure, rung.right or []),)
    told = f"the header is a guess, and {why}; {rung.mend}"
    notes = [*report.notes, *(f"perhaps {line}" for line in likely), *filter(None, [report.reason])]
    return replace(report, verdict="not judged", reason=told, notes=notes)


def _elsewhere(failure: Mapping[str, Any], right: Sequence[Mapping[str, int]]) -> str:
    """Where a guessed header is right, and where not: the kernel may have another grid there, or no such sizes."""
    if not right or "dims" not in failure:
        return "no trial has shown that it is right"
    at = [" ".join(f"{dim}={size}" for dim, size in one.items()) for one in (right[-1], failure["dims"])]
    return f"right at {len(right)} shapes such as {at[0]}, but not at {at[1]}"
