"""Where CUDA's own headers come from: NVRTC's bundle, an installed toolkit, or pip wheels. NVRTC includes its headers
only since 13.3. Before that `cuda_fp16.h` and the rest have to be found on disk, in a toolkit or in the runtime, CRT
and CCCL wheels, none of which is complete on its own.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

OVERRIDE = "RUNG_CUDA_INCLUDE"
STANDARD = Path(__file__).parent / "standard"  # the C and C++ headers that kernels include: NVRTC has none
PRELUDE = STANDARD / "prelude.h"
# Headers that a rung may include, and files that they need but that are often missing: no wheel holds them all.
NEEDED = {
    "cuda_fp16.h": ("cuda_fp16.h", "nv/target"),
    "cuda_bf16.h": ("cuda_bf16.h", "nv/target"),
    "mma.h": ("mma.h", "crt/mma.h"),
    "cooperative_groups.h": ("cooperative_groups.h", "cuda/std/type_traits"),
}


@dataclass(frozen=True)
class Headers:
    """Header folders from one source; `bundled` means that NVRTC unpacks its own, and `folders` is empty."""

    source: str
    folders: tuple[str, ...] = ()
    bundled: bool = False
    version: str = ""

    @property
    def given(self) -> bool:
        """Whether the user names them, or their version is unknown."""
        return self.source.startswith(OVERRIDE) or not self.version

    @property
    def missing(self) -> tuple[str, ...]:
        """Headers of `NEEDED` that would not compile from here."""
        if self.bundled:
            return ()
        return tuple(h for h, files in NEEDED.items() if not all(self._holds(f) for f in files))

    def _holds(self, file: str) -> bool:
        return any((Path(folder) / file).is_file() for folder in self.folders)


def find(nvrtc: tuple[int, int]) -> Headers:
    """The best headers for this NVRTC: complete ones first, and of its own major version."""
    variables = ("CUDA_HOME", "CUDA_PATH", "HOME", "PATH")
    return _find(nvrtc, os.environ.get(OVERRIDE, ""), tuple(os.environ.get(v, "") for v in variables))


@functools.cache
def _find(nvrtc: tuple[int, int], override: str, environment: tuple[str, ...]) -> Headers:
    if override:
        given = [Path(p).expanduser() for p in override.split(os.pathsep) if p]
        return _described(f"{OVERRIDE}={override}", tuple(f for p in given for f in _with_cccl(p)))
    if nvrtc >= (13, 3):
        return Headers("bundled with NVRTC", bundled=True, version=f"{nvrtc[0]}.{nvrtc[1]}")
    found = [_described(source, folders) for source, folders in (*_toolkits(), *_wheels())]
    usable = [h for h in found if h.folders and _major(h.version) in (None, nvrtc[0])]
    return min(usable, key=lambda h: len(h.missing), default=Headers("not found"))


@functools.cache
def types(nvrtc: tuple[int, int]) -> Path | None:
    """The folder of the runtime's types, which NVRTC's own bundle lacks."""
    every = [find(nvrtc), *(_described(source, folders) for source, folders in (*_toolkits(), *_wheels()))]
    usable = (Path(folder) for one in every if _major(one.version) == nvrtc[0] for folder in one.folders)
    return next((folder for folder in usable if (folder / "driver_types.h").is_file()), None)


def _toolkits() -> list[tuple[str, tuple[str, ...]]]:
    nvcc = shutil.which("nvcc")
    roots = [
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        str(Path(nvcc).resolve().parents[1]) if nvcc else None,
        "/usr/local/cuda",
        *sorted((str(p) for p in Path("/usr/local").glob("cuda-*")), reverse=True),
    ]
    includes = [Path(root) / "include" for root in dict.fromkeys(roots) if root]
    return [(f"toolkit {p.parent}", _with_cccl(p)) for p in includes if (p / "cuda_fp16.h").is_file()]


def _wheels() -> list[tuple[str, tuple[str, ...]]]:
    spec = importlib.util.find_spec("nvidia")
    out = []
    for place in (spec.submodule_search_locations if spec else None) or ():
        root = Path(place)
        sets = [
            ("cu13", [root / "cu13" / "include"]),
            ("cu12", [root / f"cuda_{part}" / "include" for part in ("runtime", "nvcc", "cccl")]),
        ]
        for name, parts in sets:
            folders = tuple(dict.fromkeys(folder for p in parts if p.is_dir() for folder in _with_cccl(p)))
            if any((Path(f) / "cuda_fp16.h").is_file() for f in folders):
                out.append((f"wheels {root / name if name == 'cu13' else root}", folders))
    return out


def _with_cccl(include: Path) -> tuple[str, ...]:
    """A toolkit 13 keeps `nv/target`, libcu++ and CUB one folder down."""
    return tuple(str(p.resolve()) for p in (include, include / "cccl") if p.is_dir())


def _described(source: str, folders: tuple[str, ...]) -> Headers:
    for folder in folders:
        file = Path(folder) / "cuda.h"
        if file.is_file():
            found = re.search(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", file.read_text(errors="replace"), re.MULTILINE)
            if found:
                number = int(found.group(1))
                return Headers(source, folders, version=f"{number // 1000}.{number % 1000 // 10}")
    return Headers(source, folders)


def _major(version: str) -> int | None:
    return int(version.split(".")[0]) if version else None
