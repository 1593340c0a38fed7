"""Proposes what the parameters of a host function that launches kernels are; its launches are those that it makes."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.adopt.host_launches import Written, launches_in
from rung.adopt.operands import alone, binds, fixed, told, unknown
from rung.errors import RungError
from rung.operation import Operation
from rung.rungs.launcher import HostFunction, host_functions, plain_name

MOST = 24  # bindings of a function that are tried


def launching(source: str, path: Path) -> dict[str, HostFunction]:
    """The functions of a file that launch kernels on memory which they are given, those that launch most first."""
    functions = {n: f for n, f in host_functions(source, path).items() if n != "main" and "<<<" in f.text}
    return dict(sorted(functions.items(), key=lambda one: -one[1].text.count("<<<")))


def kernels_of(function: HostFunction) -> list[str]:
    return list(dict.fromkeys(w.kernel for w in launches_in(function.text, {})))


def propose(
    of: Operation, source: str, path: Path, call: str, function: HostFunction, given: Mapping[str, str] | None = None,
    needs: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """What a host function's parameters may be, the likeliest first; the first key says whether their names tell it, or
    the user who has given them."""
    unsaid = [p for p in function.parameters if p.name not in (given or {})]
    every = list[tuple[int, dict[str, Any]]]()
    ways = binds(of, function.parameters, Written(call), path, call, body=function.text, given=given)
    for nth, (bound, _) in enumerate(ways):
        rows = alone(of, bound)
        known = "text" if told(of, unsaid, Written(call), bound) else "trial"
        for n, rules in enumerate(fixed(of, source, bound)):  # sizes are oftener others than scalars are
            table = {"adopted": known, "call": call, "bind": dict(bound), "needs": [*rules, *rows, *needs]}
            every.append((nth + 2 * n, table))
    yield from (table for _, table in sorted(every, key=lambda one: one[0]))


def asked(
    of: Operation, source: str, path: Path, patterns: Sequence[str], words: Sequence[str]
) -> Iterator[tuple[str, HostFunction, list[dict[str, Any]]]]:
    """The functions that a user's patterns name, with proposals. `words`: NAME=VALUE of parameters, or conditions."""
    defined = host_functions(source, path)
    given = dict(word.split("=", 1) for word in words if word.partition("=")[0].isidentifier() and "==" not in word)
    needs = [word for word in words if word.partition("=")[0] not in given]
    parameters: set[str] = set()
    for pattern in patterns:
        plain = plain_name(pattern)
        names = [name for name in defined if name == plain or fnmatch.fnmatchcase(name, pattern)]
        if not names:
            listed = ", ".join(name for name in defined if name != "main") or "none"
            raise RungError(f"{path} defines no host function {pattern} that takes pointers; it has {listed}.")
        for name in names:
            one = defined[name]
            parameters |= {p.name for p in one.parameters}
            own = {word: value for word, value in given.items() if word in {p.name for p in one.parameters}}
            call = pattern if name == plain else name
            yield name, one, list(itertools.islice(propose(of, source, path, call, one, own, needs), MOST))
    if unread := given.keys() - parameters:
        raise RungError(f"--with {min(unread)}: no launcher has such a parameter.")


def require_known(of: Operation, path: Path, call: str, function: HostFunction, table: Mapping[str, Any]) -> None:
    """A RungError if the name of a number says nothing, and no trial was right."""
    known = {o.name for o in of.operands}
    for p in function.parameters:
        if unknown(of, p) and table["bind"][p.name] not in known:
            raise RungError(f"{path}: what is {p.ctype} {p.name} of {call}? Say so, as in --with {p.name}=1.")
