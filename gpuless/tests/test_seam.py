"""gpuless stands alone: it imports nothing of rung."""

import ast
from pathlib import Path

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


def test_gpuless_imports_nothing_of_rung() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if "rung" in _imported(path)] == []
