"""Builds the three wheels into dist/, installs them into an empty environment, and tries them there without a compiler.

python tools/wheels.py             build
python tools/wheels.py --try DIR   then install them into a new environment in DIR, and try them
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).parents[1]
DIST = TOP / "dist"
PACKAGES = ("gpuless", ".", "reproduce")
_COMPILERS = ("g++", "gcc", "cc", "c++", "clang", "clang++", "nvcc", "as", "ld")
_RACY = """
import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device(); device.set_current(); stream = device.create_stream()
code = '''extern "C" __global__ void turn(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}'''
arch = "sm_" + "".join(map(str, device.compute_capability))
kernel = Program(code, "c++", ProgramOptions(arch=arch, lineinfo=True)).compile("cubin").get_kernel("turn")
memory = device.memory_resource.allocate(256, stream=stream)
launch(stream, LaunchConfig(grid=1, block=64), kernel, memory); stream.sync()
"""


def build() -> list[Path]:
    """The wheels of this tree: gpuless with its compiled libraries, the others in Python alone."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            copy = Path(folder) / (package if package != "." else "rung")
            only = shutil.ignore_patterns(
                ".*", "build", "dist", "*.egg-info", "__pycache__", "results", "docs", "tests"
            )
            shutil.copytree(TOP / package, copy, ignore=only if package != "." else _top_only)
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            subprocess.run([*pip, "--wheel-dir", str(DIST), str(copy)], check=True)
    return sorted(DIST.glob("*.whl"))


def _top_only(folder: str, names: list[str]) -> set[str]:
    """Of the repository, what the wheel of rung is made of."""
    if Path(folder) == TOP:
        return set(names) - {"pyproject.toml", "README.md", "LICENSE", "src"}
    return {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}


def attempt(folder: Path) -> None:
    """Installs the wheels into a new environment, and uses them there without a compiler."""
    venv.create(folder / "venv", with_pip=True, clear=True)
    python = folder / "venv/bin/python"
    _install(python, *map(str, DIST.glob("gpuless-*.whl")))
    print(f"gpuless installed: {_size(folder / 'venv') >> 20} MiB, with NVIDIA's wheels")
    bare = _bare(folder)
    environment = {"PATH": f"{python.parent}:{bare}", "HOME": str(folder), "LANG": "C.UTF-8"}

    def run(*words: str, code: int = 0, said: str = "") -> None:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != code or said not in done.stdout + done.stderr:
            raise SystemExit(f"{' '.join(words)} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
        print("works:", *words)

    (folder / "racy.py").write_text(_RACY)
    run("gpuless", "run", "python", "racy.py", code=102, said="racy.py:13")
    _install(python, "pytest")
    (folder / "test_racy.py").write_text("def test_racy():\n    import runpy; runpy.run_path('racy.py')\n")
    run("python", "-m", "pytest", "--gpuless", "test_racy.py", code=1, said="race: kernel 'turn'")
    _install(python, *map(str, DIST.glob("rung-*.whl")), *map(str, DIST.glob("rung_reproduce-*.whl")))
    print(f"all three installed: {_size(folder / 'venv') >> 20} MiB, with torch")
    run("rung", "check", "gelu/1", "--quick", "--dtype", "f32", said="ok      gelu/01_naive")
    run("rung", "learn", said="Threads and memory")
    run("rung", "learn", "1", said="01_index.cu")


def _install(python: Path, *what: str) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--find-links", str(DIST), *what], check=True)


def _bare(folder: Path) -> Path:
    """A folder with the machine's commands but for its compilers."""
    bare = folder / "bin"
    bare.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not re.fullmatch("|".join(rf".*{re.escape(name)}(-\d+)?" for name in _COMPILERS), path.name):
            (bare / path.name).symlink_to(path)
    return bare


def _size(folder: Path) -> int:
    own = ("pip", "setuptools", "pkg_resources")  # the environment's, not the package's
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if not any(part in own for part in path.parts))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", dest="attempt", type=Path, metavar="DIR", help="install them there, and try them")
    parser.add_argument("--built", action="store_true", help="take the wheels that are in dist/")
    options = parser.parse_args(words)
    for wheel in sorted(DIST.glob("*.whl")) if options.built else build():
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    if options.attempt:
        options.attempt.mkdir(parents=True, exist_ok=True)
        attempt(options.attempt.resolve())


if __name__ == "__main__":
    main()
