"""JSON lines that a run writes to a file, and where a stopped run resumes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rung.errors import RungError


def done(out: Path | None) -> int:
    """How many results the output already has; an incomplete last line is removed."""
    if out is None or not out.exists():
        return 0
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        out.write_bytes(whole)
    try:
        indices = [json.loads(line)["index"] for line in whole.splitlines()]
    except (ValueError, KeyError, TypeError):
        raise RungError(f"{out} holds something other than such results; name another file with --output.") from None
    if indices != list(range(len(indices))):
        raise RungError(
            f"the results in {out} are not those of the first texts in order; name another file with --output."
        )
    return len(indices)


def opened(out: Path | None) -> Any:
    """The destination of lines: the file, or standard output."""
    if out is None:
        return nullcontext(sys.stdout)
    try:
        return out.open("a", encoding="utf-8")
    except OSError as error:
        raise RungError(f"{out} cannot be written ({error.strerror}); name another file with --output.") from None
