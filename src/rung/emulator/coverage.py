"""Which lines of a kernel ran, and how often, over all launches of a process.

Kernels loaded with `Settings(coverage=True)` count how often each of their basic blocks is entered. A line has as many
turns as the most frequent block on it; a line with 0 was compiled and never reached.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rung.emulator import native
from rung.emulator.module import EmulatedModule
from rung.errors import RungError

_CALL = re.compile(r"^\s*[0-9a-f]+:.*<__sanitizer_cov_trace_pc@plt>\n\s*([0-9a-f]+):", re.MULTILINE)


def lines(module: EmulatedModule) -> dict[Path, dict[int, int]]:
    """By file and line, how often its code has run: the kernel's own file and what it includes."""
    if not module.counting:
        raise RungError("this kernel was not compiled for coverage: load it with Settings(coverage=True).")
    library, base = module.counting[0].path, module.counting[0].base
    returns = [int(found, 16) for found in _CALL.findall(_tool("objdump", "-d", "--no-show-raw-insn", str(library)))]
    runtime = native.runtime()
    found: dict[Path, dict[int, int]] = {}
    places = _tool("addr2line", "-a", "-i", "-e", str(library), *(hex(at - 1) for at in returns))
    index = -1
    for line in places.splitlines():
        if line.startswith("0x"):
            index += 1
            count = runtime.rung_entered(base, returns[index])
            continue
        file, _, number = line.partition(" ")[0].rpartition(":")
        if number.isdigit() and not file.startswith("?"):
            of = found.setdefault(Path(file), {})
            of[int(number)] = max(of.get(int(number), 0), count)
    return found


def merged(parts: list[dict[int, int]]) -> dict[int, int]:
    """The same lines in several builds of one file, as for several cases: counts add up."""
    total: dict[int, int] = {}
    for part in parts:
        for line, count in part.items():
            total[line] = total.get(line, 0) + count
    return total


def _tool(name: str, *arguments: str) -> str:
    try:
        return subprocess.run([name, *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise RungError(f"coverage needs {name}, which cannot be run ({problem}): install binutils.") from None
