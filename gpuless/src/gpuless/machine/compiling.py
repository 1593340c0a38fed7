"""Compiles the executor of machine code: for a wheel (setup.py, which knows no more of rung than this file), or at
first use. Nothing but the standard library is imported."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
OPCODES = HERE.parent / "facts" / "opcodes.h"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fno-semantic-interposition",  # calls within a file may be inlined
    "-fnon-call-exceptions",  # a signal becomes a fault
)
X86_64 = ("-mavx2", "-mf16c", "-mfma")  # what a wheel's library needs of the processor


@functools.cache
def digest() -> str:
    """Of the sources."""
    found = hashlib.sha256(OPCODES.read_bytes())
    for path in sorted(HERE.iterdir()):
        if path.suffix in (".cpp", ".def", ".h"):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def shipped() -> Path:
    """Where a wheel has the library, if it has one."""
    return HERE / f"machine-{digest()}.so"


def build(compiler: str, target: Path, flags: tuple[str, ...]) -> str:
    """Compiles the library; returns what was wrong, or nothing."""
    sources = sorted(HERE.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        work = Path(folder)

        def called(*words: str) -> str:
            done = subprocess.run([compiler, *words], cwd=work, capture_output=True, text=True, check=False)
            return done.stderr.strip()[:500] or "it ends without a word" if done.returncode else ""

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            told = [*pool.map(lambda path: called(*FLAGS, *flags, "-c", str(path), "-o", f"{path.stem}.o"), sources)]
        told.append(called("-shared", "-s", *flags, *(f"{path.stem}.o" for path in sources), "-o", "machine.so"))
        if not any(told):
            (work / "machine.so").replace(target)
    return next(filter(None, told), "")
