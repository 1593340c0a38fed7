"""Which operation a file is for, by its name, its kernels' names and its folder's name."""

from __future__ import annotations

import re
from pathlib import Path

from gpuless.compile.source import kernels_in
from rung.errors import RungError
from rung.rungs.operations import operation

WHOLE = 4  # letters: a shorter word is found as a part of a name only
FOLDERS = 3  # above a file, whose names may say what it is


def in_text(text: str, known: list[str]) -> dict[str, None]:
    """The operations whose words a name has, the likeliest first."""
    parts = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text).lower())
    at = {
        (len(word) < WHOLE, text.lower().find(word), -len(word)): name
        for name in known
        for word in (name, *operation(name).words)
        if (word in parts if len(word) < WHOLE else word in text.lower())
    }
    return {at[key]: None for key in sorted(at)}


def spoken_of(source: str, path: Path, known: list[str]) -> list[str]:
    """The operations that a file's name, its kernels' names or its folder's name speak of, the likeliest first."""
    functions = re.findall(r"^def (\w+)", source, re.M) if path.suffix == ".py" else kernels_in(source)
    found: dict[str, None] = {}
    for text in (path.stem, *functions, *(folder.name for folder in path.absolute().parents[:FOLDERS])):
        found |= {name: None for name in in_text(text, known) if name not in found}
    if not found:
        raise RungError(
            f"neither {path.name} nor its kernels' names say which operation it is; name it, as in "
            f"`rung check softmax {path}` (`rung list` has the operations)."
        )
    return [*found]
