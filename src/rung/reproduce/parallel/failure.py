"""A failing process's last message, so that the launcher of the job reports one sentence."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from rung.errors import RungError

FILE = "RUNG_FAILURE_FILE"  # environment variable: a file for the first failing process's message


def report(error: BaseException, who: str) -> None:
    """Write the error to standard error and to the launcher's file, since forwarded output may be lost when the job
    ends."""
    words = str(error) if isinstance(error, RungError) else f"{who}: {error!r}"
    words = " ".join(words.split())
    if FILE in os.environ:
        with contextlib.suppress(OSError), Path(os.environ[FILE]).open("x", encoding="utf-8") as file:
            file.write(words)
    print(f"rung: {words}", file=sys.stderr, flush=True)
    if os.environ.get("RUNG_TRACEBACK"):
        traceback.print_exception(error)
