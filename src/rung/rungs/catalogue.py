"""Finds ladders and rungs on disk, by name or by path."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from gpuless.base.files import read_text, shown, whole
from gpuless.compile.source import kernels_in
from rung.errors import RungError
from rung.operation import LADDERS, Operation, rung_folders
from rung.rungs import learned
from rung.rungs.base import Rung
from rung.rungs.cubin import CubinRung
from rung.rungs.cuda import CudaRung, whole_text
from rung.rungs.header import has_header
from rung.rungs.launcher import HostFunctionRung
from rung.rungs.learned import LearnedCall
from rung.rungs.library import LibraryRung
from rung.rungs.operations import nearest
from rung.rungs.operations import operation as operation
from rung.rungs.operations import operations as operations
from rung.rungs.python import PythonRung
from rung.rungs.python_module import Unspoken


def shipped(rung: Rung) -> bool:
    """Whether the rung comes with rung, rather than being the user's own."""
    if rung.path is None:
        return rung.kind != "library" or rung in rungs(rung.operation.name)
    return LADDERS in rung.path.resolve().parents


@cache
def rungs(name: str, *, libraries: bool = True) -> tuple[Rung, ...]:
    """The ladder of an operation: its rungs in the order of their numbers, then the libraries."""
    found: list[Rung] = [rung for path in _files(name) for rung in _rungs_at(name, path)]
    if libraries:
        found += [_library_rung(name, library.name) for library in operation(name).libraries]
    return tuple(found)


def _files(name: str) -> list[Path]:
    found = [p for folder in rung_folders(name) for p in folder.glob("[0-9]*_*") if p.suffix in (".cu", ".py")]
    by_number: dict[str, Path] = {}
    for path in found:
        other = by_number.setdefault(path.name.partition("_")[0], path)
        if other.parent != path.parent:
            raise RungError(f"{path} and {other} have the same number; rename one.")
    return sorted(found, key=lambda path: path.name)


@cache
def _rungs_at(name: str, path: Path) -> tuple[Rung, ...]:
    return rungs_in_file(operation(name), path)


@cache
def _library_rung(name: str, library: str) -> Rung:
    of = operation(name)
    return _of_its_ladder(LibraryRung(of, next(found for found in of.libraries if found.name == library)))


class Unbound(RungError):
    """A file that does not say how its kernels are called, and that nothing was learned of yet."""

    def __init__(self, of: Operation, path: Path, kernels: Sequence[str], why: str = "") -> None:
        self.path, self.kernels = path, kernels
        header = f"`rung check {of.name} {path}` finds out how it is called, and `--write` writes its header"
        super().__init__(why or f"{path} has no header: {header}.")


def rung_from_file(of: Operation, path: Path, name: str = "") -> Rung:
    """The rung in a file anywhere on disk, or the one called `name` of several formats or calls."""
    found = rungs_in_file(of, path, asked=bool(name))
    return next((rung for rung in found if rung.name == name), found[0])


def rungs_in_file(of: Operation, path: Path, *, asked: bool = False) -> tuple[Rung, ...]:
    """The rung in a file anywhere on disk, then the same in the other formats of its header; or the calls that were
    learned of a file without one, with those that a user `asked` for. Only reads; raises `Unbound` where nothing is
    known."""
    _require_file(of, path)
    if path.suffix == ".toml":
        return (_of_its_ladder(CubinRung(of, path)),)
    if path.suffix == ".py":
        try:
            return (_of_its_ladder(PythonRung(of, path)),)
        except Unspoken as error:
            return _learned_or_unbound(of, path, (), asked=asked, why=str(error))
    if not has_header(text := read_text(path)):
        if not text.strip():
            raise RungError(f"{path} is empty; `rung new {of.name} {path.stem}` writes a file to start from.")
        return _learned_or_unbound(of, path, kernels_in(text), asked=asked)
    first = CudaRung(of, path)
    return tuple(map(_of_its_ladder, (first, *(CudaRung(of, path, form=form) for form in first.header.formats))))


def _require_file(of: Operation, path: Path) -> None:
    if path.is_dir():
        raise RungError(f"{path} is a folder; name one .cu or .py file in it.")
    if not path.exists():
        raise RungError(f"there is no file {path}; `rung new {of.name} {path.name}` writes one to start from.")
    if path.suffix not in (".cu", ".cuh", ".py", ".toml"):
        raise RungError(f"{path} is neither a .cu, a .cuh, a .py nor a .toml file, so it cannot be a rung.")


def text_of(path: Path) -> str:
    """The text by which a file's learned calls are found: with its own headers."""
    return read_text(path) if path.suffix == ".py" else whole_text(path)


def _learned_or_unbound(
    of: Operation, path: Path, kernels: Sequence[str], *, asked: bool, why: str = ""
) -> tuple[Rung, ...]:
    told = learned.read(of, text_of(path))
    plain = [call for call in told.calls if not call.asked] if told else []
    if told is None or not (plain or asked):
        raise Unbound(of, path, kernels, why)
    calls = told.calls if asked else plain
    return tuple(rung_of_call(of, path, call, alone=len(plain) == 1 and not call.asked) for call in calls)


def rung_of_call(of: Operation, path: Path, call: LearnedCall, *, alone: bool = True) -> Rung:
    """The rung that calls a file in this way; with others of the file it has its kernel's name."""
    table = dict(call.table)
    if call.kind == "host":
        rung: Rung = HostFunctionRung(of, path, table)
    else:
        rung = PythonRung(of, path, table) if call.kind == "python" else CudaRung(of, path, table)
    rung.name = call.name if call.kind == "host" else path.stem if alone else f"{path.stem}:{call.name}"
    rung.guessed, rung.learned = True, call
    return _of_its_ladder(rung)


def _of_its_ladder(rung: Rung) -> Rung:
    rung.siblings = partial(rungs, rung.operation.name, libraries=False)
    return rung


def find(spec: str) -> Rung:
    """The rung that `spec` names: softmax/03_unrolled, softmax/unrolled, softmax/3 or softmax/torch."""
    name, _, which = spec.partition("/")
    of = operation(name)
    if not which:
        raise RungError(f"{spec!r} is an operation; name a rung of it, such as {rungs(name)[0].full_name}.")
    wanted = whole(which)
    for path in _files(name):  # only the one that is named is read
        number, _, short = path.stem.partition("_")
        if which in (path.stem, short) or (wanted is not None and whole(number) == wanted):
            return _rungs_at(name, path)[0]
        if which.startswith((path.stem, short)):
            for rung in _rungs_at(name, path)[1:]:
                if rung.name.removeprefix(f"{number}_") == which.removeprefix(f"{number}_"):
                    return rung
    if which in [library.name for library in of.libraries]:
        return _library_rung(name, which)
    names = [r.name for r in rungs(name)]
    raise RungError(f"{name} has no rung {shown(which)}{nearest(which, names)}; it has {', '.join(names)}.")


def select(spec: str | None, file: Path | None = None) -> list[Rung]:
    """The rungs that a command's OP[/RUNG] and FILE select: all, a ladder, one rung, or a user's file."""
    if file is not None:
        if spec is None or "/" in spec:
            raise RungError(f"{file} must be given with its operation alone, as in `rung check layernorm {file}`.")
        return list(rungs_in_file(operation(spec), file))
    if spec is None:
        return [rung for name in operations() for rung in rungs(name)]
    return [find(spec)] if "/" in spec else list(rungs(operation(spec).name))


def parent(rung: Rung) -> Rung | None:
    """The rung's parent: the one it names, else the number before."""
    if rung.parent:
        return find(rung.parent)
    ladder = [r for r in rungs(rung.operation.name, libraries=False) if r.number is not None]
    place = next((i for i, r in enumerate(ladder) if r.name == rung.name), None)
    return ladder[place - 1] if place else None
