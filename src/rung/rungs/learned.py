"""What adopt has found out about a file without a header, in the disk cache beside the digest of its text: each call
that was confirmed or proposed. A process that finds the rung again reads it here: nothing is compiled or run."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gpuless.base import disk_cache
from gpuless.compile import source
from rung.operation import Operation

NAME = "adopted"  # of the cache's folder


@dataclasses.dataclass(frozen=True)
class LearnedCall:
    """How a kernel, a host function or a Python function of the file is called."""

    name: str  # of its kernel or function
    kind: Literal["kernel", "host", "python"]
    kernels: Sequence[str]  # that it launches
    table: Mapping[str, Any]  # of a header; of a host function: call, bind, needs, zeroed
    doubts: Sequence[str] = ()  # why the call is only proposed, and the likeliest headers; empty if it is confirmed
    fault: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the launch that the file itself makes
    failure: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what the likeliest call computed
    error: str = ""  # the same as a sentence
    own: bool = False  # whether its launch is one that the file itself makes
    asked: bool = False  # a launch that the user gave, not the file

    @property
    def guess(self) -> str:
        """The launch, where nobody has said it."""
        if self.own or self.kind != "kernel":
            return ""
        of = self.table["launch"][0]
        return f"a launch that rung guessed (grid {of['grid']}, block {of['block']})"


@dataclasses.dataclass(frozen=True)
class LearnedFile:
    calls: Sequence[LearnedCall]
    others: Mapping[str, str]  # kernels that are not judged: why not


def read(of: Operation, text: str) -> LearnedFile | None:
    """What is known of a file with this text; None if it was not tried yet."""
    entry = disk_cache.find(disk_cache.folder(NAME), _key(of, text))
    if entry is None:
        return None
    return LearnedFile([LearnedCall(**call) for call in entry.note["calls"]], entry.note["others"])


def write(of: Operation, text: str, found: LearnedFile) -> None:
    def make(work: Path) -> tuple[Path, Any]:
        (work / "operation.txt").write_text(of.name)
        return work / "operation.txt", dataclasses.asdict(found)

    disk_cache.kept(NAME, _key(of, text), make, anew=True)


def _key(of: Operation, text: str) -> str:
    takes = [[o.name, o.shape, o.dtype, o.role] for o in of.operands]  # those of a problem may change
    facts = [of.name, takes, of.dims, of.scalars, text, _code()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@functools.cache
def _code() -> str:
    """What decides about a call."""
    from gpuless.machine import compiling

    here = Path(__file__).parent
    folders = (here, here.with_name("adopt"), here.with_name("check"), Path(str(source.__file__)).parent)
    files = [p for folder in folders for p in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join([compiling.digest().encode(), *(p.read_bytes() for p in files)])).hexdigest()
