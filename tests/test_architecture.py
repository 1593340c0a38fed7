"""Imports run one way, from the command line down to the dtypes; read from the syntax tree, those in functions and by strings included."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rung"

# From the top: a package may import from those below it, and from none at the same level or above.
ORDER = (
    ("cli",),
    ("serve",),
    ("doctor", "api", "exchange", "learn"),
    ("show",),
    ("sweep",),
    ("profile",),
    ("bench",),
    ("adopt",),
    ("check",),
    ("ops",),
    ("results",),
    ("models",),
    ("rungs",),
    ("cuda",),
    ("quantised",),
    ("explain",),
    ("operation",),
    ("dtypes", "precision", "inputs"),
    ("lines",),
    ("plugins",),
    ("apart",),
    ("arrays", "errors", "lazy", "progress"),
)
_MODULE = re.compile(r"rung(\.[a-z_]+)+")
LEVEL = {room: len(ORDER) - i for i, rooms in enumerate(ORDER) for room in rooms}


def _modules() -> dict[str, Path]:
    return {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = ["rung", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, *, typing_too: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Every import of rung in a file as (module, names), wherever it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    if not typing_too:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rung":
            yield node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rung":
                    yield alias.name, ["api"] if alias.name == "rung" else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            yield node.value, []  # as import_module and `python -m` take it


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_rung_does_not_import_the_documents() -> None:
    """Verbs, ladders and tables of theirs come by entry points."""
    for path in PACKAGE.rglob("*.py"):
        assert "rung_reproduce" not in path.read_text(encoding="utf-8"), path


def test_the_messages_of_gpuless_do_not_send_their_reader_to_rung() -> None:
    """Who has installed gpuless alone has no command of that name; the cache's folder and the repository have it."""
    for path in (ROOT / "gpuless/src").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
                assert not re.search(r"\brung\b", node.value.removeprefix("https://github.com/rung-gpu/rung").removesuffix("rung")), path


def test_no_import_runs_up() -> None:
    up = set()
    for path in PACKAGE.rglob("*.py"):
        room = _room(path)
        if room in ("ladders", "__init__", "__main__"):
            continue
        for module, names in _imports(path):
            for target in [module.split(".")[1]] if "." in module else names:
                if target in LEVEL and target != room and LEVEL[target] >= LEVEL[room]:
                    up.add((str(path.relative_to(PACKAGE)), module))
    assert up == set()


def _edges() -> dict[str, set[str]]:
    """Which modules a module names in its imports, those in functions and for types included."""
    modules = _modules()
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = {
            f"{module}.{one}" if f"{module}.{one}" in modules else module
            for module, names in _imports(path)
            for one in names or [""]
        }
        found[name] = {target for target in targets if target in modules and target != name}
    return found


def _circle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module not in done:
            for target in sorted(edges.get(module, ())):
                if circle := walk(target, [*way, module]):
                    return circle
            done.add(module)
        return []

    return next((circle for module in sorted(edges) if (circle := walk(module, []))), [])


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges = _edges()
    assert {"rung.rungs.catalogue", "rung.models.plan"} <= edges["rung.models.gpu.recorded"]
    assert "rung.cli.console" in edges["rung.cli"]
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _circle(edges) == []


def test_the_batch_stands_below_its_backends() -> None:
    edges = _edges()
    for module in (name for name in edges if name.startswith("rung.models.batching")):
        assert not [t for t in edges[module] if t.startswith(("rung.models.gpu", "rung.models.cpu"))], module


def test_modules_that_are_found_by_name_are_plugins() -> None:
    finding = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and re.match(r"rung\.\w+\.", str(getattr(node.values[0], "value", ""))):
                finding.add(str(path.relative_to(PACKAGE)))
    assert finding == {"cli/__init__.py", "models/family.py"}  # verbs, families


def test_only_its_folder_names_a_family() -> None:
    families = {file.parent.name for file in (PACKAGE / "models").glob("*/family.py")}
    for path in (PACKAGE / "models").rglob("*.py"):
        for module, names in _imports(path):
            named = families & {*module.split("."), *(names if module == "rung.models" else ())}
            assert named <= {path.parent.name}, f"{path} imports {module}"


def test_one_module_finds_rungs() -> None:
    naming = set()
    for path in (PACKAGE / "models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called) in ("catalogue.find", "catalogue.rungs"):
                naming.add(path.name)
    assert naming == {"ladder_plan.py", "operations.py"}  # the first asks for a whole ladder, and names none of its rungs


def test_no_behaviour_of_the_model_hangs_on_the_environment() -> None:
    asking = [
        path.name
        for path in (PACKAGE / "models").rglob("*.py")
        if re.search(r"environ|getenv", path.read_text(encoding="utf-8"))
    ]
    assert sorted(asking) == ["blocks.py", "build.py", "family.py", "hub.py"]  # what Ray, the compiler, families, the hub need


def test_every_room_has_its_level() -> None:
    rooms = {_room(p) for p in PACKAGE.rglob("*.py")} - {"ladders", "__init__", "__main__"}
    assert rooms <= set(LEVEL)


@pytest.mark.parametrize("room", sorted({_room(p) for p in PACKAGE.rglob("*.py")}))
def test_the_map_names_every_room(room: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert room.startswith("__") or f"{room}/" in text or f"{room}.py" in text
