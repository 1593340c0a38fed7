"""What the documentation's examples import is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import rung

ROOT = Path(__file__).parents[2]
OURS = ("rung", "gpuless", "rung_reproduce")


def imported(code: str) -> set[tuple[str, str]]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] in OURS}


def is_there(module: str, name: str) -> bool:
    try:
        if not name or hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_what_examples_import_is_there() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]
    lacking = set()
    for page in pages:
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            try:
                names = imported(code)
            except SyntaxError:  # a part of a program
                continue
            lacking |= {(page.name, module, name) for module, name in names if not is_there(module, name)}
    assert not lacking


def test_the_page_of_python_names_the_whole_top_level() -> None:
    named = re.findall(r"`(?:rung\.)?(\w+)`", (ROOT / "docs/python.md").read_text().partition(" are the whole")[0])
    assert {*named, "RungError"} == set(rung.__all__)
