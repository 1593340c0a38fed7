"""The command `gpuless run`: CUDA programs compiled by NVIDIA's nvcc, judged while they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuless.program import command, nvcc_options


def gpuless(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuless", *map(str, words)], capture_output=True, text=True)


def test_options_of_builds_are_for_the_gpu_in_software() -> None:
    """A build names its own architectures and runtime; lines are kept, and host code is compiled for its lines."""
    words = ["-gencode", "arch=compute_80,code=sm_80", "--gpu-architecture=sm_70", "-cudart", "static", "-c", "a.cu"]
    made = nvcc_options.translated(words, "/toolkit")
    assert made[:2] == ["-c", "a.cu"]
    assert "-arch=sm_90" in made and not any("80" in word or "70" in word for word in made)
    assert made[made.index("-cudart") + 1] == "shared" and "-lineinfo" in made
    assert "-arch=sm_90a" in nvcc_options.translated(["-gencode=arch=compute_90a,code=sm_90a", "a.cu"], "/toolkit")
    assert nvcc_options.translated(["--version"], "/toolkit") == ["--version"]
    assert "-O1" not in nvcc_options.translated(["-O3", "a.cu"], "/toolkit")
    assert "-lineinfo" not in nvcc_options.translated(["-G", "a.cu"], "/toolkit")


def test_options_stand_before_a_programs_files_or_behind_them() -> None:
    def split(*words: str) -> tuple[bool, list[str], list[str], list[str]]:
        options, nvcc, files, rest = command._split("run", words, "gpuless")
        return options.json, nvcc, files, rest

    files = ["a.cu", "b.cpp"]
    assert split("-O3", *files, "--json", "-I", "inc", "3", "c.cu") == (True, ["-O3", "-I", "inc"], files, ["3", "c.cu"])
    assert split("a.cu", "-size", "--json") == (False, [], ["a.cu"], ["-size", "--json"])
    assert split("--json", "a.cu", "--", "--seed") == (True, [], ["a.cu"], ["--seed"])
    assert split("pytest", "-q", "--json") == (False, [], [], ["pytest", "-q", "--json"])


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    for words, told in (
        (["run", tmp_path / "none.cu"], "is not a file"),
        (["run", "--gpu", "none", "true"], "no GPU"),
        (["run", "--order", "none", "true"], "--order none is not known"),
        (["none"], "gpuless run"),
    ):
        ended = gpuless(*words)
        assert ended.returncode == 2 and told in ended.stderr, ended
