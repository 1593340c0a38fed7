"""What a function of a Python file needs of the file, and of other files of its project that it imports. Of a script,
its tests, benchmarks and plots are not executed."""

from __future__ import annotations

import ast
import dis
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from gpuless.base.files import read_text
from rung.errors import RungError

SETTINGS = "triton"  # calls of its functions at the top of a file are settings, and stay
WHOLE = "*"  # a name for all that a module has
PROJECT = ("pyproject.toml", "setup.py", ".git")  # what the folder of a project has; none above it is looked into
FOLDERS = 6  # above a file, at most
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")


@dataclass(frozen=True)
class Imported:
    """A module of a file's own project, and what of its text is executed."""

    path: Path
    package: str  # to which its relative imports belong
    text: str


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Modules that are imported, and which of their names."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            yield from ((alias.name, WHOLE) for alias in n.names)
        elif isinstance(n, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - n.level + 1] if n.level else []
            yield from ((".".join(filter(None, [*above, n.module])), alias.name) for alias in n.names)


class Project:
    """The modules that a file's chosen statements import from its own project, at any depth: as a package of it, or
    from a folder above the file."""

    def __init__(self, path: Path, chosen: ast.Module) -> None:
        levels = [n.level for n in ast.walk(chosen) if isinstance(n, ast.ImportFrom)]
        self._path, self.package, folder = path.resolve(), "", path.resolve().parent
        while (folder / "__init__.py").is_file() or len(self.package.split(".")) < max(levels, default=0):
            self.package = f"{folder.name.replace('.', '_')}.{self.package}".rstrip(".")
            folder = folder.parent
        self._tops = {self.package.partition(".")[0]: folder}
        self._wanted: dict[str, set[str]] = {}
        self._trees: dict[str, tuple[Path, str, ast.Module]] = {}
        self.modules: dict[str, Imported] = {}
        self._read(chosen, self.package)

    def _read(self, tree: ast.Module, package: str) -> None:
        for module, name in imports(tree, package):
            parts = module.split(".")
            if not module or self._found(module) is None:
                continue
            for n in range(1, len(parts)):
                self._want(".".join(parts[:n]), "")
            if name != WHOLE and not self._binds(module, name) and self._found(f"{module}.{name}"):
                self._want(module, "")
                module, name = f"{module}.{name}", WHOLE
            self._want(module, name)

    def _want(self, module: str, name: str) -> None:
        """Another name of a module; what it needs follows."""
        found, wanted = self._found(module), self._wanted.setdefault(module, set())
        if found is None or (module in self.modules and {name, WHOLE} & wanted):
            return
        wanted.add(name)
        tree = found[2] if WHOLE in wanted else reached_from(found[2], *wanted - {""})
        text = text_of(found[1], tree) if wanted != {""} else ""
        package = module if found[0].name == "__init__.py" else module.rpartition(".")[0]
        self.modules[module] = Imported(found[0], package, text)
        self._read(tree if text else ast.Module([], []), package)

    def _binds(self, module: str, name: str) -> bool:
        found = self._found(module)
        return found is not None and any(name in _stored(c) for c in _codes(found[2]))

    def _found(self, module: str) -> tuple[Path, str, ast.Module] | None:
        """The file of a module, its text and tree; a folder's are empty."""
        if module not in self._trees:
            top, *rest = module.split(".")
            if top not in self._tops and (folder := self._folder(top)):
                self._tops[top] = folder
            if top not in self._tops:
                return None
            at = self._tops[top].joinpath(top, *rest)
            path = next((p for p in (at.with_suffix(".py"), at / "__init__.py") if p.is_file()), at / "__init__.py")
            if not path.parent.is_dir():
                return None
            text = read_text(path) if path.is_file() else ""
            try:
                self._trees[module] = path, text, ast.parse(text)
            except (SyntaxError, ValueError) as error:
                raise RungError(f"{path} is not Python: {error}.") from None
        return self._trees[module]

    def _folder(self, top: str) -> Path | None:
        """The folder in which a module lies that the file imports by its whole name."""
        if top in sys.stdlib_module_names or top in ("torch", "triton", "gpuless", "rung"):
            return None
        for folder in itertools.islice(self._path.parents, FOLDERS):
            for place in (folder, folder / "src"):
                if (place / f"{top}.py").is_file() or next((place / top).glob("*.py"), None):
                    return place
            if any((folder / name).exists() for name in PROJECT):
                break
        return None


def reached_from(tree: ast.Module, *entries: str) -> ast.Module:
    """The statements, in their order and with their lines, that bind what `entries` read, and what these read."""
    codes = _codes(tree)
    imported = {n for c, s in zip(codes, tree.body, strict=True) if _imports(s) for n in _stored(c)}
    bound = [
        {*_stored(c), *(n for n in _changed(s) if n not in imported)} for c, s in zip(codes, tree.body, strict=True)
    ]
    last = max((i for i, names in enumerate(bound) if names & {*entries}), default=0)
    before = set().union(*bound[: last + 1])  # a script gives these names new values, for its own use
    bound[last + 1 :] = [
        names - before for names in bound[last + 1 :]
    ]  # a script gives names that it has used new values
    kept = {i for i, s in enumerate(tree.body) if _is_setting(s)}
    wanted = {*entries}.union(*(_loaded(codes[i]) for i in kept))
    while more := {i for i in range(len(codes)) if i not in kept and bound[i] & wanted}:
        kept |= more
        wanted = wanted.union(*(_loaded(codes[i]) for i in more))
    return ast.Module([tree.body[i] for i in sorted(kept)], [])


def text_of(source: str, chosen: ast.Module) -> str:
    """The text of the chosen statements, at the lines that they have in the file."""
    lines = source.split("\n")
    kept = [""] * len(lines)
    for statement in chosen.body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        kept[first - 1 : statement.end_lineno] = lines[first - 1 : statement.end_lineno]
    return "\n".join(kept)


def _codes(tree: ast.Module) -> list[CodeType]:
    return [compile(ast.Module([s], []), "", "exec", dont_inherit=True) for s in tree.body]  # annotations are code


def _stored(code: CodeType) -> Iterator[str]:
    return (i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_NAME", "STORE_GLOBAL", "IMPORT_NAME"))


def _loaded(code: CodeType) -> set[str]:
    inner = [_loaded(c) for c in code.co_consts if isinstance(c, CodeType)]
    return {i.argval for i in dis.get_instructions(code) if i.opname in _READS}.union(*inner)


def _imports(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_setting(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__" or statement.names[0].name == WHOLE
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _root(call.func) == SETTINGS


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names of things that the statement changes: `kernels[1] = ...`, `configs.append(...)`."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield _root(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield _root(node.value.func) if isinstance(node.value.func, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
