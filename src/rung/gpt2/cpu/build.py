"""Compiles decode.cpp and its headers for this machine, once, into rung's cache. Imports nothing large.

Compiling takes some seconds, so `begin` starts it and returns; whoever needs the library waits for the rest.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from rung.cuda import kept
from rung.errors import RungError

SOURCE = Path(__file__).with_name("decode.cpp")
# Sums may be reordered, or loops over floats would not become vector code; infinities keep their meaning.
FLAGS = [
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-pthread",
    "-w",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
]
# Compilers hold back 512-bit vectors, for the clock of processors long gone.
WIDE = "-mprefer-vector-width=512"


@dataclass
class Compilation:
    """A library that is there, or being made."""

    library: Path | None
    process: subprocess.Popen[bytes] | None = None
    made: Path | None = None
    key: str = ""

    def wait(self) -> Path | None:
        """The library's path once it is there; None when the compiler could not make it."""
        if self.process is not None and self.made is not None:
            failed = self.process.wait() != 0
            self.process = None
            if failed:
                self.made.unlink(missing_ok=True)
                return None
            try:
                self.library = kept.put(self.made.parent, self.key, self.made).path
            except OSError:  # a full disk
                self.made.unlink(missing_ok=True)
        return self.library

    def abandon(self) -> None:
        """Leave nothing behind when the program ends before anyone waited."""
        if self.process is not None and self.made is not None:
            self.process.terminate()
            self.process.wait()
            self.made.unlink(missing_ok=True)
            self.process = None


_compilation: Compilation | None = None
_tried = False


def begin() -> Compilation | None:
    """Start compiling unless it is done; None without a compiler."""
    global _compilation, _tried
    if not _tried:
        _tried = True
        compiler = os.environ.get("RUNG_CXX") or shutil.which("g++") or shutil.which("clang++")
        _compilation = _begin(compiler) if compiler else None
        if _compilation is not None:
            atexit.register(_compilation.abandon)
    return _compilation


def _begin(compiler: str) -> Compilation | None:
    source = b"".join(file.read_bytes() for file in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))
    flags = [*FLAGS, WIDE] if platform.machine() in ("x86_64", "AMD64") else FLAGS
    identity = "\0".join([compiler, *flags, _processor()]).encode()
    key = hashlib.sha256(source + identity).hexdigest()[:16]
    name = f"decode-{key}"
    try:
        where = kept.folder("native")
    except RungError as problem:
        warnings.warn(f"{problem} Until then text is made by torch.", stacklevel=2)
        return None
    found = kept.find(where, name)
    if found:
        return Compilation(found.path)
    try:
        handle, made = tempfile.mkstemp(dir=where, prefix=f".{name}-", suffix=".so")
        os.close(handle)
        process = subprocess.Popen(
            [compiler, *flags, str(SOURCE), "-o", made], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        for leftover in where.glob(f".{name}-*.so"):
            leftover.unlink(missing_ok=True)
        return None
    return Compilation(None, process, Path(made), name)


def _processor() -> str:
    # -march=native means another thing on another processor, and a home folder may be shared.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
