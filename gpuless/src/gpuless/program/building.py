"""Builds CUDA programs by NVIDIA's nvcc, and keeps what it made: by the options, and all files that were read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuless.base import disk_cache
from gpuless.base.errors import CompileError, UserError
from gpuless.facts import gpus
from gpuless.program import nvcc_options, toolkit

SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
_LAMBDA = re.compile(r"\]\s*(?:\([^()]*\)\s*)?__(?:device|host)__")  # which costs the compiler half as much again
_LINKED = ("-Xlinker", "--as-needed", "-lcublas", "-lcublasLt", "-lcurand")  # where a program calls them
_ERROR = re.compile(
    r"^(?P<file>[^\s(:][^(:\n]*)(?:\((?P<line>\d+)\)|:(?P<other>\d+):\d+): (?:fatal )?error ?:? ?(?P<text>.*)", re.M
)
_LACKING = re.compile(r"fatal error: (\S+): No such file or directory")
_KEPT = 200  # programs
_OUTSIDE = ("/usr/include/", "/usr/lib/")  # the compiler's own headers: its version is part of the key


@dataclass(frozen=True)
class Options:
    """How a program's files are compiled."""

    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()  # NAME or NAME=VALUE
    standard: str = ""  # nvcc's own
    more: tuple[str, ...] = ()  # for nvcc as they are
    gpu: str = gpus.USUAL
    arch: str = ""  # the GPU's if empty

    def words(self) -> list[str]:
        """nvcc's options."""
        named = [*(f"-I{folder}" for folder in self.include), *(f"-D{name}" for name in self.defines)]
        return [*named, *([f"-std={self.standard}"] if self.standard else []), *self.more]


def errors_in(said: str) -> list[dict[str, Any]]:
    """The errors that nvcc and g++ print, with their places, as findings."""
    return [
        {"kind": "compile", "text": m["text"], "place": {"file": m["file"], "line": int(m["line"] or m["other"])}}
        for m in _ERROR.finditer(said)
    ]


NATIVE = "native"  # in a GPU's place: the one of this machine
OLDEST = 80  # whose machine code is executed


def compiling(gpu: str, arch: str = "") -> dict[str, str]:
    """What nvcc's wrapper reads: `arch`, or the GPU's architecture."""
    if arch or gpu == NATIVE:
        return {"GPULESS_ARCH": arch or NATIVE}
    arch = gpus.find(gpu).arch
    if int(arch.removeprefix("sm_")) < OLDEST:
        raise UserError(f"{gpu} executes code of {arch}, which is not modelled; from sm_{OLDEST} on it is.")
    return {"GPULESS_ARCH": arch}


def program(files: Sequence[Path], options: Options, say: Callable[[str], None] = lambda _: None) -> Path:
    """The program of these files, from the cache where nothing that it read has changed."""
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is not a file.")
    words = [*options.words(), *(str(file) for file in files)]
    if any(_LAMBDA.search(file.read_text(errors="replace")) for file in files):
        words.append("-extended-lambda")
    if not toolkit.is_made():
        say("compiling the GPU in software itself, once on this machine")
    folder = toolkit.folder()
    arch = compiling(options.gpu, options.arch)
    own = [str(folder), str(Path.cwd()), arch, os.environ.get("NVCC_APPEND_FLAGS"), *words]
    where = disk_cache.folder("programs")
    request = where / (hashlib.sha256(json.dumps(own).encode()).hexdigest()[:32] + ".json")
    if found := _found(request):
        return found
    say("compiling " + " ".join(file.name for file in files))
    with tempfile.TemporaryDirectory(dir=where, prefix=".") as work:
        made = Path(work) / files[0].stem
        _compile(words, made, options, one=len(files) == 1)
        read = sorted({name for file in Path(work).glob("*.d") for name in _dependencies(file)})
        digests = {name: _digest(name) for name in read if not name.startswith((*_OUTSIDE, str(folder)))}
        digests = {name: digest for name, digest in digests.items() if "/nvidia/cu13/" not in name}
        home = where / hashlib.sha256(json.dumps([own, digests]).encode()).hexdigest()[:32]
        home.mkdir(exist_ok=True)
        target = home / made.name
        made.replace(target)
        fresh = Path(work) / "request"
        fresh.write_text(json.dumps({"program": str(target), "read": digests}))
        fresh.replace(request)
    _tidy(where)
    return target


def _found(request: Path) -> Path | None:
    try:
        note = json.loads(request.read_text())
        if all(_digest(name) == digest for name, digest in note["read"].items()):
            target = Path(note["program"])
            if target.is_file():
                request.touch()
                return target
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _compile(words: Sequence[str], target: Path, options: Options, *, one: bool) -> None:
    """Files may call each other's device functions, and lambdas be in headers: then they are compiled anew so."""
    toolkit.require_compiler()
    environment = os.environ | compiling(options.gpu, options.arch)
    folder = str(toolkit.folder())
    extra = ["-MD", "-MF", f"{target}.d"] if one else []

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        given = nvcc_options.translated([*words, "-o", str(target), *more, *_LINKED], folder, environment)
        command = [f"{folder}/compiler/nvcc", *given]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)

    result = call(*extra, *([] if nvcc_options.relocatable(words) else ["-nodlink"]))
    for lacks, more in (("extended-lambda", "-extended-lambda"), ("Unresolved extern", "-rdc=true")):
        if result.returncode and lacks in result.stdout + result.stderr:
            result = call(*extra, more)
    if result.returncode:
        said = result.stdout + result.stderr
        if lacking := _LACKING.search(said):
            said += f"{lacking[1]} is not there: name its folder with -I."
        raise CompileError(said.strip() or f"nvcc ends with {result.returncode}")
    if not one:
        _write_dependencies(words, target, environment)


def _write_dependencies(words: Sequence[str], target: Path, environment: dict[str, str]) -> None:
    for number, word in enumerate(words):
        if word.endswith(SOURCES):
            options = [other for other in words if not other.endswith(SOURCES)]
            command = [str(toolkit.compiler()), *options, "-M", word, "-o", f"{target}{number}.d"]
            subprocess.run(command, capture_output=True, env=environment, check=False)


def _dependencies(file: Path) -> list[str]:
    """The files of a rule of make."""
    text = file.read_text(errors="replace").replace("\\\n", " ")
    _, _, names = text.partition(":")
    return [os.path.realpath(name.replace("\\ ", " ")) for name in names.split() if name]


@functools.lru_cache(maxsize=4096)
def _read(name: str, size: int, changed: int) -> str:
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def _digest(name: str) -> str:
    try:
        found = Path(name).stat()
    except OSError:
        return ""
    return _read(name, found.st_size, found.st_mtime_ns)


def _tidy(where: Path) -> None:
    """Removes the programs that have not been asked for longest."""
    requests = sorted(where.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in requests[:-_KEPT]:
        try:
            home = Path(json.loads(path.read_text())["program"]).parent
        except (OSError, ValueError, KeyError):
            continue
        path.unlink(missing_ok=True)
        if home.parent == where:
            shutil.rmtree(home, ignore_errors=True)
