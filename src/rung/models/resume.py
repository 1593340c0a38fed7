"""JSON lines that a run writes to a file, and where a stopped run resumes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung.errors import RungError

LINE = 1 << 28  # bytes of one result at most
REMEDY = "name another file with --output"
OTHER = "give the same ones to resume, or name another file with --output"


def run_of(options: Mapping[str, Any]) -> str:
    """A name for the options that decide what results are; each line holds it."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def done(out: Path | None, run: str) -> int:
    """How many results of this run the output already has; an incomplete last line is removed."""
    if out is None or (out.exists() and not out.is_file()):  # a pipe or a device keeps nothing; a folder is no output
        return 0
    count = complete = 0
    try:
        if not out.exists():
            return 0
        with files.opened(out) as file:
            for line in files.lines_of(file, str(out), LINE):
                if line.endswith(b"\n"):
                    record = json.loads(line)
                    _require(record["index"], count, out)
                    if record.get("run") != run:
                        raise RungError(f"the results in {out} were written with other options; {OTHER}.")
                    count, complete = count + 1, complete + len(line)
            if complete < file.tell():
                os.truncate(out, complete)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RungError(f"{out} holds something other than such results; {REMEDY}.") from None
    except OSError as error:
        raise RungError(f"{out} cannot be read ({error.strerror}); {REMEDY}.") from None
    return count


def _require(index: object, count: int, out: Path) -> None:
    if type(index) is not int or index != count:
        raise RungError(f"the results in {out} are not those of the first texts in order; {REMEDY}.")


def opened(out: Path | None) -> Any:
    """The destination of lines: the file, or standard output."""
    if out is None:
        return nullcontext(sys.stdout)
    try:
        return files.writing(out, append=True)
    except OSError as error:
        raise RungError(f"{out} cannot be written ({error.strerror}); {REMEDY}.") from None
