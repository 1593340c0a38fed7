"""Reads a `.py` rung: its metadata without running it, and the module itself to run it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpuless.base.files import read_text
from rung.errors import CompileError, RungError
from rung.operation import Operand, Operation
from rung.rungs.header import Header, all_needs, of_constants
from rung.rungs.python_entry import Entry, assigned, callables, entry_of, is_of_triton, kernels_of, parameters, proposed
from rung.rungs.reached import Imported, Project, reached_from, text_of


@dataclass(frozen=True)
class Facts:
    """The metadata of a Python rung."""

    source: str  # what is executed of the file, with its lines
    header: Header
    parameters: dict[str, bool]  # of run(): name -> required
    triton: bool
    entry: Entry | None = None  # what is called in place of a function run
    declared: bool = False  # it says itself what it is for
    package: str = ""  # to which its relative imports belong
    modules: Mapping[str, Imported] = field(default_factory=dict)  # of its own project that it imports
    kernels: Mapping[str, bool] = field(default_factory=dict)  # of Triton in the file -> whether the call reads it


class Unspoken(RungError):
    """A Python file whose names do not say which function is called with what."""


def read_facts(path: Path, operation: Operation | None = None, table: dict[str, Any] | None = None) -> Facts:
    """The metadata of the rung at `path`, read from its syntax tree so that listing imports nothing. Without a function
    run, the function that takes operands by name, or by a usual name, and returns the results is called; then only
    what it needs of the file is executed. `table` is a proposal for a function whose names do not tell."""
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
    run = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"), None)
    if run is not None and operation and not run.args.kwarg:  # a script's own function takes no operands
        run = run if {o.name for o in operation.operands} & {*parameters(run)} else None
    constants = _constants(tree)
    triton = any("triton" in _import(n) for n in tree.body)
    if run is not None:
        doc = " ".join((ast.get_docstring(tree) or f"run of {path.name}.").split())
        project = Project(path, tree)
        header = of_constants(constants, doc, str(path))
        kernels = _reached(tree, run)
        return Facts(source, header, parameters(run), triton, None, True, project.package, project.modules, kernels)
    found = (proposed(tree, operation, table) if table else entry_of(tree, operation)) if operation else None
    if found is None:
        operands = operation.operands if operation else ()
        every, least = (", ".join(o.name for o in some) for some in (operands, _least(operands)))
        others = sorted(OTHERS & set().union(*map(_import, tree.body)))
        why = f"has no function run of operands, and none that takes only operands by name ({every})"
        if others and not triton:
            why = f"is of {others[0]}; of Python rung judges Triton's kernels, and what launches them"
        elif any(isinstance(n, ast.FunctionDef) for n in tree.body) and not [*callables(tree)]:
            why = "has no function that launches its kernels"
        raise Unspoken(f"{path} {why}; define run({least}).")
    chosen = reached_from(tree, found.root)
    text, project = text_of(source, chosen), Project(path, chosen)
    told = "\n".join(_telling(chosen))
    formats = [dtype for word, dtype in _FORMATS.items() if word in told][:1]
    if "tl.dot(" in text and not formats and not _WHOLE.search(text):
        formats = ["tf32"] if operation and any("tf32" in c.dtypes for c in operation.cases) else []  # by default
    spoken, needs = {*constants}, all_needs(constants.get("NEEDS", ()), found.needs)
    constants = {**({"DTYPES": formats} if formats else {}), **constants, "NEEDS": needs}
    if table and "zeroed" in table:
        constants["ZEROED"] = table["zeroed"]
    idea = " ".join((ast.get_docstring(tree) or f"{found.name} of {path.name}.").split())
    header = of_constants(constants, idea, str(path))
    kernels = _reached(tree, found.function)
    called, declared = parameters(found.function), bool({"DTYPES", "NEEDS"} & spoken)
    return Facts(text, header, called, triton, found, declared, project.package, project.modules, kernels)


def _reached(tree: ast.Module, function: ast.FunctionDef) -> dict[str, bool]:
    """The file's kernels, and whether the function's own text leads to them: a class has others for its backward."""
    read = reached_from(tree, *(n.id for n in ast.walk(function) if isinstance(n, ast.Name)))
    return {kernel: kernel in kernels_of(read) for kernel in kernels_of(tree)}


OTHERS = {"numba", "cupy", "pycuda", "jax", "tilelang", "cutlass", "cuda", "warp"}  # that write kernels


def _least(operands: tuple[Operand, ...]) -> list[Operand]:
    """The operands that a function has to take: parts in place of the whole, and none that is optional."""
    wholes = {o.view_of for o in operands}
    return [o for o in operands if not o.optional and (o.name not in wholes or o.role == "out")]


_WHOLE = re.compile(r"input_precision\s*=|allow_tf32\s*=\s*False")
_FORMATS = {"torch.float16": "f16", "tl.float16": "f16", "torch.bfloat16": "bf16", "tl.bfloat16": "bf16"}


def _telling(chosen: ast.Module) -> Iterator[str]:
    """What of a file says the format of its operands: all outside of kernels but conversions of what a function was
    given; in them pointers, what is stored, and factors of a product whose other factor is as it was loaded. Any other
    conversion in a kernel says nothing of operands."""
    for node in chosen.body:
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
        if not is_of_triton(node):
            text = ast.unparse(node)
            given = [a.arg for n in ast.walk(node) if isinstance(n, ast.FunctionDef) for a in n.args.args]
            for call in calls:
                if _is_conversion(call) and ast.unparse(call.func).removesuffix(".to") in given:
                    text = text.replace(ast.unparse(call), "")
            yield text
            continue
        converted = {name: value for name, value in assigned(node) if _is_conversion(value)}
        for call in calls:
            name, factors = ast.unparse(call.func), [converted.get(ast.unparse(a), a) for a in call.args]
            of = [a for a in factors if _is_conversion(a)]
            if name == "tl.pointer_type" or (name == "tl.store" and of) or (name == "tl.dot" and len(of) == 1):
                yield ast.unparse([call, *of][-1])


def _is_conversion(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to"


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


def _import(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return set()


_loaded: dict[tuple[str, str, bool], ModuleType] = {}
# Whether the module being executed is to see a GPU that is not there.
_emulated: ContextVar[bool] = ContextVar("emulated", default=False)


def beside(path: str, name: str) -> ModuleType:
    """The module `name` next to the rung at `path`, for a rung that changes a part of it and is being imported."""
    return load(Path(path).with_name(name), emulated=_emulated.get())


def load(path: Path, facts: Facts | None = None, *, emulated: bool = False) -> ModuleType:
    """The module at `path`, or what the facts say of its text; with `emulated`, its kernels are compiled for a GPU that
    is not there."""
    package, modules = (facts.package, facts.modules) if facts else ("", {})
    texts = [facts.source if facts else read_text(path), *(one.text for one in modules.values())]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    key = (str(path.resolve()), digest, emulated)
    if key not in _loaded:
        before = _emulated.set(emulated)
        sys.meta_path[:] = [_OfProject(modules), *(f for f in sys.meta_path if not isinstance(f, _OfProject))]
        for name in modules:
            sys.modules.pop(name, None)
        name = ".".join(filter(None, [package, f"rung_file_{digest}" + ("_emulated" if emulated else "")]))
        try:
            with _gpu_that_is_not_there() if emulated and any("triton" in text for text in texts) else nullcontext():
                _loaded[key] = _execute(path, name, texts[0])
        finally:
            _emulated.reset(before)
    return _loaded[key]


def _gpu_that_is_not_there() -> AbstractContextManager[None]:
    from rung.cuda import triton

    return triton.enabled()


class _FromText(SourceFileLoader):
    """Compiles a text, whatever compiled code lies beside its file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.text.encode(), self.path)


def _spec(name: str, path: Path, text: str, inner: list[str] | None = None) -> ModuleSpec:
    loader = _FromText(name, str(path), text)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=inner)
    assert spec is not None
    return spec


class _OfProject(MetaPathFinder):
    """Finds the modules of the project to which the file belongs that was loaded last."""

    def __init__(self, modules: Mapping[str, Imported]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        of = self.modules.get(name)
        return None if of is None else _spec(name, of.path, of.text, [] if of.package == name else None)


def _execute(path: Path, name: str, text: str) -> ModuleType:
    spec = _spec(name, path, text)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RungError:
        raise
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError) and error.name == "triton":
            wants = "needs Triton, which is not installed; pip install 'rung[triton]' brings it"
            raise CompileError(f"{os.path.relpath(path)} {wants}.", missing="triton") from None
        where = os.path.relpath(path)
        raise RungError(f"{where} fails when it is imported: {type(error).__name__}: {error}.") from error
    return module
