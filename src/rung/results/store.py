"""The store of measurements: JSON lines that are only ever added to.

One line a measurement, whole or not at all: it is written by a single `write` to a file opened for
appending, so that two processes may share a store, and a line cut short by a power failure is skipped
with a warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.errors import RungError
from rung.rungs import identity as headers

if TYPE_CHECKING:
    from rung.rungs.base import Rung

FORMAT = "rung-result-1"

Result = dict[str, Any]


def default_path() -> Path:
    """Where results go unless told otherwise: the user's data folder."""
    if "RUNG_RESULTS" in os.environ:
        return Path(os.environ["RUNG_RESULTS"])
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rung" / "results.jsonl"


def key_of(row: Result) -> str:
    """Content address: what was measured, not what came out of it."""
    names = ("kind", "operation", "rung", "digest", "dtype", "values", "tuning", "options")
    identity = {n: row.get(n) for n in names}
    if row.get("headers"):
        identity["headers"] = row["headers"]
    identity["gpu"] = row.get("machine", {}).get("gpu")
    identity["driver"] = row.get("machine", {}).get("driver")
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]


def source_of(rung: Rung) -> dict[str, str]:
    """What a measurement says of the code that was measured: the rung's text, and what it reaches in its headers."""
    return {"digest": rung.digest, "headers": headers.digest(rung)}


def same_source(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both were measured of the same code; of headers, which older ones do not tell, as far as is known."""
    known = a.get("headers") and b.get("headers")
    return a.get("digest") == b.get("digest") and (not known or a["headers"] == b["headers"])


def stamp() -> dict[str, str]:
    """When, and from which commit of a source checkout."""
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": _commit()}


def append(row: Result, path: Path | None = None) -> Result:
    """Add one measurement; gives it back with its key, time and commit."""
    path = path or default_path()
    whole = {"format": FORMAT, "key": key_of(row), **stamp(), **row}
    line = json.dumps(whole, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with contextlib.suppress(OSError):  # a filesystem without locks: one write must do
                fcntl.flock(file, fcntl.LOCK_EX)
            _mend_tail(file)
            data = line.encode()
            written = os.write(file, data)
            if written != len(data):  # a full disk may take only part of the line
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise OSError(28, "No space left on device")
        finally:
            os.close(file)
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}; RUNG_RESULTS names another place.") from None
    return whole


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either complete or what it was before."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}.") from None


def _mend_tail(file: int) -> None:
    """Begin a line of our own where the last writer was cut off in the middle of its."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def read(path: Path | None = None) -> Iterator[Result]:
    """Every whole measurement in the store."""
    path = path or default_path()
    if not path.exists():
        return
    lines = [(n, line) for n, line in enumerate(_bytes(path).split(b"\n"), 1) if line.strip()]
    ours: list[Result] = []
    torn = strangers = 0
    for number, line in lines:
        row = None
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        if isinstance(row, dict) and row.get("format") == FORMAT:
            ours.append(row)
        elif row is None:
            torn += 1
            warnings.warn(f"{path}, line {number} is cut short and was skipped.", stacklevel=2)
        else:
            strangers += 1
    if strangers or (torn > 1 and not ours):
        count = f"{strangers or torn} of {len(lines)} lines are of another kind"
        raise RungError(f"{path} is not a file of rung's results ({count}); `rung bench -o FILE` writes one.")
    yield from ours


def load(path: Path) -> list[Result]:
    """The measurements in a store, or in a file that `rung bench -o` or `rung climb -o` wrote.

    Of a folder: those of all its files; documents of another kind may lie among them.
    """
    if path.is_dir():
        files = sorted(path.glob("*.json*"))
        return [row for file in files if not _is_other_document(file) for row in load(file)]
    if not path.is_file():
        raise RungError(f"there is no results file {path}; `rung bench -o FILE` writes one.")
    found = _of_document(_document(path))
    return [_named(row) for row in (list(read(path)) if found is None else found)]


def _document(path: Path) -> Any:
    """The file as one JSON value; None when it is not one, or is a store's only line."""
    with contextlib.suppress(ValueError):
        value = json.loads(_bytes(path))
        return None if isinstance(value, dict) and value.get("format") == FORMAT else value
    return None


def _of_document(value: Any) -> list[Result] | None:
    if not isinstance(value, dict) or not isinstance(value.get("machine"), dict):
        return None
    rows = value.get("rows")
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        return None
    if "model" in value and "new_tokens" in value:
        return [{**value, "kind": "climb"}]
    shared = {n: value[n] for n in ("time", "commit", "machine", "state", "ceilings") if n in value}
    return [{**shared, **row} for row in rows] if all("rung" in r for r in rows) else None


def _is_other_document(path: Path) -> bool:
    value = _document(path)
    return value is not None and _of_document(value) is None


def gather(files: Sequence[Path] = ()) -> list[Result]:
    """The measurements in these files; without any, the user's own and those that the checkout publishes."""
    if files:
        return [row for file in files for row in load(file)]
    published = Path(__file__).resolve().parents[3] / "results"
    rows = [row for folder in sorted(published.glob("*/")) for row in load(folder)]
    return rows + (load(default_path()) if default_path().exists() else [])


def _named(row: Result) -> Result:
    """A bench row's own `kind` is that of its rung; here `kind` tells what sort of measurement it is."""
    if row.get("kind") in ("cuda", "python", "triton", "library"):
        return {**row, "kind": "bench", "rung_kind": row["kind"]}
    return row


def _bytes(path: Path) -> bytes:
    if not path.is_file():  # a device may never end
        raise RungError(f"{path} is not a file; results are kept in one.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror}.") from None


@cache
def _commit() -> str:
    """The commit of a source checkout; empty for an installed package."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
