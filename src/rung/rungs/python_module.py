"""Reads a `.py` rung: its metadata without running it, and the module itself to run it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import sys
import tokenize
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rung.errors import RungError
from rung.files import read_bytes
from rung.rungs import source_file
from rung.rungs.header import Header, of_constants


@dataclass(frozen=True)
class Facts:
    """The metadata of a Python rung."""

    source: str
    header: Header
    parameters: dict[str, bool]  # of run(): name -> required
    triton: bool


def read_facts(path: Path) -> Facts:
    """The metadata of the rung at `path`, read from its syntax tree so that listing imports nothing."""
    try:
        source = source_file.read(path)
        if tokenize.detect_encoding(io.BytesIO(path.read_bytes()).readline)[0] not in ("utf-8", "utf-8-sig"):
            raise RungError(f"{path} declares another encoding than UTF-8; Python would read another text from it.")
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise RungError(f"{path}, line {error.lineno}: {error.msg}.") from None
    except ValueError as error:  # a byte that cannot occur in sources
        raise RungError(f"{path} is not Python: {error}.") from None
    except (RecursionError, MemoryError):
        raise RungError(f"{path} nests too deeply for Python; write it in shorter expressions.") from None
    run = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"), None)
    if run is None:
        raise RungError(f"{path} has no function run; define run(<operands by name>, ...) at its top level.")
    doc = ast.get_docstring(tree)
    if not doc:
        raise RungError(f"{path} has no docstring; begin it with the rung's idea in one sentence.")
    return Facts(
        source=source,
        header=of_constants(_constants(tree), " ".join(doc.split()), str(path)),
        parameters=_parameters(run),
        triton=any("triton" in _imported(n) for n in tree.body),
    )


def _constants(tree: ast.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                try:
                    found[target.id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                except (ValueError, TypeError, RecursionError, MemoryError):
                    continue
    return found


def _parameters(run: ast.FunctionDef) -> dict[str, bool]:
    plain = [*run.args.posonlyargs, *run.args.args]
    required = {a.arg: i < len(plain) - len(run.args.defaults) for i, a in enumerate(plain)}
    keyword = zip(run.args.kwonlyargs, run.args.kw_defaults, strict=True)
    return required | {a.arg: default is None for a, default in keyword}


def _imported(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return set()


_loaded: dict[tuple[str, str, bool], ModuleType] = {}
_interpreted = False  # whether the module being executed was requested with the interpreter


def beside(path: str, name: str) -> ModuleType:
    """The module `name` next to the rung at `path`, for a rung that changes a part of it and is being imported."""
    return load(Path(path).with_name(name), interpret=_interpreted)


def load(path: Path, *, interpret: bool = False) -> ModuleType:
    """The module at `path`; with `interpret`, Triton's kernels in it run in the interpreter."""
    try:
        text = read_bytes(path)
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror}.") from None
    digest = hashlib.sha256(text).hexdigest()[:12]
    key = (str(path.resolve()), digest, interpret)
    if key not in _loaded:
        global _interpreted
        before, _interpreted = _interpreted, interpret
        try:
            if interpret and b"triton" in text:
                from rung.emulator import triton as triton_interpreter

                with triton_interpreter.enabled():
                    _loaded[key] = _execute(path, f"rung_file_{digest}_interpreted")
            else:
                name = f"rung_file_{digest}" + ("_interpreted" if interpret else "")
                _loaded[key] = _execute(path, name)
        finally:
            _interpreted = before
    return _loaded[key]


class _FromText(SourceFileLoader):
    """Compiles the file's text, whatever compiled code lies beside it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromText(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RungError:
        raise
    except Exception as error:
        del sys.modules[name]
        where = os.path.relpath(path)
        raise RungError(f"{where} fails when it is imported: {type(error).__name__}: {error}.") from error
    return module
