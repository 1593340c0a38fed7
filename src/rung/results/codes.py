"""Whether a row belongs to the present code, without compiling anything. It does if the rung's text is the measured
one. If only the text has changed, `codes.json`, next to the published rows, maps each text to its compiled code;
`python -m rung.results.codes` updates it (as `make tables` does), and compiles texts that are not in it yet: all builds
of the published rows, with the NVRTC installed here.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from gpuless.base import disk_cache, files
from rung.errors import RungError
from rung.operation import LADDERS, folders, rung_folders
from rung.results import store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Rung

FILE = store.ROOT / "results" / "codes.json"

ATTEMPTS = 3  # the row counts as other code after this many different compilations

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


def built(row: Row, rung: Rung, attempts: int = ATTEMPTS) -> str:
    """The digest of the rung's compiled code at the row's shape and tuning; empty if it does not compile, or with
    another compiler.

    The compiler is not deterministic: about one compilation in thirteen to twenty gives a large kernel other registers.
    So code that differs from the row's is compiled again.
    """
    arch = row.code.partition("-")[2].partition(":")[0].rstrip("a")
    code = ""
    try:
        for attempt in range(attempts):
            code = identity.code(rung, row.values, row.dtype, row.tuning, arch, again=attempt > 0)
            if code == row.code:
                break
    except RungError:
        return ""
    return code


def updated(rows: Iterable[Row], codes: Codes) -> dict[str, dict[str, str]]:
    """The index of the texts that these rows and the ladders have."""
    benched: dict[str, dict[str, list[Row]]] = {}
    of_rows: dict[str, set[str]] = {}
    for row in rows:
        for name, text in row.texts.items():
            of_rows.setdefault(name, set()).add(text)
        if row.kind == "bench" and row.code and len(row.texts) == 1:
            benched.setdefault(row.what, {}).setdefault(row.texts[row.what], []).append(row)
    found: dict[str, dict[str, str]] = {}
    for name, by_text in benched.items():
        now = text_now(name)
        if not now or of_rows[name] == {now}:
            continue
        # Texts are compared by the builds of the newest rows alone.
        text, measured = max(by_text.items(), key=lambda item: max(r.time for r in item[1]))
        stored = codes.get(name, {})
        measured = sorted(measured, key=lambda r: r.key)
        then = digest([r.code for r in measured])
        # Climbs may have been measured with texts between that one and the present one.
        valid = {t: stored[t] for t in of_rows[name] & set(stored)} if stored.get(text, then) == then else {}
        compiled = then if now == text else stored.get(now) if stored.get(text) == then else None
        if compiled is None:
            print(f"compiling {name}, whose text has changed", file=sys.stderr)
            rung = catalogue.find(name)
            compiled = digest([built(row, rung) for row in measured])
        # With newer rows the digests are of other builds: texts that had the present code keep it.
        still = {t: compiled for t in of_rows[name] & set(stored) if stored[t] == stored.get(now)}
        if len(of_text := {**valid, text: then, now: compiled, **still}) > 1:
            found[name] = dict(sorted(of_text.items()))
    for name in of_rows.keys() - benched.keys():  # Python: tools/same_code.py has compared the texts
        stored = {t: c for t, c in codes.get(name, {}).items() if t in of_rows[name] or t == text_now(name)}
        if len(stored) > 1:
            found[name] = stored
    return found


def digest(codes: list[str]) -> str:
    return hashlib.sha256(" ".join(codes).encode()).hexdigest()[:16]


def refresh(path: Path = FILE) -> bool:
    """Bring the index up to date; returns whether it changed."""
    rows = [row for folder in sorted(path.parent.glob("*/")) for row in store.load(folder)]
    stored = known(path)
    now = updated(rows, stored)
    if now == stored:
        return False
    store.write_whole(path, json.dumps(now, indent=1, sort_keys=True) + "\n")
    known.cache_clear()
    return True


if __name__ == "__main__":
    print(f"{FILE}: {'written' if refresh() else 'up to date'}")
