"""What is compiled for trials: a learner's text with tests of what machine code no longer shows.

Masks of warp functions; parities of byte barriers, of which hardware reads one bit; variables without a first value,
for which a compiler may take any, so that a sum comes out right by chance: here they begin as NaN.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from gpuless.compile.source import code_only, until, with_checked_masks
from gpuless.launch import Build

PARITIES = """#line 1 "parities.h"
#include "rung.cuh"
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, decltype(sizeof 0));
__device__ __forceinline__ unsigned checked_parity(unsigned parity)
{
    if (parity > 1) __assertfail("a byte barrier's phase has the parity 0 or 1, and this one is neither", "", 0, "", 1);
    return parity;
}
#define byte_barrier_wait(barrier, parity) byte_barrier_wait(barrier, checked_parity(parity))
"""
UNSET = {  # by type
    "float": "__int_as_float(0x7fffffff)",
    "double": "__longlong_as_double(0x7fffffffffffffffll)",
    "__half": "__ushort_as_half(0x7fff)",
    **dict.fromkeys(("int", "unsigned", "unsigned int", "uint32_t"), "0x5a5a5a5a"),
}
_DECLARES = re.compile(rf"(?<=[;{{}}])(\s*)({'|'.join(sorted(UNSET, key=len, reverse=True))})\s+(?=\w)")
_NAME = re.compile(r"\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)")
_TYPE = re.compile(r"\b(?:struct|class|union|enum|namespace)\b[^;{}()]*$")


def checked(build: Build) -> Build:
    """The same code with these tests in it; no line moves."""
    build = with_checked_masks(build)
    source = with_unset_variables(build.source)
    if "byte_barrier_wait" in source:
        source = f'{PARITIES}#line 1 "{build.origin}"\n{source}'
    return replace(build, source=source)


def with_unset_variables(source: str) -> str:
    for at, text in sorted(_insertions(code_only(source)), reverse=True):
        source = source[:at] + text + source[at:]
    return source


def _insertions(code: str) -> Iterator[tuple[int, str]]:
    """Where local variables of these types are declared without a value, what gives them one."""
    for found in _DECLARES.finditer(code):
        if not _in_function(code[: found.start()]):
            continue
        value, at = UNSET[found[2]], found.end()
        statement, behind = until(code, at, ";")
        for part in _parts(statement):
            named = _NAME.fullmatch(part)
            if named and named[2]:
                deep = named[2].count("[")
                names = [named[1], *(f"row{n}_" for n in range(1, deep)), "one_"]
                loops = "".join(f" for (auto& {inner} : {outer})" for outer, inner in itertools.pairwise(names))
                yield behind, f"{loops} one_ = {value};"
            elif named:
                yield at + len(part.rstrip()), f" = {value}"
            at += len(part) + 1


def _parts(statement: str) -> Iterator[str]:
    """Declarators, at the commas outside of brackets."""
    while statement:
        part, behind = until(statement, 0, ",")
        yield part
        statement = statement[behind:]


def _in_function(before: str) -> bool:
    """Whether what follows lies in braces, the innermost of which are no type's."""
    depth = 0
    for at in range(len(before) - 1, -1, -1):
        depth += (before[at] == "}") - (before[at] == "{")
        if depth < 0:
            return not _TYPE.search(before[:at])
    return False
