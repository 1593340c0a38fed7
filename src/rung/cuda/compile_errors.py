"""Turns a failed compilation's log into its first errors, with file, line number and source line."""

from __future__ import annotations

import re

from rung.cuda.headers import NEEDED, OVERRIDE, Headers
from rung.cuda.launch import Build

_SHOWN_ERRORS = 3
_ERROR = re.compile(r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<text>.*)$")


def compile_error(build: Build, arch: str, found: Headers, text: str) -> str:
    """NVRTC's errors, readable."""
    lines = text.replace("\0", "").splitlines()
    errors = [match for line in lines if (match := _ERROR.match(line))]
    shown = []
    for match in errors[:_SHOWN_ERRORS]:
        shown.append(f"  {match['file']}:{match['line']}: {match['text']}")
        if match["file"] == build.origin:
            code = build.source.splitlines()[int(match["line"]) - 1 : int(match["line"])]
            shown += [f"    {match['line']} | {c.strip()}" for c in code]
    count = len(errors)
    if not errors:
        assembler = [line.strip() for line in lines if re.search(r"\b(error|fatal)\b", line)]
        count, shown = len(assembler), [f"  {line}" for line in assembler[:_SHOWN_ERRORS]]
    if not shown:
        shown = [f"  {line}" for line in lines if line.strip()][:_SHOWN_ERRORS]
    if count > _SHOWN_ERRORS:
        shown.append(f"  and {count - _SHOWN_ERRORS} more")
    hint = _hint(build, found, " ".join(match["text"] for match in errors) or " ".join(shown))
    return "\n".join([f"{build.origin} does not compile for {arch}:", *shown, *([f"  {hint}"] if hint else [])])


def _hint(build: Build, found: Headers, errors: str) -> str:
    if "too much global constant data" in errors:
        return "Constant memory has 65536 bytes: pass what is larger as a pointer."
    absent = re.search(r'cannot open source file "([^"]+)"', errors)
    if not absent:
        return ""
    name = absent.group(1)
    if re.fullmatch(r"[a-z_]+(?:\.h)?", name) and f"<{name}>" in build.source:
        return f"rung has the standard headers that kernels use, and <{name}> is none of them; put it beside the file."
    if name in NEEDED or name.startswith(("crt/", "nv/", "cuda", "cooperative_groups/")):
        return (
            f"CUDA's headers come from: {found.source}. Install nvidia-cuda-runtime, nvidia-cuda-crt and "
            f"nvidia-cuda-cccl of NVRTC's version, or set {OVERRIDE} to a toolkit's include folder."
        )
    return ""
