"""Append-only files of JSON lines.

A line is written whole or not at all, by a single `write` to a file opened for appending, so that two processes may
share a file. A line cut short by a power failure is skipped with a warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung.errors import RungError


def default_path() -> Path:
    """The default place of results: the user's data folder."""
    if "RUNG_RESULTS" in os.environ:
        return Path(os.environ["RUNG_RESULTS"])
    try:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:  # a user without a home
        raise RungError("results have no place; set RUNG_RESULTS to a file.") from None
    return base / "rung" / "results.jsonl"


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to the file, which is created if needed."""
    data = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():
            with files.writing(path) as pipe:
                pipe.write(data.decode())
            return
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a filesystem without locks: a single write must suffice
                fcntl.flock(file, fcntl.LOCK_EX)
            _end_last_line(file)
            written = os.write(file, data)
            if written != len(data):  # a full disk may take only part of the line
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise OSError(28, "No space left on device")
        finally:
            os.close(file)
    except OSError as error:
        elsewhere = "; set RUNG_RESULTS to another place" if path == default_path() else ""
        raise RungError(f"{path} cannot be written: {error.strerror}{elsewhere}.") from None


def _end_last_line(file: int) -> None:
    """Start a new line if the last writer was cut off in the middle of a line."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def read(path: Path, form: str, what: str, writer: str) -> Iterator[dict[str, Any]]:
    """Every complete row whose "format" is `form`; for rows of another format an error names the expected content and
    the command that writes it."""
    if not path.exists():
        return
    lines = [(n, line) for n, line in enumerate(_bytes(path).split(b"\n"), 1) if line.strip()]
    ours: list[dict[str, Any]] = []
    foreign, torn = 0, list[int]()
    for number, line in lines:
        row = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
        if isinstance(row, dict) and row.get("format") == form:
            ours.append(row)
        elif row is None:
            torn.append(number)
        else:
            foreign += 1
    if foreign or (len(torn) > 1 and not ours):
        count = f"{foreign or len(torn)} of {len(lines)} lines are of another kind"
        raise RungError(f"{path} is not a file of rung's {what} ({count}); `{writer}` writes one.")
    for number in torn:
        warnings.warn(f"{path}, line {number} is cut short and was skipped.", stacklevel=2)
    yield from ours


def _bytes(path: Path) -> bytes:
    if not path.is_file():  # a device may never end
        raise RungError(f"{path} is not a file; results are kept in files.")
    try:
        return files.read_bytes(path)
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror}.") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either complete or unchanged."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            with files.writing(path) as file:
                file.write(text)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}.") from None
