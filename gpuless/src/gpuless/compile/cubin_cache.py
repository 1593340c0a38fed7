"""Compiled code on disk, under a key that covers everything that determines it.

The key holds the source, rung's own files that it includes, macros, options, architecture, compiler and headers.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuless.base import disk_cache
from gpuless.base.errors import UserError
from gpuless.base.files import read_bytes, shown
from gpuless.compile import elf
from gpuless.compile.headers import PRELUDE, STANDARD, Headers
from gpuless.compile.source import included
from gpuless.facts.limits import THREADS_BLOCK
from gpuless.launch import Build, Resources

_FORMAT = "4"  # of the entries


@dataclass(frozen=True)
class Cubin:
    """Compiled code on disk; `lowered` gives each kernel's symbol, mangled for a template."""

    path: Path
    arch: str
    lowered: dict[str, str]
    resources: dict[str, Resources]
    log: str
    key: str = field(default="", compare=False)

    def most_threads(self, kernel: str) -> int:
        """Threads per block that the kernel's __launch_bounds__ allows."""
        stated = elf.most_threads(self.path.read_bytes(), self.lowered[kernel])
        return THREADS_BLOCK if stated is None else stated

    @property
    def spilling(self) -> tuple[str, ...]:
        """Kernels whose registers did not suffice."""
        return tuple(k for k, r in self.resources.items() if r.spill_stores or r.spill_loads)


def includes_of(build: Build) -> Iterator[tuple[str, str]]:
    """(path, text) of rung's own files that the source includes, at any depth; CUDA's headers are left out."""
    folders = [*(Path(f) for f in build.include), STANDARD]
    queue = [(build.source, Path(build.origin).parent)]
    seen: set[tuple[int, int]] = set()  # device and inode
    while queue:
        text, here = queue.pop()
        for name in included(text):
            if name.startswith(("/", "~")) or (name.startswith("..") and not Path(name).suffix):
                raise UserError(f"{build.origin} includes {shown(name)}; name headers relative to the file.")
            for folder in (here, *folders):
                path = folder / name
                try:
                    facts = path.stat()
                except OSError:
                    continue
                if stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode):
                    # The compiler would block on a pipe, or never reach the end of a device.
                    raise UserError(f"{build.origin} includes {path}, which is not a file; correct the #include.")
                if stat.S_ISREG(facts.st_mode):
                    if (file := (facts.st_dev, facts.st_ino)) not in seen:
                        seen.add(file)
                        inner = read_bytes(path).decode(errors="replace")
                        queue.append((inner, path.parent))
                        yield str(path), inner
                    break


def key_of(build: Build, arch: str, headers: Headers, nvrtc: tuple[int, int], includes: dict[str, str]) -> str:
    line_info = any("lineinfo" in option for option in build.options)
    parts = [
        _FORMAT,
        build.source,
        build.origin if line_info else "",
        build.kernels,
        build.defines,
        build.options,
        arch,
        sorted((Path(path).name, _digest(text.encode())) for path, text in includes.items()),
        nvrtc,
        # Where CUDA's own headers of a known version lie does not matter: machines may share what they compile.
        [headers.source, headers.folders, headers.version] if headers.given else headers.version,
        PRELUDE.read_text(),
    ]
    return _digest(json.dumps(parts).encode())[:32]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(key: str, build: Build, arch: str) -> Cubin | None:
    """The cached cubin, or None when it is absent or damaged."""
    found = disk_cache.find_shared("cubin", key)
    try:
        note = found.note if found else {}
        if found is None or set(note["lowered"]) != set(build.kernels):
            return None
        resources = {k: Resources(**r) for k, r in note["resources"].items()}
        return Cubin(found.path, arch, note["lowered"], resources, note["log"], key)
    except (AttributeError, KeyError, TypeError):
        return None


def alone(key: str) -> AbstractContextManager[None]:
    """While one process compiles the entry, others that need it wait."""
    return disk_cache.alone(disk_cache.folder("cubin"), key)


def write(
    key: str, code: bytes, arch: str, lowered: dict[str, str], resources: dict[str, Resources], log: str
) -> Cubin:
    note = {"lowered": lowered, "resources": {k: asdict(r) for k, r in resources.items()}, "log": log}

    def make(work: Path) -> tuple[Path, dict[str, object]]:
        (work / "code.cubin").write_bytes(code)
        return work / "code.cubin", note

    return Cubin(disk_cache.kept("cubin", key, make, anew=True).path, arch, lowered, resources, log, key)
