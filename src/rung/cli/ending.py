"""How the command line ends: exit codes, and mistakes in one sentence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from rung.errors import RungError, Unjudged


def exit_code_of(work: Callable[[], int]) -> int:
    """The exit code of `work`; a foreseeable mistake is one sentence on standard error, and code 2;
    code 3 if it says why a file is not judged."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except RungError as error:
        message = "".join(
            c if c.isprintable() or c in "\n\t" else "?" for c in str(error)
        )  # no terminal escapes from untrusted text
        print(f"rung: {message}", file=sys.stderr)
        return 3 if isinstance(error, Unjudged) else 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rung", "gpuless"):
            raise
        if package == "torch":
            verb = " ".join(["rung", *sys.argv[1:2]])
            print(f"rung: {verb} needs PyTorch here: pip install 'rung[models]'.", file=sys.stderr)
            return 2
        print(f"rung: this needs {package}, which is not installed; pip install {package}.", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        # torch's own words
        if isinstance(error, RuntimeError) and not re.search("allocate memory|bad_alloc", str(error)):
            raise
        print("rung: this needs more memory than the machine has; give less at once.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupted()
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        discard_output()
        return 0
    except OSError as error:  # a full disk, a folder without permission
        what = f"{error.filename}: " if error.filename else ""
        print(f"rung: {what}{error.strerror or error}.", file=sys.stderr)
        discard_output()
        return 2


def interrupted() -> int:
    print("rung: interrupted.", file=sys.stderr)
    return 130


def discard_output() -> None:
    """Discards pending output; otherwise Python would report it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
