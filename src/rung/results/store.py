"""The store of measurements: rows in append-only files of JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rung import lines
from rung.errors import RungError
from rung.lines import default_path, write_whole
from rung.results import tree
from rung.results.row import FORMAT, KINDS, Row, newest

__all__ = ["append", "default_path", "gather", "load", "own", "publish", "published", "read", "write", "write_whole"]

ROOT = Path(__file__).resolve().parents[3]


def append(row: Row, path: Path | None = None) -> Row:
    """Append one measurement; returns it with its time and commit. File names in a reason are relative to the
    repository."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    reason = row.reason.replace(f"{ROOT}/", "")
    whole = replace(row, reason=reason, time=row.time or now, commit=row.commit or tree.commit())
    lines.append(path or default_path(), whole.as_json())
    return whole


def read(path: Path | None = None) -> Iterator[Row]:
    """Every complete measurement in the store."""
    rows = lines.read(path or default_path(), FORMAT, "results", "rung bench -o FILE")
    return (Row.of_json(values) for values in rows)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of these rows, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row.as_json(), ensure_ascii=False) + "\n" for row in rows)
    write_whole(path, text)


def load(path: Path) -> list[Row]:
    """The measurements in a file, or in all files of a folder."""
    if path.is_dir():
        return [row for file in sorted(path.glob("*.jsonl")) for row in read(file)]
    if not path.exists():
        raise RungError(f"there is no results file {path}; `rung bench -o FILE` writes one.")
    return list(read(path))


def published(root: Path = ROOT) -> list[Row]:
    """The measurements published in a checkout, of all GPUs."""
    return [row for folder in sorted((root / "results").glob("*/")) for row in load(folder)]


def gather(files: Sequence[Path] = ()) -> list[Row]:
    """The measurements in these files; by default, the user's own and those that the checkout publishes."""
    if files:
        return [row for file in files for row in load(file)]
    return published() + own()


def own() -> list[Row]:
    """The measurements in this user's own file."""
    return load(default_path()) if default_path().exists() else []


def publish(rows: Iterable[Row], folder: Path) -> dict[str, int]:
    """Put rows into a folder of current rows, one file per kind; the newest row of each question is kept. A failure
    does not replace a figure of the same code: it is kept only if there is no other. Outcomes of `make measure` are
    left out.
    """
    together = load(folder) if folder.is_dir() else []
    right = {r.key for r in together if r.verdict == "ok"}
    together += [r for r in rows if r.verdict == "ok" or r.key not in right]
    together = [replace(r, commit=tree.known(r.commit)) if r.commit.startswith(tree.TREE) else r for r in together]
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for kind in (k for k in KINDS if k != "measure"):
        some = sorted(newest([r for r in together if r.kind == kind]), key=_order)
        if some:
            write(folder / f"{kind}.jsonl", some)
            counts[kind] = len(some)
    return counts


def _order(row: Row) -> tuple[str, ...]:
    return row.what, row.part, row.dtype, row.shape, str(row.values), str(row.tuning), str(row.options)
