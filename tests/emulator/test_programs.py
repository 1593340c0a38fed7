"""CUDA programs with host code, through `rung run`: the right ones say OK under every order, the faulty ones are refused
for the reason, and at the line, that they name themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "programs"
RIGHT = sorted((FOLDER / "right").glob("*.cu"))
FAULTY = sorted((FOLDER / "faulty").glob("*.cu"))
QUICK = {"add_constant", "race_missing_barrier"}
CODES = {"race": 102, "copy": 103, "double free": 103, "free": 103, "symbol": 103}


def rung_run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rung", "run", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"RUNG_WORKERS": "2"})


def marked(path: Path) -> object:
    return pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("program", [marked(path) for path in RIGHT])
def test_right_program_says_ok_and_has_no_fault(program: Path) -> None:
    ended = rung_run(program)
    assert ended.returncode == 0, ended.stderr
    assert "OK" in ended.stdout
    assert " 0 faults" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("program", RIGHT, ids=lambda path: path.stem)
def test_right_program_ends_alike_under_eight_orders_and_without_race_check(program: Path) -> None:
    ended = rung_run(program, "--order", "all")
    assert ended.returncode == 0, ended.stderr
    plain = rung_run(program, "--no-races")
    assert plain.returncode == 0, plain.stderr


@pytest.mark.parametrize("program", [marked(path) for path in FAULTY])
def test_faulty_program_is_refused_for_its_reason_at_its_line(program: Path) -> None:
    """A comment `// fault: KIND` stands at the line that is at fault."""
    lines = program.read_text().splitlines()
    expected = [
        (found[1], number) for number, line in enumerate(lines, 1) if (found := re.search(r"// fault: ([\w ]+)$", line))
    ]
    assert expected, "the program names no fault"
    document = json.loads(rung_run(program, "--json").stdout)
    assert document["schema"] == "rung-run/1"
    assert document["faults"], document
    kind, first = expected[0][0], document["faults"][0]
    assert first["kind"] == kind
    places = {int(number) for number in re.findall(rf"{program.name}:(\d+)", first["text"])}
    assert places & {number for _, number in expected}, first
    assert document["exit"] == CODES.get(kind, 101)
