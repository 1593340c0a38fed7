"""Verdicts by the thousand: each line of a file of JSON is a kernel to judge, each line of another its verdict.

A line has an `id` and either `operation` and `source` (CUDA, or Python if `language` is python), or `reference` and
`source`: a module with Model and get_inputs, and a candidate, as in KernelBench. Verdicts hold no times, and what is
tried follows from executed instructions, not from seconds.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung.check.report import TIME
from rung.errors import RungError, first_line
from rung.lines import append

Line = dict[str, Any]
SECONDS = 900.0  # of a line, until it is given up
_KEPT = (
    "rung", "dtype", "verdict", "cause", "reason", "case", "cases", "runs", "place", "related", "failure", "notes",
)  # fmt: skip


def judge(given: Path, out: Path, workers: int, *, quick: bool = False) -> Iterator[Line]:
    """Judges the lines that `out` has no verdict for; each verdict is written as soon as it is known."""
    lines = read_lines(given)
    done = _judged(out)
    left = [line | {"quick": quick} for line in lines if line["id"] not in done]
    with concurrent.futures.ThreadPoolExecutor(max(1, min(workers, len(left)))) as pool:
        here = threading.local()
        judges: list[_Judge] = []

        def ask(line: Line) -> Line:
            if not hasattr(here, "judge"):
                here.judge = _Judge()
                judges.append(here.judge)
            return here.judge.ask(line)  # type: ignore[no-any-return]

        try:
            for known in concurrent.futures.as_completed([pool.submit(ask, line) for line in left]):
                row = known.result()
                append(out, row)
                yield row
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for one in judges:
                one.end()


class _Judge:
    """A process that judges line after line, and stays warm; another takes its place if it ends, or takes too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, line: Line) -> Line:
        if self._process is None:
            words = [sys.executable, "-m", "rung.exchange.batch"]
            pipe = subprocess.PIPE
            environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a core has one judge
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        late = threading.Timer(SECONDS, expire)
        late.start()
        try:
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            late.cancel()
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
        self.end()
        found = {"id": line["id"], "verdict": "not judged", "reports": []}
        if expired.is_set():
            return found | {"reason": f"it took more than {SECONDS:.0f} s", "cause": TIME}
        return found | {"reason": f"the judge's process ended, with code {process.returncode}"}

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _judged(out: Path) -> set[Any]:
    """The ids that have a verdict; a line that a stopped run has cut short is none, and none what a limit on time has
    ended."""
    found = set()
    for text in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        with contextlib.suppress(ValueError):
            row = json.loads(text)
            if row.get("cause") != TIME:
                found.add(row["id"])
    return found


def read_lines(given: Path) -> list[Line]:
    try:
        lines = [json.loads(text) for text in given.read_text(encoding="utf-8").splitlines() if text.strip()]
    except OSError as problem:
        raise RungError(f"{given} cannot be read: {problem.strerror}.") from None
    except ValueError as problem:
        raise RungError(f"{given} is not JSON by lines: {problem}.") from None
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or "id" not in line or "source" not in line:
            raise RungError(f"{given}, line {number}: a line has id and source.")
        if ("operation" in line) == ("reference" in line):
            raise RungError(f"{given}, line {number}: name an operation, or give a reference.")
    if len({line["id"] for line in lines}) < len(lines):
        raise RungError(f"{given} has an id twice.")
    return lines


def verdict(line: Line) -> Line:
    """The verdict on one line; a mistake in it is a verdict, too."""
    with tempfile.TemporaryDirectory(prefix="rung-judge-") as folder:
        try:
            return _verdict(line, Path(folder))
        except RungError as problem:
            return {"id": line["id"], "verdict": "refused", "reason": str(problem), "reports": []}
        except Exception as problem:  # of the line's own Python
            text = f"{type(problem).__name__}: {first_line(problem)}"
            return {"id": line["id"], "verdict": "refused", "reason": text, "reports": []}


def _verdict(line: Mapping[str, Any], folder: Path) -> Line:
    from rung import adopt
    from rung.check.judge import requests
    from rung.check.processes import report_on_all
    from rung.check.report import LADDER, QUICK, CheckRequest
    from rung.exchange.against import candidate

    python = "reference" in line or line.get("language") == "python"
    file = folder / ("candidate.py" if python else "kernel.cu")
    file.write_text(line["source"], encoding="utf-8")
    if "reference" in line:
        digest = hashlib.sha256(json.dumps([line["id"], line["reference"]]).encode()).hexdigest()[:12]
        reference = folder / f"reference_{digest}.py"  # a process knows an operation by its name
        reference.write_text(line["reference"], encoding="utf-8")
        rungs = candidate(reference, file)
    else:
        rungs = adopt.select(line["operation"], file)
    asked = CheckRequest(device="emulator", effort=QUICK if line.get("quick") else LADDER)
    work = requests(rungs, asked, [line["dtype"]] if "dtype" in line else [])
    reports = list(report_on_all(work, 1, rungs={rung.full_name: rung for rung in rungs}))
    worst = next((r for r in reports if r.verdict == "failed"), next((r for r in reports if r.verdict != "ok"), None))
    told = [{key: value for key in _KEPT if (value := getattr(report, key))} for report in reports]
    for one, report in zip(told, reports, strict=True):  # names alone: their numbers are not the same in each run
        if named := {how: sorted(names) for how, names in report.fidelity.items() if how != "exact"}:
            one["fidelity"] = named
    answer = {"id": line["id"], "verdict": worst.verdict if worst else "ok", "reason": worst.reason if worst else ""}
    if any(report.cause == TIME for report in reports):
        answer["cause"] = TIME
    return json.loads(json.dumps(answer | {"reports": told}).replace(f"{folder}/", ""))  # type: ignore[no-any-return]


def _serve() -> None:
    """Answers the lines of standard input; what judged Python prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for text in sys.stdin:
        print(json.dumps(verdict(json.loads(text))), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
