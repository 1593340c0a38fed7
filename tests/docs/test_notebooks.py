"""The notebooks run from top to bottom without a GPU, install rung where it is missing, and store no outputs."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(p.stem for p in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_stores_no_output_and_first_installs_what_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [c for c in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if c["cell_type"] == "code"]
    assert not any(c["outputs"] or c["execution_count"] for c in cells)
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    exec("".join(cells[0]["source"]))
    assert not ran
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec("".join(cells[0]["source"]))
    assert ran[0][1:4] == ["-m", "pip", "install"] and any("rung-gpu/rung" in word for word in ran[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    source = str(FOLDER.parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])))
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
