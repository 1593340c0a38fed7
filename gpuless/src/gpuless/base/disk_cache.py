"""Native code on disk that this user compiled: found by a key, and run only if it is unchanged.

An entry `KEY.json` names its file by the hash of its content, which is verified before every use: a truncated or
changed file is compiled again. A folder that others may write to, or that belongs to another user, is refused, since
its content is executed. Imports nothing large.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuless.base import files
from gpuless.base.errors import UserError

_LEFT_OVER = 3600.0  # seconds after which a killed compilation's leftovers are removed
_tidied: set[Path] = set()


@dataclass(frozen=True)
class Entry:
    path: Path
    note: Any = None  # a note from its compilation


def cache_folder() -> Path:
    """The folder of compiled code: $RUNG_CACHE, or $XDG_CACHE_HOME/rung, or ~/.cache/rung. An absolute path, since
    compilers run in other folders."""
    given = os.environ.get("RUNG_CACHE")
    try:
        if given:
            return Path(given).expanduser().absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    except RuntimeError:  # a user who does not exist, or has no home
        raise UserError("The cache folder has no place: set RUNG_CACHE to a folder of your own.") from None
    return base.absolute() / "rung"


def settle() -> None:
    """From now on relative folders of caches are absolute, in this process and those that it starts."""
    if os.environ.get("RUNG_CACHE"):
        os.environ["RUNG_CACHE"] = str(cache_folder())
    if shared := os.environ.get("RUNG_SHARED_CACHE"):
        os.environ["RUNG_SHARED_CACHE"] = str(Path(shared).expanduser().absolute())


def require() -> None:
    """A UserError if the cache cannot be used: before work begins, instead of as a verdict on a kernel."""
    where = folder("emulator")
    if not os.access(where, os.W_OK | os.X_OK):
        raise _cannot_be_written(where, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def folder(name: str) -> Path:
    """The cache's folder of this name, created if needed; a UserError when others may write to it."""
    path = cache_folder() / name
    try:
        for place in (path.parent, path):
            place.mkdir(0o755, parents=True, exist_ok=True)  # whatever the umask allows others
            _require_own(place)
    except OSError as problem:
        raise _cannot_be_written(path, problem) from problem
    _tidy(path)
    return path


def _cannot_be_written(where: Path, problem: OSError) -> UserError:
    return UserError(f"The cache folder {where} cannot be written ({problem.strerror}): set RUNG_CACHE to another.")


def _require_own(place: Path) -> None:
    facts = place.stat()
    sticky = facts.st_mode & stat.S_ISVTX
    group_writes = facts.st_mode & stat.S_IWGRP and not sticky and _shared_group(facts.st_gid)
    others_write = facts.st_mode & stat.S_IWOTH and not sticky
    if others_write or group_writes or facts.st_uid not in (os.getuid(), 0):
        fault = "can be written by every user" if others_write else "belongs to another user"
        fault = "can be written by its group" if group_writes and not others_write else fault
        raise UserError(
            f"The cache folder {place} {fault}, who could place code there that you would run: "
            "name a folder of your own, or take the permission away (chmod go-w)."
        )


def _shared_group(gid: int) -> bool:
    """Whether a group may have other members than this user: not where it is the user's own, of the same name."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return gid != os.getgid()
    return group.gr_name != user or bool(set(group.gr_mem) - {user})


def _tidy(path: Path) -> None:
    if path in _tidied:
        return
    _tidied.add(path)
    old = time.time() - _LEFT_OVER
    for left in path.glob(".*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime > old:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def find(where: Path, key: str) -> Entry | None:
    """The entry, if it exists and its file is unchanged."""
    try:
        entry = where / f"{key}.json"
        if entry.stat().st_uid not in (os.getuid(), 0):
            return None
        fields = files.read_json(entry, "remove it")
        path = where / fields["file"]
        facts = path.stat()
        if facts.st_uid not in (os.getuid(), 0) or path.parent != where:
            return None
        if hashlib.sha256(files.read_bytes(path)).hexdigest() != fields["sha256"]:
            return None
        return Entry(path, fields.get("note"))
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def find_shared(name: str, key: str) -> Entry | None:
    """The entry in the user's cache, or in $RUNG_SHARED_CACHE: what another machine has compiled, never written to."""
    found = find(folder(name), key)
    if found is None and (shared := os.environ.get("RUNG_SHARED_CACHE")):
        with contextlib.suppress(OSError):
            _require_own(Path(shared) / name)
            found = find(Path(shared) / name, key)
    return found


def put(where: Path, key: str, made: Path, note: Any = None) -> Entry:
    """Moves a finished file into the cache. The file goes first, so that an entry never names an incomplete file."""
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    path = where / f"{digest[:32]}{made.suffix}"
    _place(made, path)
    handle, temporary = tempfile.mkstemp(dir=where, prefix=".", suffix=".part")
    with os.fdopen(handle, "w") as file:
        json.dump({"file": path.name, "sha256": digest, "note": note}, file)
    _place(Path(temporary), where / f"{key}.json")
    return Entry(path, note)


def _place(made: Path, path: Path) -> None:
    if path.is_dir():  # nothing of rung's
        shutil.rmtree(path)
    made.replace(path)


@contextlib.contextmanager
def alone(where: Path, key: str) -> Iterator[None]:
    """Of several processes that need one entry, the first makes it, and the others wait for it. The lock file is left
    for `_tidy`, since waiting processes hold it open."""
    path = where / f".{key}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        raise _cannot_be_written(where, problem) from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def kept(name: str, key: str, make: Callable[[Path], tuple[Path, Any]], *, anew: bool = False) -> Entry:
    """An entry of the cache; if it is absent or damaged, `make(work folder)` returns its file and a note."""
    where = folder(name)
    found = None if anew else find(where, key)
    if found:
        return found
    try:
        with tempfile.TemporaryDirectory(dir=where, prefix=".") as work:
            made, note = make(Path(work))
            return put(where, key, made, note)
    except OSError as problem:
        raise _cannot_be_written(where, problem) from problem
