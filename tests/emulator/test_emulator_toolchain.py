"""g++ and the cache: what happens without a compiler, with a broken one, and with many callers at once."""

from __future__ import annotations

import os
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from emulation import load, needs_compiler
from rung import emulator
from rung.cuda import kept
from rung.cuda.launch import Build, LaunchConfig
from rung.emulator import toolchain
from rung.emulator.translation import translate
from rung.errors import RungError

SOURCE = "__global__ void k(float* out) { out[threadIdx.x] = NUMBER; }"


def test_no_compiler_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emulator.available() == (
        "the emulator needs g++, and none is on the PATH; install it (Debian, Ubuntu: apt install g++)."
    )
    with pytest.raises(RungError, match="The emulator needs g"):
        load(SOURCE, defines=(("NUMBER", "1"),))


def test_a_compiler_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho 7.5.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("RUNG_CXX", str(old))
    assert emulator.available() == f"the emulator needs g++ 9 or newer, and {old} is 7.5.0; update it."


@needs_compiler
def test_a_kernel_is_compiled_once_and_anew_when_anything_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    header = tmp_path / "number.h"
    header.write_text("#define TWICE 2\n")
    source = f'#include "number.h"  // {uuid.uuid4()}\n' + SOURCE.replace("NUMBER", "NUMBER * TWICE")
    compiled: list[str] = []
    run = toolchain.run

    def counted(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
        compiled.extend(a for a in arguments if a == "kernel.cpp")
        return run(arguments, work)

    monkeypatch.setattr(toolchain, "run", counted)

    def result(number: str) -> float:
        module = load(source, defines=(("NUMBER", number),), include=(str(tmp_path),))
        out = torch.zeros(4)
        module.launch("k", LaunchConfig((1, 1, 1), (4, 1, 1)), [("pointer", out)])
        return float(out[3])

    assert result("5") == 10 and result("5") == 10 and len(compiled) == 1
    assert result("6") == 12 and len(compiled) == 2
    header.write_text("#define TWICE 20\n")
    assert result("5") == 100 and len(compiled) == 3


@needs_compiler
def test_many_at_once_share_a_cold_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    build = Build(SOURCE, "test.cu", ("k",), (("NUMBER", "1"),))
    with ThreadPoolExecutor(3) as pool:
        libraries = {str(t.library) for t in pool.map(lambda _: translate(build), range(3))}
    assert len(libraries) == 1 and Path(*libraries).is_file()
    left = sorted(path.name.partition("-")[0] for path in (tmp_path / "emulator").iterdir())
    assert len(left) == 4 and left[-2:] == ["headers", "stand"]  # a library, its entry; nothing half made


@needs_compiler
def test_a_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    with pytest.raises(RungError, match="set RUNG_CACHE to another"):
        load(SOURCE, defines=(("NUMBER", "7"),))


@needs_compiler
def test_macros_of_a_kernel_do_not_reach_the_emulators_headers() -> None:
    names = ("T", "N", "M", "K", "B", "C", "value", "lane", "mask", "data", "count", "size", "Group", "x_", "Site", "F")
    module = load(
        "#include <mma.h>\n#include <cooperative_groups.h>\n#include <cuda_fp16.h>\n"
        + SOURCE.replace("NUMBER", "T + N"),
        defines=tuple((name, str(i)) for i, name in enumerate(names)),
    )
    out = torch.zeros(1)
    module.launch("k", LaunchConfig((1, 1, 1), (1, 1, 1)), [("pointer", out)])
    assert out.item() == 1


def module_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNG_CACHE", str(folder))
    return translate(Build(SOURCE, "test.cu", ("k",), (("NUMBER", "3"),))).library


@needs_compiler
def test_a_damaged_entry_heals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = module_from(tmp_path, monkeypatch)
    whole = library.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], whole[:-1] + b"x"):
        library.write_bytes(damage)
        assert module_from(tmp_path, monkeypatch).read_bytes() == whole
    for entry in (tmp_path / "emulator").glob("*.json"):
        entry.write_text("{")
    assert module_from(tmp_path, monkeypatch).read_bytes() == whole
    precompiled = next((tmp_path / "emulator").glob("headers-*/*.gch"))
    precompiled.write_bytes(precompiled.read_bytes()[:100])
    library.unlink()
    assert module_from(tmp_path, monkeypatch).read_bytes() == whole
    header = next((tmp_path / "emulator").glob("stand-ins-*/stdio.h"))
    header.write_text("#error planted\n")  # of the right size or not, it is not what was written
    library.unlink()
    assert module_from(tmp_path, monkeypatch).read_bytes() == whole and header.read_text() == ""


@needs_compiler
def test_a_planted_library_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = module_from(tmp_path, monkeypatch)
    (tmp_path / "emulator").chmod(0o777)
    with pytest.raises(RungError, match="can be written by every user"):
        module_from(tmp_path, monkeypatch)
    (tmp_path / "emulator").chmod(0o755)
    assert module_from(tmp_path, monkeypatch) == library


@needs_compiler
def test_what_killed_compilations_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "emulator"
    (folder / ".work").mkdir(parents=True)
    (folder / ".work" / "kernel.o").write_text("")
    (folder / ".young").mkdir()
    os.utime(folder / ".work", (0, 0))
    module_from(tmp_path, monkeypatch)
    assert not (folder / ".work").exists() and (folder / ".young").exists()


def test_the_cache_follows_the_users_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNG_CACHE", "~/own")
    assert kept.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("RUNG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kept.cache_folder() == tmp_path / "xdg" / "rung"
