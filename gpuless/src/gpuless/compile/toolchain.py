"""Calls g++, and keeps its output on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuless.base import disk_cache, files
from gpuless.base.errors import UserError

HERE = Path(__file__).parents[1]  # of the package

_WHOLE = "whole.json"  # the digests of a cached folder's files
_looked_at: set[tuple[tuple[Path, int, int], ...]] = set()
def available() -> str | None:
    """None where kernels can be emulated, else the reason and the fix."""
    if sys.platform != "linux":
        return f"the emulator runs on Linux, and this is {sys.platform}; use a Linux machine or container."
    if compiler() is None:
        return "the emulator needs g++, and none is on the PATH; install it (Debian, Ubuntu: apt install g++)."
    version = compiler_version()
    if version is None:
        return f"{compiler()} does not run; install g++ 9 or newer."
    if version < (9,):
        return f"the emulator needs g++ 9 or newer, and {compiler()} is {'.'.join(map(str, version))}; update it."
    return None


def require() -> str:
    """The compiler, or a UserError that says what to install."""
    problem = available()
    if problem:
        raise UserError(problem[0].upper() + problem[1:])
    found = compiler()
    assert found is not None
    return found


def compiler() -> str | None:
    """$RUNG_CXX, or g++ on the PATH."""
    return _on_path(os.environ.get("RUNG_CXX", "g++"), os.environ.get("PATH"))


@functools.cache
def _on_path(name: str, path: str | None) -> str | None:
    """Searched for once: every kernel that is bound needs it, and searching a long PATH takes longer than the rest of
    binding."""
    return shutil.which(name, path=path)


def compiler_version() -> tuple[int, ...] | None:
    found = compiler()
    return _version(found) if found else None


@functools.cache
def _version(found: str) -> tuple[int, ...] | None:
    try:
        text = subprocess.run([found, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=True)
        return tuple(int(part) for part in text.stdout.split(".")[:3])
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """Half conversions, AVX2, on a CPU that has them; part of every cache key."""
    if platform.machine() != "x86_64":
        return ()
    try:
        cpu = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    words = set(next((line for line in cpu.splitlines() if line.startswith("flags")), "").split())
    return ("-mavx2", "-mf16c", "-mfma") if {"avx2", "f16c", "fma"} <= words else ()


@functools.cache
def sources_digest(*folders: Path) -> str:
    """A digest of the emulator's own files."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key(*parts: object, folders: tuple[Path, ...] = ()) -> str:
    whole = (compiler(), compiler_version(), machine_flags(), sources_digest(*folders), parts)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:32]


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """The complete folder `name` in the cache; `make(folder)` fills one that is absent or incomplete."""
    where = disk_cache.folder("emulator")
    path = where / name
    if _whole(path):
        return path
    try:
        with disk_cache.alone(where, name), tempfile.TemporaryDirectory(dir=where, prefix=".") as work:
            if _whole(path):  # another process has made it meanwhile
                return path
            fresh = Path(work) / name
            fresh.mkdir()
            make(fresh)
            digests = {str(file.relative_to(fresh)): _digest(file) for file in fresh.rglob("*") if file.is_file()}
            (fresh / _WHOLE).write_text(json.dumps(digests))
            if path.exists() and not _whole(path):
                shutil.rmtree(path)
            try:
                fresh.replace(path)
            except OSError:  # a folder that another process has put there meanwhile serves as well
                if not _whole(path):
                    raise
    except OSError as problem:
        raise UserError(
            f"The cache folder {where} cannot be written ({problem.strerror}): set RUNG_CACHE to another."
        ) from problem
    return path


def _whole(path: Path) -> bool:
    """Whether a folder's files are those that were written; files unchanged since the last check are."""
    try:
        every = [path / _WHOLE, *(path / name for name in _digests(path))]
        facts = tuple((file, found.st_size, found.st_mtime_ns) for file in every for found in [file.stat()])
        if facts in _looked_at:
            return True
        digests = _digests(path)
        if any(_digest(path / name) != digest for name, digest in digests.items()):
            return False
        _looked_at.add(facts)
        return True
    except (OSError, ValueError, AttributeError, TypeError, UserError):
        return False


def _digests(path: Path) -> Any:
    return files.read_json(path / _WHOLE, "remove it")


def _digest(path: Path) -> str:
    return hashlib.sha256(files.read_bytes(path)).hexdigest()


def run(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C"}
    return subprocess.run(
        [require(), *arguments], capture_output=True, text=True, cwd=work, env=environment, errors="replace"
    )
