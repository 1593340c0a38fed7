"""gpuless stands alone: it imports nothing of rung, and no torch."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "gpuless"


def _imported(path: Path) -> set[str]:
    """The top packages that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("other", ["rung", "torch", "triton"])
def test_gpuless_does_without(other: str) -> None:
    assert [path for path in PACKAGE.rglob("*.py") if other in _imported(path)] == []
