"""Alignment of a kernel's operands, so that a view at an odd offset is refused instead of causing a fault.

Vector loads take 16 bytes from a multiple of 16. torch's allocations are aligned, but x[1:] of float32 starts 4 bytes
further.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from gpuless.base.files import read_bytes
from gpuless.compile.source import included, without_comments
from rung.arrays import Array, address_of

VECTOR, FRAGMENT = 16, 32  # bytes: for vector loads, and for wmma::load_matrix_sync
_SHARED_BY_ALL = "rung.cuh"  # it defines the vector loads; a rung that uses none of its names has none
_VECTORS = re.compile(
    r"\b(?:u?(?:char|short|int|long|longlong|float|double)[24]|(?:__)?(?:half|nv_bfloat16)2|__nv_bfloat162"
    r"|Vec(?:16)?|load_vec|store_vec|cp_async_16|load_no_allocate|TensorMap)\b|cp\.async|\.v[24]\."
)
_WMMA = re.compile(r"\bwmma\b")
# A class of the file that is aligned to more than its elements is a vector, whatever its name.
_ALIGNED = re.compile(r"\b(?:struct|class|union)\s+(?:alignas|__align__|__builtin_align__)\s*\(")
# A kernel that looks at an operand's address itself takes any: it has a second path.
_TESTED = re.compile(
    r"(?:\(\s*{0}\s*\)\s*\(?\s*\w|reinterpret_cast\s*<\s*{0}\s*>\s*\()[^;{{}}=]{{0,60}}?"
    r"[%&]\s*(?:\w+|\(?sizeof\s*\([^()]*\)[^;{{}}=]{{0,20}}?)\s*\)*\s*[!=]=\s*0".format(
        r"(?:std::)?(?:uintptr_t|size_t|unsigned\s+long(?:\s+long)?|uint64_t)"
    )
)


def of_source(source: str, folders: Iterable[Path]) -> int:
    """32 if the code, or one of its own headers, uses WMMA, 16 if it uses vectors; else 1: any element's address is
    valid."""
    places, seen = list(folders), {_SHARED_BY_ALL}
    most, included_here = _of_text(source)
    waiting = list(included_here)
    while waiting:
        name, *waiting = waiting
        path = next((p / name for p in places if (p / name).is_file()), None)
        if path is not None and name not in seen:
            seen.add(name)
            needed, further = _of_file(path, path.stat().st_mtime_ns)
            most, waiting = max(most, needed), [*waiting, *further]
    return most


def _of_text(text: str) -> tuple[int, tuple[str, ...]]:
    """The alignment that a text needs by itself, and the files that it includes."""
    bare = without_comments(text)
    if _WMMA.search(bare):
        return FRAGMENT, included(text)
    vectors = _VECTORS.search(bare) or _ALIGNED.search(bare)
    return VECTOR if vectors and not _TESTED.search(bare) else 1, included(text)


@lru_cache(maxsize=512)  # most rungs share the same few headers
def _of_file(path: Path, changed: int) -> tuple[int, tuple[str, ...]]:
    return _of_text(read_bytes(path).decode(errors="replace"))


def find_misplaced(tensors: Iterable[tuple[str, Array]], multiple: int) -> str | None:
    """The first operand that is not aligned to this many bytes; single numbers may be unaligned."""
    if multiple <= 1:
        return None
    return next((name for name, t in tensors if math.prod(t.shape) > 1 and address_of(t) % multiple), None)
