"""What is copied into other projects: the steps of the Action, the templates, the hook, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
TOP = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (TOP / "action.yml").exists(), reason="not in the repository")]


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """An environment with the command `gpuless` of this checkout, and pip that has nothing left to do."""
    (tmp_path / "bin").mkdir()
    for name, text in (("gpuless", f'exec {sys.executable} -m gpuless "$@"'), ("pip", "exit 0")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


def steps_run(folder: Path, environment: dict[str, str], **given: str) -> int:
    """Runs the steps of action.yml that are scripts, with these inputs: the exit code of the first that fails."""
    action: dict[str, Any] = yaml.safe_load((TOP / "action.yml").read_text())
    inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()} | given
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        filled = {k: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: inputs[m[1]], v) for k, v in step["env"].items()}
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        more = {"GITHUB_ACTIONS": "true"}
        if code := subprocess.run(words, cwd=folder, env=environment | more | filled, capture_output=True).returncode:
            return code
    return 0


@pytest.mark.skipif(not shutil.which("ctest"), reason="needs CMake")
def test_the_action_runs_a_project_of_cmake(tmp_path: Path, commands: dict[str, str]) -> None:
    project = shutil.copytree(TOP / "templates/cmake", tmp_path / "project")
    assert steps_run(project, commands, run="./test.sh") == 0
    told = (project / "gpuless-reports/device.info").read_text()
    assert "DA:7,1024" in told and "BRDA:7,0,0,24" in told  # the tail of the last block
    source = project / "scale_test.cu"
    source.write_text(source.read_text().replace("if (i < n) ", ""))
    assert steps_run(project, commands, run="./test.sh", reports="two") != 0
    results = json.loads((project / "two/gpuless.sarif").read_text())["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["bounds"]
    (project / "known.toml").write_text('[[suppress]]\nkind = "bounds"\nreason = "the tail is padded"\n')
    assert steps_run(project, commands, run="./test.sh || true", suppress="known.toml") == 0


def test_the_template_of_pytest_passes(tmp_path: Path, commands: dict[str, str]) -> None:
    from test_pytest_plugin import NAMED

    project = shutil.copytree(TOP / "templates/pytest", tmp_path / "project")
    words = [sys.executable, "-m", "pytest", *NAMED, "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(words, cwd=project, env=commands, capture_output=True, text=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_the_hook_fails_for_a_racy_file(tmp_path: Path, commands: dict[str, str]) -> None:
    (hook,) = yaml.safe_load((TOP / ".pre-commit-hooks.yaml").read_text())
    shutil.copy(TOP / "templates/cmake/scale_test.cu", tmp_path / "right.cu")
    (tmp_path / "kernel.cu").write_text("__global__ void nothing() {}\n")
    racy = (tmp_path / "right.cu").read_text().replace("x[i] *= by", "x[i / 2] *= by")
    (tmp_path / "racy.cu").write_text(racy)
    import shlex

    def code(*files: str) -> int:
        return subprocess.run(
            [*shlex.split(hook["entry"]), *files], cwd=tmp_path, env=commands, capture_output=True
        ).returncode

    assert re.search(hook["files"], "racy.cu") and code("kernel.cu", "right.cu") == 0
    assert code("right.cu", "racy.cu") == 102
