"""Imports of this package run one way, and what it adds to rung is found without being installed."""

import ast
from pathlib import Path

from rung import plugins
from rung.operation import rung_folders
from rung.rungs import catalogue

PACKAGE = Path(__file__).parents[1] / "src" / "rung_reproduce"
# From the top: a room may import from those below it.
ORDER = (
    ("cli",),
    ("measure",),
    ("sweeps", "studies"),
    ("climbs",),
    ("show",),
    ("parallel",),
    ("atlas",),
    ("items", "findings"),
    ("sources", "direct"),
)
LEVEL = {room: len(ORDER) - i for i, rooms in enumerate(ORDER) for room in rooms}


def _imported(path: Path) -> set[str]:
    """The rooms of this package that a file names in its imports, those in functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rung_reproduce":
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("rung_reproduce.")}
    return found


def test_imports_run_one_way() -> None:
    up = {
        (str(path.relative_to(PACKAGE)), room)
        for path in PACKAGE.rglob("*.py")
        if (own := path.relative_to(PACKAGE).parts[0].removesuffix(".py")) in LEVEL
        for room in _imported(path) - {own}
        if LEVEL[room] >= LEVEL[own]
    }
    assert up == set()


def test_every_room_has_its_level() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert rooms - {"ladders", "__init__"} == set(LEVEL)


def test_verbs_and_rungs_come_by_entry_points() -> None:
    assert {"reproduce", "study", "climb", "course"} <= set(plugins.entries(plugins.COMMANDS))
    assert plugins.summary(plugins.entries(plugins.COMMANDS)["study"]).startswith("Questions")
    assert rung_folders("attention") == (
        Path(catalogue.__file__).parents[1] / "ladders" / "attention", PACKAGE / "ladders" / "attention",
    )  # fmt: skip
    added = catalogue.find("attention/44")
    assert not catalogue.shipped(added) and catalogue.parent(added) == catalogue.find("attention/43")
    names = [rung.name for rung in catalogue.rungs("layernorm", libraries=False)]
    assert names == sorted(names) and {"15_fused_bulk", "16_constant_alone", "22_two_axes_restrict"} <= set(names)
