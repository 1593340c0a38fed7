"""Whether a row belongs to the present code, without compiling anything. It does if the rung's text is the measured
one. If only the text has changed, `codes.json`, next to the published rows, maps each text to its compiled code;
`make tables` updates it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gpuless.base import disk_cache, files
from rung.errors import RungError
from rung.operation import LADDERS, folders, rung_folders
from rung.results import store
from rung.results.row import Row
from rung.rungs import catalogue, identity

FILE = store.ROOT / "results" / "codes.json"

Codes = Mapping[str, Mapping[str, str]]  # rung -> digest of a text -> digest of what it compiles to


@cache
def known(path: Path = FILE) -> Codes:
    """The index; empty if there is none, as in an installed package."""
    found: Codes = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


@cache
def text_now(name: str) -> str:
    """The digest of the rung's text; empty if the ladder no longer has the rung."""
    ours = (LADDERS / name.partition("/")[0]).is_dir()
    texts = _texts() if ours else {}
    if name not in texts:
        try:
            texts[name] = identity.text(catalogue.find(name))
        except RungError:
            texts[name] = ""
    return texts[name]


@cache
def _texts() -> dict[str, str]:
    """The digests of the package's rungs, kept in the cache folder until any source of the package changes."""
    package = LADDERS.parent
    places = {place for name in folders() for place in rung_folders(name)}
    roots = (package, *sorted(place for place in places if package not in place.parents))
    every = (path for root in roots for end in ("py", "cu", "cuh") for path in sorted(root.rglob(f"*.{end}")))
    facts = ((path, path.stat()) for path in every)
    stamp = hashlib.sha256(repr([(str(p), f.st_mtime_ns, f.st_ctime_ns, f.st_size) for p, f in facts]).encode())
    try:
        file = disk_cache.folder("texts") / f"{hashlib.sha256(str(package).encode()).hexdigest()[:16]}.json"
        cached = files.read_json(file, "remove it") if file.is_file() else None
    except (RungError, OSError, ValueError):  # without a cache they are computed each time
        return {}
    valid = isinstance(cached, dict) and cached.get("stamp") == stamp.hexdigest()
    kept_texts = cached.get("texts") if cached is not None and valid else None
    texts: dict[str, str] = dict(kept_texts) if isinstance(kept_texts, dict) else {}
    atexit.register(_store, file, stamp.hexdigest(), texts, len(texts))
    return texts


def _store(file: Path, stamp: str, texts: dict[str, str], count: int) -> None:
    if len(texts) > count:
        with contextlib.suppress(RungError):
            store.write_whole(file, json.dumps({"stamp": stamp, "texts": texts}))


def current(row: Row, codes: Codes | None = None) -> bool:
    """Whether the code of every rung that ran is unchanged."""
    index = known() if codes is None else codes
    return all(same(name, text, text_now(name), index) for name, text in row.texts.items())


def same(name: str, then: str, now: str, codes: Codes) -> bool:
    """Whether two texts of a rung are known to be the same code."""
    compiled = codes.get(name, {})
    return then == now or (compiled.get(then) is not None and compiled.get(then) == compiled.get(now))


def digest(codes: list[str]) -> str:
    return hashlib.sha256(" ".join(codes).encode()).hexdigest()[:16]
