"""Compiles decode.cpp and passes.cpp for this machine and a format of weights, once, into rung's cache. Imports
nothing large.

Compilation takes some seconds, so `begin` starts it and returns; the first use of a library waits for the rest. They
are two libraries, since a short prompt needs the first alone.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuless.base import disk_cache
from rung.errors import RungError

DECODE, PASSES = (Path(__file__).with_name(name) for name in ("decode.cpp", "passes.cpp"))
# Bits do not depend on what a compiler decides loop by loop: nothing is reordered, and a product and a sum are rounded
# together only where the code says so.
FLAGS = [
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-pthread",
    "-w",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]
# Compilers avoid 512-bit vectors by default, because they lowered the clock of older processors.
WIDE = "-mprefer-vector-width=512"


@dataclass
class Compilation:
    """A library that exists or is being compiled."""

    library: Path | None
    process: subprocess.Popen[bytes] | None = None
    made: Path | None = None
    key: str = ""

    def wait(self) -> Path | None:
        """The library's path once it is compiled; None if compilation failed."""
        if self.process is not None and self.made is not None:
            failed = self.process.wait() != 0
            self.process = None
            if failed:
                self.made.unlink(missing_ok=True)
                return None
            try:
                self.library = disk_cache.put(self.made.parent, self.key, self.made).path
            except OSError:  # a full disk
                self.made.unlink(missing_ok=True)
        return self.library

    def abandon(self) -> None:
        """Remove temporary files if the program ends before the library was used."""
        if self.process is not None and self.made is not None:
            self.process.terminate()
            self.process.wait()
            self.made.unlink(missing_ok=True)
            self.process = None


BITS = {"float32": 32, "bfloat16": 16, "int8": 8}  # of a weight
DEFAULT = "bfloat16"


@cache
def begin(dtype: str, source: Path = DECODE) -> Compilation | None:
    """Start compiling for weights of this dtype unless it is done; None without a compiler."""
    compiler = os.environ.get("RUNG_CXX") or shutil.which("g++") or shutil.which("clang++")
    wide = [WIDE] if platform.machine() in ("x86_64", "AMD64") else []
    begun = compilation(compiler, [*FLAGS, *wide], dtype, source) if compiler else None
    if begun is not None:
        atexit.register(begun.abandon)
        if begun.process is not None:
            _tell(dtype)
    return begun


@cache
def _tell(dtype: str) -> None:
    print(f"rung: the {dtype} kernels are compiled for this processor, once; it takes some seconds.",
          file=sys.stderr, flush=True)  # fmt: skip


def compilation(compiler: str, flags: list[str], dtype: str, source: Path) -> Compilation | None:
    """The library compiled with these flags, from the cache if it is there; None where nothing can be written."""
    flags = [f"-DRUNG_BITS={BITS[dtype]}", *flags]
    text = b"".join(file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h"))))
    identity = "\0".join([_version(compiler), *flags, _processor()]).encode()
    key = hashlib.sha256(text + identity).hexdigest()[:16]
    name = f"{source.stem}-{key}"
    try:
        where = disk_cache.folder("native")
    except RungError as problem:
        print(f"rung: {problem} Until then text is written through torch.", file=sys.stderr, flush=True)
        return None
    found = disk_cache.find(where, name)
    if found:
        return Compilation(found.path)
    try:
        handle, made = tempfile.mkstemp(dir=where, prefix=f".{name}-", suffix=".so")
        os.close(handle)
        process = subprocess.Popen(
            [compiler, *flags, str(source), "-o", made], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        for leftover in where.glob(f".{name}-*.so"):
            leftover.unlink(missing_ok=True)
        return None
    return Compilation(None, process, Path(made), name)


def _version(compiler: str) -> str:
    """The compiler's file: another version is another file, and to run it would take longer than to look."""
    try:
        facts = Path(compiler).stat()
    except OSError:
        return compiler
    return f"{compiler} {facts.st_size} {facts.st_mtime_ns}"


def _processor() -> str:
    # -march=native depends on the processor, and different machines may share a home folder.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
