"""The sdist builds a wheel that works where nothing of the repository is at hand."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("src", "gpuless", "pyproject.toml", "README.md", "LICENSE")


@pytest.mark.slow
def test_an_sdist_and_its_wheel_check_a_rung_in_an_empty_environment(tmp_path: Path) -> None:
    tree, home, env = tmp_path / "tree", tmp_path / "home", tmp_path / "env"
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
        tree.mkdir(exist_ok=True)
        copy(ROOT / part, tree / part)  # type: ignore[operator]
    for left in tree.rglob("__pycache__"):
        shutil.rmtree(left)
    home.mkdir()
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RUNG_LADDERS")}

    def run(*words: str | Path, cwd: Path = home) -> str:
        ran = subprocess.run(list(map(str, words)), cwd=cwd, env=outside, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        return ran.stdout

    run(sys.executable, "-m", "venv", env)
    python = env / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "setuptools>=77")
    for package in (tree / "gpuless", tree):
        run(python, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(home)!r})", cwd=package)
    shutil.rmtree(tree)
    for sdist in sorted(home.glob("*.tar.gz")):
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", sdist)
    libraries = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (libraries / "reused.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch and the rest, not rung
    assert str(libraries) in run(python, "-c", "import rung; print(rung.__file__)")
    there = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "lib"  # which is found in one's own packages only
    outside |= {"LD_LIBRARY_PATH": str(there)}
    outside |= {"RUNG_CXX": "no-compiler", "RUNG_CACHE": str(home / "cache")}  # the wheel has the compiled executor
    output = run(env / "bin" / "rung", "check", "gelu", "--quick", "--dtype", "f32", "--device", "emulator")
    assert "gelu/01_naive" in output and "failed" not in output and " ok on CPU emulator" in output
    assert "instructions" in run(env / "bin" / "rung", "count", "relu/1")
    del outside["RUNG_CXX"]
    assert run(env / "bin" / "rung", "generate", "Once", "-n", "3", "--temperature", "0", "--device", "cpu").strip()
