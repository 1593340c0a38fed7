"""The notebooks run from top to bottom without a GPU."""

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.ipynb")))
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    source = str(FOLDER.parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])))
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    assert all(cell.outputs for cell in book.cells if cell.cell_type == "code"), "a cell's output is missing in the file"
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
