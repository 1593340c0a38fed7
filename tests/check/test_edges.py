"""Numbers where a formula has an edge: a kernel that is wrong only there is refused, and its right twin passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler

EDGES = Path(__file__).parents[1] / "broken" / "edges"


@needs_compiler
@pytest.mark.parametrize(("guard", "verdict"), [("0.f", "failed"), ("1.f", "ok")])
@pytest.mark.parametrize("operation", ["rmsnorm", "reduce", "layernorm"])
def test_a_mistake_at_an_edge_only_is_refused(operation: str, guard: str, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / f"{operation}.cu"
    path.write_text((EDGES / path.name).read_text().replace("GUARD", guard))
    command = [sys.executable, "-m", "rung", "check", operation, str(path), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert told["verdict"] == verdict, told
    edges = ("rows of zeros", "constant rows")
    assert all(finding["case"]["name"].split(",")[0] in edges for finding in told["findings"])
