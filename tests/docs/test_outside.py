"""What CONTRIBUTING.md says of a package beside rung: its entry points, as they stand there, add what they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = re.search(r'```toml\n(\[project.entry-points\."rung.*?)```', (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
FILES = {
    "ladders/relu/40_my_idea.cu": (ROOT / "src/rung/ladders/relu/01_one_element.cu").read_text(),
    "families/mine/family.py": (ROOT / "src/rung/models/starcoder2/family.py").read_text().replace("starcoder2", "mine"),
    "verbs.py": 'def hello(name: str) -> None:\n    """Greets."""\n    print(f"hello, {name}")\n',
    "formats.py": 'def files(rung):\n    return {"name.txt": rung.full_name}\n',
}
FAMILY = "from rung.models import family; print(family.config_of('mine-3b').model_type)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    assert POINTS
    (tmp_path / "pyproject.toml").write_text(POINTS[1])
    for name, text in FILES.items():
        path = tmp_path / "src/my_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def printed(package: Path, *words: str) -> str:
    path = os.pathsep.join([str(package / "src"), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, *words], cwd=package, env=os.environ | {"PYTHONPATH": path},
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout


def test_the_entry_points_of_the_page_add_what_they_name(package: Path) -> None:
    rung = ("-m", "rung")
    assert "40_my_idea" in printed(package, *rung, "list", "relu")
    assert printed(package, *rung, "hello", "you") == "hello, you\n"
    printed(package, *rung, "export", "relu/40", "--to", "mine", "--output", "made")
    assert (package / "made/name.txt").read_text() == "relu/40_my_idea"
    assert printed(package, "-c", FAMILY) == "mine\n"
