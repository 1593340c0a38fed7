"""The map of the house has every room: docs/architecture.md against the folders."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAMED = set(re.findall(r"`([a-z_0-9]+)(?:/|\.py|\.cpp)?`", TEXT))


@pytest.mark.parametrize("folder", ["lab", "beyond", "cli"])
def test_every_module_has_its_place_on_the_map(folder: str) -> None:
    places = (ROOT / "src" / "rung" / folder).iterdir()
    modules = {p.stem for p in places if p.suffix == ".py" or (p / "__init__.py").is_file()} - {"__init__"}
    assert modules and not modules - NAMED


def test_the_map_shows_nothing_that_is_not_there() -> None:
    source = ROOT / "src" / "rung"
    drawn = re.findall(r"^  ([a-z_0-9]+(?:\.py|/))  ", TEXT, re.MULTILINE)
    assert len(drawn) > 10 and all((source / name).exists() for name in drawn)
    top = {p.name for p in source.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert not [name for name in top if name not in TEXT]
