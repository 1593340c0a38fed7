"""An environment in which Triton is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that finds no Triton."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'triton'\", name='triton')\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_a_rung_in_triton_is_not_judged_and_says_how_to_get_it(without: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rung", "check", "relu/3", "--quick", "--dtype", "f32", "--json"]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert found["verdict"] == "not judged"
    assert "rung[triton]" in done.stdout


def test_its_idea_is_read_all_the_same(without: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rung", "list", "relu"]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "03_triton" in done.stdout
