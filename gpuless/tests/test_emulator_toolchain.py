"""g++ and the cache: what happens without a compiler, with a broken one, and with many callers at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gpuless
from emulation import load, needs_compiler
from gpuless.base import disk_cache
from gpuless.base.errors import UserError

SOURCE = "__global__ void k(float* out) { out[threadIdx.x] = NUMBER; }"


def test_a_compiler_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho 7.5.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("RUNG_CXX", str(old))
    assert gpuless.available() == f"the emulator needs g++ 9 or newer, and {old} is 7.5.0; update it."


def test_many_at_once_share_a_cold_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        libraries = {*pool.map(lambda _: module_from(tmp_path, monkeypatch), range(3))}
    assert len(libraries) == 1 and Path(*libraries).is_file()
    assert len([*(tmp_path / "emulator").iterdir()]) == 2  # a library, its entry; nothing half made


@needs_compiler
def test_a_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set RUNG_CACHE to another"):
        load(SOURCE, defines=(("NUMBER", "7"),))


def module_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNG_CACHE", str(folder))

    def make(work: Path) -> tuple[Path, None]:
        (work / "kernel.so").write_bytes(b"compiled" * 100)
        return work / "kernel.so", None

    return disk_cache.kept("emulator", "module-1", make).path


def test_a_damaged_entry_heals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = module_from(tmp_path, monkeypatch)
    whole = library.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], whole[:-1] + b"x"):
        library.write_bytes(damage)
        assert module_from(tmp_path, monkeypatch).read_bytes() == whole
    for entry in (tmp_path / "emulator").glob("*.json"):
        entry.write_text("{")
    assert module_from(tmp_path, monkeypatch).read_bytes() == whole


def test_a_planted_library_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = module_from(tmp_path, monkeypatch)
    (tmp_path / "emulator").chmod(0o777)
    with pytest.raises(UserError, match="can be written by every user"):
        module_from(tmp_path, monkeypatch)
    (tmp_path / "emulator").chmod(0o755)
    assert module_from(tmp_path, monkeypatch) == library


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
    assert disk_cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("RUNG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert disk_cache.cache_folder() == tmp_path / "xdg" / "rung"
