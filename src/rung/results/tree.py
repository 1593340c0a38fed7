"""Which sources ran: git's hash of the package's folder in its present state, and the commit with exactly this folder.
A tree that was copied to the measuring machine may come with the history of another commit; then a row names the folder
(`tree-…`), and publishing it from a checkout whose history contains that folder finds the commit.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
TREE = "tree-"
LENGTH = 12


def digest(folder: Path) -> str:
    """git's hash of the folder's content; empty folders and Python's caches do not count."""
    return (_tree(folder) or hashlib.sha1(b"tree 0\0").digest()).hex()


def _tree(folder: Path) -> bytes:
    entries = []
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        inner = _tree(path) if path.is_dir() else _named("blob", path.read_bytes())
        if inner:
            kind = "40000" if path.is_dir() else "100644"
            entries.append((path.name + "/" * path.is_dir(), f"{kind} {path.name}\0".encode() + inner))
    return _named("tree", b"".join(entry for _, entry in sorted(entries))) if entries else b""


def _named(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).digest()


@cache
def commit(package: Path = PACKAGE) -> str:
    """The checkout's commit if the package is unchanged from it; else the package's own hash."""
    here = digest(package)
    if _git(package, "rev-parse", "HEAD:./") == here:
        return _git(package, "rev-parse", "HEAD")[:LENGTH]
    return TREE + here[:LENGTH]


@cache
def known(tree: str, package: Path = PACKAGE) -> str:
    """The newest commit with the package of this hash; the hash itself if the history has none."""
    for one in _git(package, "log", "--format=%H", "-n", "300", "--", ".").split():
        if _git(package, "rev-parse", f"{one}:./").startswith(tree.removeprefix(TREE)):
            return one[:LENGTH]
    return tree


def _git(folder: Path, *words: str) -> str:
    """git's output; empty if there is no git, no history or no such name."""
    try:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
