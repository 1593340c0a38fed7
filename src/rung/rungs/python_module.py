"""Reads a `.py` rung: its metadata without running it, and the module itself to run it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import sys
import tokenize
from collections.abc import Collection
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rung.errors import RungError
from rung.files import read_bytes, read_text
from rung.rungs.header import Header, of_constants


@dataclass(frozen=True)
class Facts:
    """The metadata of a Python rung."""

    source: str
    header: Header
    parameters: dict[str, bool]  # of run(): name -> required
    triton: bool
    entry: str = "run"  # the function that is called; another than run returns its results
    flat: frozenset[str] = frozenset()  # those operands whose shape it takes as rows and columns


def read_facts(path: Path, operands: Collection[str] = (), names: Collection[str] = ()) -> Facts:
    """The metadata of the rung at `path`, read from its syntax tree so that listing imports nothing. Without a function
    run, the function that takes operands by name (and `names` of sizes) and returns the results is called."""
    try:
        source = read_text(path)
        if tokenize.detect_encoding(io.BytesIO(path.read_bytes()).readline)[0] not in ("utf-8", "utf-8-sig"):
            raise RungError(f"{path} declares another encoding than UTF-8; Python would read another text from it.")
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise RungError(f"{path}, line {error.lineno}: {error.msg}.") from None
    except ValueError as error:  # a byte that cannot occur in sources
        raise RungError(f"{path} is not Python: {error}.") from None
    except (RecursionError, MemoryError):
        raise RungError(f"{path} nests too deeply for Python; write it in shorter expressions.") from None
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    run = next((n for n in functions if n.name == "run"), None)
    entry = run or _by_operands(functions, operands, names)
    if entry is None:
        wanted = ", ".join(operands) or "<operands by name>"
        raise RungError(
            f"{path} has no function run, and none that takes only operands by name ({wanted}); define run({wanted})."
        )
    doc = ast.get_docstring(tree) or f"{entry.name} of {path.name}."
    return Facts(
        source=source,
        header=of_constants(_constants(tree), " ".join(doc.split()), str(path)),
        parameters=_parameters(entry),
        triton=any("triton" in _imported(n) for n in tree.body),
        entry=entry.name,
        flat=frozenset() if entry is run else _unpacked(entry),
    )


def _by_operands(
    functions: list[ast.FunctionDef], operands: Collection[str], names: Collection[str]
) -> ast.FunctionDef | None:
    """The last plain function that takes at least one operand and requires nothing else than operands and sizes."""
    for function in reversed(functions):
        if function.decorator_list:
            continue
        required = {name for name, needed in _parameters(function).items() if needed}
        if required & set(operands) and required <= {*operands, *names}:
            return function
    return None


def _unpacked(function: ast.FunctionDef) -> frozenset[str]:
    """The names whose shape is unpacked into two, as in `n_rows, n_cols = x.shape`."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and len(node.targets[0].elts) == 2:
            value = node.value
            if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
                found.add(value.value.id)
    return frozenset(found)


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
_emulated = False  # whether the module being executed is to see a GPU that is not there


def beside(path: str, name: str) -> ModuleType:
    """The module `name` next to the rung at `path`, for a rung that changes a part of it and is being imported."""
    return load(Path(path).with_name(name), emulated=_emulated)


def load(path: Path, *, emulated: bool = False) -> ModuleType:
    """The module at `path`; with `emulated`, its kernels are compiled for a GPU that is not there."""
    try:
        text = read_bytes(path)
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror}.") from None
    digest = hashlib.sha256(text).hexdigest()[:12]
    key = (str(path.resolve()), digest, emulated)
    if key not in _loaded:
        global _emulated
        before, _emulated = _emulated, emulated
        try:
            if emulated and b"triton" in text:
                from rung.emulator import triton

                with triton.enabled():
                    _loaded[key] = _execute(path, f"rung_file_{digest}_emulated")
            else:
                name = f"rung_file_{digest}" + ("_emulated" if emulated else "")
                _loaded[key] = _execute(path, name)
        finally:
            _emulated = before
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
