"""`codes.json` beside the published rows: which texts of a rung compile to the same code (rung.results.codes reads it).

Texts that are not in it yet are compiled: all builds of the published rows, with the NVRTC installed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from rung.errors import RungError
from rung.results import store
from rung.results.codes import FILE, Codes, digest, known, text_now
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Rung

ATTEMPTS = 3  # the row counts as other code after this many different compilations


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
    for name in of_rows.keys() - benched.keys():  # Python: tools/same_code.py of commit f55c2e5e has compared the texts
        stored = {t: c for t, c in codes.get(name, {}).items() if t in of_rows[name] or t == text_now(name)}
        if len(stored) > 1:
            found[name] = stored
    return found


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
