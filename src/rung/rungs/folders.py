"""The folders of ladders: those shipped with rung, and the user's own."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from rung.errors import RungError

LADDERS = Path(__file__).parents[1] / "ladders"  # those shipped with rung
MORE_LADDERS = "RUNG_LADDERS"  # lists folders of further ladders, in PATH's format; child processes inherit it


def folders() -> dict[str, Path]:
    """Operation -> the folder of its ladder, of those that come with rung and of the user's own."""
    more = [Path(folder).resolve() for folder in os.environ.get(MORE_LADDERS, "").split(os.pathsep) if folder]
    for place in more:
        if not place.is_dir():
            raise RungError(f"there is no folder {place} of further ladders; correct --ladders or {MORE_LADDERS}.")
    places = (LADDERS, *more)
    return dict(_found(places, tuple(place.stat().st_mtime_ns for place in places)))


@functools.cache
def _found(places: tuple[Path, ...], _changed: tuple[int, ...]) -> dict[str, Path]:
    """Looked up again if a folder was added or removed since."""
    found: dict[str, Path] = {}
    for place in places:
        for path in sorted(place.glob("*/operation.py")):
            if path.parent.name in found:
                raise RungError(f"{path.parent} and {found[path.parent.name]} hold the same operation; rename one.")
            found[path.parent.name] = path.parent
    return found
