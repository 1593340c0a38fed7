"""The programs of gpuless/tests/programs on a GPU: are their outputs the machine's, and which tool sees which fault.

    PYTHONPATH=src python benchmarks/programs_gpu.py [--seconds 400] [--output rows.jsonl] [--only NAME]

Each right program runs on the emulator and, as by `gpuless run --device cuda`, on the GPU; each faulty program is
judged by the emulator, and on the GPU by compute-sanitizer's memcheck, racecheck, initcheck and synccheck.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sanitize
from gpuless.program import building, execution, toolkit
from rung.errors import RungError
from rung.results import machine, store
from rung.results.row import Row

PROGRAMS = Path(__file__).parent.parent / "gpuless/tests/programs"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_FIRST = re.compile(r"=+ +(?:Invalid|Error|Race|Uninit|Barrier|Warning|Misal|Diverg|Program hit)")
_ERRORS = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def attempt(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors; -1 after so many seconds."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired as late:
        return -1, str(late.stdout or ""), f"no end within {seconds:g} s"
    return done.returncode, done.stdout, done.stderr


def built(source: Path) -> tuple[Path | None, str]:
    """The program for the GPU, or why there is none."""
    try:
        return building.program([source], building.Options(gpu=building.NATIVE)), ""
    except Exception as problem:
        return None, str(problem)


def emulated(source: Path) -> tuple[int, str, dict[str, object]]:
    """Exit code, output and report on the emulator."""
    code, out, errors = attempt([sys.executable, "-m", "gpuless", "run", "--json", str(source)], 300)
    try:
        document = json.loads(out)
    except ValueError:
        return code, errors, {}
    return document["exit"], document["output"], document


def row(name: str, part: str, verdict: str, reason: str, **metrics: float) -> Row:
    return Row(
        kind="sanitize", what=f"programs/{name}", part=part, verdict=verdict, reason=reason[:400],
        metrics=metrics, machine=machine.facts(),
    )  # fmt: skip


def right(source: Path, program: Path | None, why: str, expected: tuple[int, str, object]) -> Row:
    """Whether exit code and output on the GPU are the emulator's."""
    if program is None:
        return row(source.stem, "output", "refused", why)
    began = time.perf_counter()
    code, out, errors = attempt([str(program)], 30, execution.Execution(device="cuda").environment())
    seconds = time.perf_counter() - began
    if (code, out) == expected[:2]:
        return row(source.stem, "output", "ok", "", run_s=seconds)
    pairs = zip([*out.splitlines(), ""], [*str(expected[1]).splitlines(), ""], strict=False)
    differs = next((f"'{a}' where the emulator has '{b}'" for a, b in pairs if a != b), "another number of lines")
    same_end = code == expected[0] and "OK" in out
    reason = f"exit {code} for {expected[0]}: {differs} {errors.strip()[:200]}"
    return row(source.stem, "output", "differs" if same_end else "failed", reason, run_s=seconds)


def sanitized(source: Path, program: Path, tool: str, sanitizer: str, line: list[int]) -> Row:
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99", str(program)]
    _, out, errors = attempt(command, 25, execution.Execution(device="cuda").environment())
    text = out + errors
    count = sum(int(a or b) for a, b in _ERRORS.findall(text))
    first = next((t for t in text.splitlines() if _FIRST.match(t)), "")
    at = any(re.search(rf"{source.name}:{number}\b", text) for number in line)
    reason = first.lstrip("= ") or ("" if _ERRORS.search(text) else text.strip()[-200:])
    return row(source.stem, tool, "failed" if count else "ok", reason, errors=float(count), at_line=float(at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=400, help="Nothing new begins after these.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    ends = time.monotonic() + given.seconds
    try:
        sanitizer = sanitize.find()
    except RungError as problem:
        print(problem, flush=True)
        sanitizer = None
    print(f"{toolkit.compiler()}; sanitizer {sanitizer}", flush=True)
    found = [p for kind in ("right", "faulty") for p in sorted((PROGRAMS / kind).glob("*.cu"))]
    names = [p for p in found if given.only in p.stem]
    rows: list[Row] = []

    def keep(make: Callable[[], Row]) -> None:
        if time.monotonic() > ends:
            return
        try:
            rows.append(make())
        except Exception as problem:
            print(f"?? {type(problem).__name__}: {problem}", flush=True)
            return
        one = rows[-1]
        print(f"{one.what:45} {one.part:10} {one.verdict:8} {one.reason[:110]}", flush=True)
        if given.output:
            store.append(one, given.output)

    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        programs = {p: pool.submit(built, p) for p in names}
        judged = {p: pool.submit(emulated, p) for p in names}
        for source in names:
            program, why = programs[source].result()
            if source.parent.name == "right":
                expected = judged[source].result()
                keep(lambda: right(source, program, why, expected))  # noqa: B023
                continue
            faults = judged[source].result()[2].get("findings") or []
            kind = str(faults[0]["kind"]) if isinstance(faults, list) and faults else ""
            keep(lambda: row(source.stem, "rung", "failed" if kind else "ok", kind))  # noqa: B023
            lines = [n for n, t in enumerate(source.read_text().splitlines(), 1) if "// fault:" in t]
            for tool in TOOLS:
                if program is None or sanitizer is None:
                    keep(lambda: row(source.stem, tool, "refused", why or "no compute-sanitizer"))  # noqa: B023
                else:
                    keep(lambda: sanitized(source, program, tool, sanitizer, lines))  # noqa: B023
    print("\nwhy a right program is not ok:")
    for one in rows:
        if one.part == "output" and one.verdict != "ok":
            print(f"  {one.what}: {one.verdict}: {' '.join(one.reason.split())[:300]}")
    outputs = [r.verdict for r in rows if r.part == "output"]
    counts = ", ".join(f"{verdict} {outputs.count(verdict)}" for verdict in sorted(set(outputs)))
    print(f"\nright programs on the GPU: {len(outputs)}; {counts}")
    for part in ("rung", *TOOLS):
        verdicts = [r.verdict for r in rows if r.part == part]
        print(f"{part:10} sees {verdicts.count('failed'):2} of {len(verdicts)}; refused {verdicts.count('refused')}")


if __name__ == "__main__":
    main()
