"""Does a rung's text have different code for a GPU and for the emulator? Decided from its preprocessor conditions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rung.cuda.source import without_comments

_CONDITION = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:if|ifdef|ifndef|elif|elifdef|elifndef)\b([^\n]*)", re.MULTILINE)
# Blocks that only include a header of CUDA's, which one of the compilers provides by itself.
_INCLUDES = re.compile(
    r"^[ \t]*#[ \t]*if[^\n]*\n(?:[ \t]*(?:#[ \t]*(?:include|else|pragma)\b[^\n]*)?\n)*[ \t]*#[ \t]*endif[^\n]*",
    re.MULTILINE,
)
_RESERVED = re.compile(r"\b(?:__\w+|_[A-Z]\w*|linux|unix|i386)\b")  # such names are the compilers' own
_ALIKE = re.compile(r"__CUDA_ARCH__|__CUDACC__|__cplusplus|__USE_FAST_MATH__")
_RUNTIME = Path(__file__).parents[1] / "emulator" / "include" / "rung_emulator" / "runtime.h"
# A long double has the size of a double on a GPU.
_NAMED = re.compile(r"\blong\s+double\b|\bRUNG_EMULATOR\b|\brung_emulator\b|\bRUNG_\s*(?:,|##)|##\s*EMULATOR\b")


@cache
def _checks() -> re.Pattern[str]:
    """The functions of the emulator's own checks, and what disables them."""
    calls = "|".join(sorted(set(re.findall(r"\b(rung_\w+)\(", _RUNTIME.read_text(encoding="utf-8")))))
    return re.compile(
        rf"\b(?:{calls})\s*\(|\b__(?:tsan|ubsan|asan|sanitizer)_\w+|\b(?:__)?(?:no_)?sanitize\w*|\b_Pragma\b|"
        r"#\s*pragma\s+(?:GCC|clang)\b|"
        r"\b__attribute__\s*\(\(\s*(?:__)?(?:optimize|constructor|destructor|alias|ifunc)"
    )


def differs(text: str) -> bool:
    """Whether it names the emulator or its checks, or tests a macro that g++ defines and NVRTC does not."""
    text = without_comments(re.sub(r"\\[ \t]*\n", " ", text))
    if _NAMED.search(text) or _checks().search(text):
        return True
    conditions = _CONDITION.findall(_INCLUDES.sub("", text))
    return any(not _ALIKE.fullmatch(name) for condition in conditions for name in _RESERVED.findall(condition))
