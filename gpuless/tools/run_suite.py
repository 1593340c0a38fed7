"""Runs another project's unittest modules one after the other on the GPU in software, and tells what passes.

    python gpuless/tools/run_suite.py --python VENV/bin/python --out results.jsonl numba.cuda.tests.cudapy

Each module runs in a process of its own, so that an error that sticks to a context, as on a GPU, ends with it; tests
behind the first that does not pass run once more by themselves. A row of the output is a test: module, test, outcome
(passed, failed, error, skipped, lost), reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUN = """
import io, json, sys, unittest
class Result(unittest.TextTestResult):
    def row(self, test, outcome, reason=""):
        print("ROW " + json.dumps([test.id(), outcome, reason]), file=sys.__stdout__, flush=True)
    def startTest(self, test):
        super().startTest(test); self.row(test, "begun")
    def addSuccess(self, test): self.row(test, "passed")
    def addSkip(self, test, reason): self.row(test, "skipped", reason)
    def addExpectedFailure(self, test, error): self.row(test, "passed", "expected to fail")
    def addUnexpectedSuccess(self, test): self.row(test, "failed", "was expected to fail")
    def addFailure(self, test, error): self.row(test, "failed", self._exc_info_to_string(error, test)[-1500:])
    def addError(self, test, error):
        skips = error[0].__name__ == "Skipped"
        self.row(test, "skipped" if skips else "error", self._exc_info_to_string(error, test)[-1500:])
    def addSubTest(self, test, sub, error):
        if error: self.row(test, "failed", self._exc_info_to_string(error, test)[-1500:])
suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
unittest.TextTestRunner(stream=io.StringIO(), resultclass=Result).run(suite)
"""
LIST = """
import importlib.util, pkgutil, sys
for name in sys.argv[1:]:
    folders = importlib.util.find_spec(name).submodule_search_locations
    for found in pkgutil.iter_modules(folders or (), name + "."):
        if found.name.rpartition(".")[2].startswith("test_"): print(found.name)
    if folders is None: print(name)
"""


def judged(python: str, module: str, seconds: float, environment: dict[str, str]) -> list[dict[str, str]]:
    """The rows of a module."""
    rows = run(python, module, seconds, environment)
    wrong = [number for number, row in enumerate(rows) if row["outcome"] not in ("passed", "skipped")]
    for number in wrong[1:]:
        if rows[number]["test"] != module:
            rows[number] = run(python, rows[number]["test"], seconds, environment)[0] | {"module": module}
    return rows


def run(python: str, module: str, seconds: float, environment: dict[str, str]) -> list[dict[str, str]]:
    """The rows of a module, or of a test: one that began and did not end is lost."""
    command = [python, "-c", RUN, module]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=seconds, errors="replace"
        )
        output, end = done.stdout, f"exit code {done.returncode}: {done.stderr.strip()[-700:]}"
    except subprocess.TimeoutExpired as late:
        output, end = (late.stdout or b"").decode(errors="replace"), f"{seconds:g} s are over"
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if "ROW [" in line:
            test, outcome, reason = json.loads(line[line.index("ROW [") + 4 :])
            if test not in found or found[test][0] in ("begun", "passed"):
                found[test] = [outcome, reason]
    rows = [
        {"module": module, "test": test, "outcome": "lost", "reason": end}
        if outcome == "begun"
        else {"module": module, "test": test, "outcome": outcome, "reason": reason}
        for test, (outcome, reason) in found.items()
    ]
    return rows or [{"module": module, "test": module, "outcome": "lost", "reason": end}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the project")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line of JSON each")
    parser.add_argument("--seconds", type=float, default=600, help="of a module")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--library", help="the folder of libcuda.so.1; else that of this package")
    parser.add_argument("packages", nargs="+")
    given = parser.parse_args()
    own = {"GPULESS_QUIET": "1", "GPULESS_EXIT": "0", "GPULESS_SECONDS": str(given.seconds)}
    if given.library:
        own["LD_LIBRARY_PATH"] = given.library
        own["PYTHONPATH"] = str(Path(__file__).parents[1] / "src/gpuless/driver/site")
    else:
        from gpuless import driver

        own |= driver.environment()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    listed = subprocess.run(
        [given.python, "-c", LIST, *given.packages], capture_output=True, text=True, env=environment, check=True
    )
    counts: Counter[str] = Counter()
    with given.out.open("w") as out, ThreadPoolExecutor(given.jobs) as pool:
        every = listed.stdout.split()
        for module, rows in zip(
            every, pool.map(lambda one: judged(given.python, one, given.seconds, environment), every), strict=True
        ):
            here = Counter(row["outcome"] for row in rows)
            counts += here
            out.writelines(json.dumps(row) + "\n" for row in rows)
            out.flush()
            print(f"{module}: " + ", ".join(f"{n} {outcome}" for outcome, n in here.items()), flush=True)
    ran = sum(counts.values()) - counts["skipped"]
    print(f"{counts['passed']} of {ran} pass ({counts['passed'] / max(1, ran):.1%}); {dict(counts)}")


if __name__ == "__main__":
    main()
