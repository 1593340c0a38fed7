"""The identity of the code that a figure belongs to: a digest of a rung's text, and one of its compiled code. The
text's digest needs no compiler. It leaves out comments, layout and descriptive keys, and includes every file that the
rung includes, so that equal digests mean equal code. Where the text differs, the compiled code decides: NVRTC compiles
without a GPU, and the digest covers the machine code of every kernel, the launches and the value of each parameter.
Triton and Python rungs have only a text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuless.base.expressions import Number, evaluate
from gpuless.base.files import read_text
from gpuless.compile.elf import sections
from gpuless.compile.source import included, without_comments
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.rungs import header
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

# Descriptive keys, the limiting rate, and conditions on calls: these do not change the code.
LEFT_OUT = {*header.DESCRIPTIVE, "products", "needs", "align", "emulate", "tune", "formats", "model"}
CONSTANTS = {name.upper() for name in LEFT_OUT}
_SPACE = re.compile(r"(?<=\w) (?!\w)|(?<!\w) (?=\w)|(?<![\w+&<>-]) (?!\w)")  # whitespace that separates nothing


def text(rung: Rung) -> str:
    """The digest of a rung's text and of every file that it includes or names."""
    parts = [own_text(rung), *(_digest(_python(one.text)) for one in rung.imported)]
    if rung.path is not None:
        parts += sorted(_digest_of(path, path.stat().st_mtime_ns) for path in files(rung))
    return _digest("\n".join(parts))


def own_text(rung: Rung) -> str:
    """The digest of the rung's own file, and of what its header inherits."""
    if isinstance(rung, CudaRung):
        keys = {name: value for name, value in rung.table.items() if name not in LEFT_OUT}
        return _digest(json.dumps(keys, sort_keys=True) + _code(rung.source))
    return _digest(_python(rung.source) if rung.path else rung.source)


def code(
    rung: Rung,
    values: Mapping[str, Number],
    dtype: str,
    tuning: Mapping[str, int] | None = None,
    arch: str = "sm_90",
    *,
    again: bool = False,
) -> str:
    """Compiler, architecture and digest of the code at this shape; empty for a rung that is not CUDA C++. `again`
    compiles even if it is cached."""
    if not isinstance(rung, CudaRung):
        return ""
    from gpuless.compile import nvrtc

    whole, real = rung.operation.complete(values), dtype_named(dtype)
    build = rung.build(whole, real, tuning)
    cubin = nvrtc.compile_cubin(build, arch, again=again)
    names, h = rung.names(whole, real, tuning), rung.header
    launches = [
        (kernel, {name: value for name, value in asdict(config).items() if value})
        for kernel, config in rung.launches(whole, real, tuning, emulated=False)
    ]
    bound = [
        (p.ctype, p.pointer, _value(entry.bind.get(p.name, h.bind.get(p.name, p.name)), names))
        for entry in h.launches
        for p in rung.parameters[entry.kernel]
    ]
    buffers = [
        (name, [_value(size, names) for size in b.shape], b.dtype, b.zero, b.zero_once, *([b.fill] if b.fill else []))
        for name, b in sorted(h.buffers.items())
    ]
    maps = [(name, repr(entry)) for name, entry in sorted(h.maps.items())]
    described = (launches, bound, sorted(h.constants.items()), buffers, maps, *([h.zeroed] if h.zeroed else []))
    folders = sorted({str(Path(build.origin).parent), *build.include}, key=len, reverse=True)
    parts = []
    for name, found in sorted(machine_code(cubin.path.read_bytes()).items()):
        for folder in folders:  # an assertion contains the path of its file
            found = found.replace(folder.encode(), b"")
        parts.append(f"{name} {_digest(found)}")
    major, minor = nvrtc.version()
    return f"nvrtc{major}.{minor}-{cubin.arch}:{_digest(repr(described) + repr(parts))}"


def _value(expression: str | int | float, names: Mapping[str, Number]) -> object:
    """An expression's value, so that its spelling does not matter; the name of an operand or a loop's variable is
    kept."""
    if not isinstance(expression, str):
        return expression
    try:
        return evaluate(expression, names)
    except RungError:
        return expression


def machine_code(elf: bytes) -> dict[str, bytes]:
    """Instructions, constants and initialised memory of a cubin; other sections depend on names in the source."""
    kept = (".text.", ".nv.constant", ".nv.global.init", ".rodata")
    return {s.name: s.data for s in sections(elf) if s.name.startswith(kept) and s.kind != _NO_BITS}


_NO_BITS = 8  # a section without bytes in the file


def files(rung: Rung) -> Iterator[Path]:
    """The files that a rung includes or names, at any depth; CUDA's own are not among them."""
    assert rung.path is not None
    include = rung.path.parent.parent / "include"
    shared = include if include.is_dir() else Path(__file__).parents[1] / "ladders" / "include"
    queue, seen = [rung.path], {rung.path.resolve()}
    while queue:
        origin = queue.pop(0)
        for found in _files_named(origin, origin.stat().st_mtime_ns, shared, rung.path.parent.parent):
            if found not in seen:
                seen.add(found)
                queue.append(found)
                yield found


def texts(rung: Rung, chosen: Callable[[Path], bool] = lambda path: True) -> list[str]:
    """A rung's own text, and those of the chosen among the files that it includes or names."""
    return [rung.source, *(read_text(path) for path in files(rung) if chosen(path))]


@lru_cache(maxsize=1024)  # most rungs share the same few headers
def _files_named(origin: Path, changed: int, shared: Path, ladders: Path) -> tuple[Path, ...]:
    """The files that this one includes or names."""
    places = ((origin.parent / n, shared / n, ladders / f"{n}.cu") for n in _names(origin, read_text(origin)))
    found = (next((p for p in some if p.suffix in (".cu", ".cuh", ".py") and p.is_file()), None) for some in places)
    return tuple(path.resolve() for path in found if path is not None)


@lru_cache(maxsize=1024)
def _digest_of(path: Path, changed: int) -> str:
    return _digest((_python if path.suffix == ".py" else _code)(read_text(path)))


def _names(path: Path, source: str) -> list[str]:
    if path.suffix != ".py":
        return list(included(source))
    strings = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    written = [s for s in strings if len(s) < 200]
    return [s for s in written if re.fullmatch(r"[\w./]+", s)] + [n for s in written for n in included(s)]


@lru_cache(maxsize=512)
def _code(source: str) -> str:
    """C++ without comments and layout; directives keep their lines."""
    bare = without_comments(source.replace("\\\n", " "))
    lines: list[str] = []
    for line in bare.splitlines():
        even = " ".join(line.split())
        if even.startswith("#") or not lines or lines[-1].startswith("#"):
            lines.append(even)
        elif even:
            lines[-1] = f"{lines[-1]} {even}".strip()
    return "\n".join(_SPACE.sub("", line) for line in lines if line)


@lru_cache(maxsize=512)
def _python(source: str) -> str:
    """Python without comments, layout, docstrings and descriptive constants."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body: list[Any] = getattr(node, "body", [])
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body.pop(0)
    tree.body = [node for node in tree.body if not _tells(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            node.module = ""  # the module of an imported helper does not matter
    return _dump(tree)


def _dump(node: object) -> str:
    """A syntax tree as text that is the same in every version of Python, like `ast.dump` of 3.11.

    Python 3.12 gave functions and classes a list of type parameters, and since 3.13 `ast.dump` leaves out empty lists.
    """
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, getattr(node, name, None)) for name in node._fields if name != "type_params"]
    optional = {name for name, value in fields if value is None and getattr(type(node), name, ...) is None}
    parts = (f"{name}={_dump(value)}" for name, value in fields if name not in optional)
    return f"{type(node).__name__}({', '.join(parts)})"


def _tells(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Name) and t.id in CONSTANTS for t in targets)


def _digest(what: str | bytes) -> str:
    return hashlib.sha256(what.encode() if isinstance(what, str) else what).hexdigest()[:16]
