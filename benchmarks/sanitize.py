"""Runs rungs bare under compute-sanitizer: bad accesses and shared-memory races, seen on the GPU itself.

The checker itself would be slow there, since every kernel of its reference is instrumented too. So the
process under the tool only launches each rung once on a small case, in every dtype.

Usage: python benchmarks/sanitize.py OP[/RUNG] ...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rung.arrays import dtype_of
from rung.errors import RungError

TOOLS = ("memcheck", "racecheck")
MOST_LINES = 12  # of what a tool prints
PREFERRED_CASE = "odd"
LAUNCH = "--launch"  # of the process under the tool
MARK, BEGUN = "launched ", "launching "
SANITIZED = "RUNG_SANITIZED"  # defined under the tools, for code whose synchronization they do not understand


@dataclass(frozen=True)
class Finding:
    """One tool's result for one ladder."""

    operation: str
    tool: str
    launched: int
    errors: int
    text: str

    @property
    def clean(self) -> bool:
        return self.errors == 0 and self.launched > 0


def find() -> str:
    """The path of compute-sanitizer."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(home) / folder for home in homes if home for folder in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, places)]))
    if found is None:
        raise RungError("compute-sanitizer was not found; it comes with the CUDA toolkit.")
    return found


def sanitize(rungs: Sequence[str], *, jobs: int = 6) -> Iterator[Finding]:
    """Run these rungs under each tool, a ladder's in one process."""
    tool_path = find()
    ladders: dict[str, list[str]] = {}
    for name in rungs:
        ladders.setdefault(name.partition("/")[0], []).append(name)

    def one(work: tuple[str, str]) -> Finding:
        operation, tool = work
        command = [tool_path, "--tool", tool, "--report-api-errors", "no", "--print-limit", "5"]
        command += [sys.executable, __file__, LAUNCH, *ladders[operation]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return _read(operation, tool, done.stdout + done.stderr, done.returncode)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, [(o, t) for t in TOOLS for o in ladders])


def _read(operation: str, tool: str, output: str, code: int) -> Finding:
    """The verdict at the end of the tool's output, and its first complaints."""
    launched = sum(line.startswith(MARK) for line in output.splitlines())
    errors = -1
    for line in output.splitlines():
        words = line.replace("=", " ").split()
        if words[:2] == ["ERROR", "SUMMARY:"] or words[:2] == ["RACECHECK", "SUMMARY:"]:
            errors = int(words[2])
    complaints = _complaints(output.splitlines())
    if code and errors <= 0:
        errors, complaints = -1, output.splitlines()[-6:]
    return Finding(operation, tool, launched, errors, "\n".join(complaints) if errors else "")


def _complaints(lines: Sequence[str]) -> list[str]:
    """The tool's output, by the launch during which it was printed."""
    found, during = [], ""
    for line in lines:
        if line.startswith(BEGUN):
            during = line.removeprefix(BEGUN)
        elif line.startswith("=========") and "COMPUTE-SANITIZER" not in line:
            if during:
                found.append(f"during {during}:")
                during = ""
            found.append(line)
    return found[:MOST_LINES]


def _launch_all(names: Sequence[str]) -> None:
    """Run under the tool: each of a ladder's rungs, once, in each dtype."""
    import torch

    from rung.dtypes import dtype as named
    from rung.rungs import catalogue
    from rung.rungs.cuda import CudaRung

    of = catalogue.operation(names[0].partition("/")[0])
    cases = sorted(of.cases, key=lambda c: (c.name != PREFERRED_CASE, c.where != "any"))
    for rung in (r for r in catalogue.rungs(of.name, libraries=False) if r.full_name in names):
        for name in rung.dtypes:
            for case in cases:
                values = of.complete(case.values)
                if name in case.dtypes and rung.refusal(values, named(name), device="cuda") is None:
                    break
            else:
                continue
            print(f"{BEGUN}{rung.full_name} {name} at {case.name}", flush=True)
            tensors = of.inputs(
                values,
                named(name),
                1,
                magnitude=case.magnitude,
                change=case.change,
                names=rung.operand_names,
                empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch), device="cuda"),
            )
            build = rung.built_for(SANITIZED) if isinstance(rung, CudaRung) else rung
            build.prepare(tensors, values, named(name), device="cuda").run()
            torch.cuda.synchronize()
            print(f"{MARK}{rung.full_name} {name} at {case.name}", flush=True)


def main(words: Sequence[str]) -> int:
    from rung.rungs import catalogue

    chosen = [r for word in words for r in catalogue.select(word) if r.kind != "library"]
    findings = list(sanitize([r.full_name for r in chosen]))
    for f in findings:
        print(f"{f.operation}, {f.tool}: {f.launched} launches, {f.errors} errors", f.text, sep="\n" * bool(f.text))
    return int(not all(f.clean for f in findings))


if __name__ == "__main__":
    if sys.argv[1:2] == [LAUNCH]:
        _launch_all(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
