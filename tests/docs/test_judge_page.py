"""The judge of docs/judge.md, run as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("src/rung/ladders/residual/01_naive.cu", ""),
        ("tests/broken/missing_barrier.cu", "race|barrier"),
        ("tests/broken/mutated_input.cu", "input"),
        ("tests/broken/out_of_bounds_read.cu", "a"),
    ],
)
def test_the_page_judges(file: str, error: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/judge.md").read_text(), re.DOTALL)
    (tmp_path / "judge.py").write_text(code)
    words = [sys.executable, str(tmp_path / "judge.py"), "residual", str(ROOT / file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert int(lines["test-count"]) > 5, done.stderr
    assert lines["check"] == ("fail" if error else "pass") and done.returncode == bool(error)
    errors = [text for key, text in lines.items() if key.endswith(".error")]
    assert bool(errors) == bool(error) and all(re.search(error, text) for text in errors)
