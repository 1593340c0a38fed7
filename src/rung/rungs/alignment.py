"""Alignment of a kernel's operands, so that a view at an odd offset is refused instead of causing a fault.

Vector loads take 16 bytes from a multiple of 16. torch allocates so, but x[1:] of float32 starts 4 bytes further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from rung.lazy import torch

VECTOR = 16
_SHARED_BY_ALL = "rung.cuh"  # it defines vector loads; a rung that names none of them has none
_VECTORS = re.compile(
    r"\b(?:u?(?:char|short|int|long|longlong|float|double)[24]|(?:__)?(?:half|nv_bfloat16)2|__nv_bfloat162"
    r"|Vec(?:16)?|load_vec|store_vec|cp_async_16|load_no_allocate|TensorMap)\b|cp\.async|\.v[24]\."
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def of_source(source: str, folders: Iterable[Path]) -> int:
    """16 if the code, or one of its own headers, uses vectors; else 1: any element's address is valid."""
    texts, seen, places = [source], {_SHARED_BY_ALL}, list(folders)
    for text in texts:  # grows on the way
        if _VECTORS.search(_without_comments(text)):
            return VECTOR
        for name in _INCLUDE.findall(text):
            found = next((p / name for p in places if (p / name).is_file()), None)
            if found is not None and name not in seen:
                seen.add(name)
                texts.append(found.read_text(errors="replace"))
    return 1


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?(?:\*/|\Z)|//[^\n]*", " ", text, flags=re.DOTALL)


def misplaced(tensors: Iterable[tuple[str, torch.Tensor]], multiple: int) -> str | None:
    """The first operand that is not aligned to this many bytes; single numbers may be unaligned."""
    if multiple <= 1:
        return None
    return next((name for name, t in tensors if t.numel() > 1 and t.data_ptr() % multiple), None)
