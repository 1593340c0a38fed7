"""How a stranger's file becomes a rung: its own text proposes how kernels and functions are called, check judges each
proposal at a small budget, and what was learned is kept beside the file's digest (rungs/learned.py)."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuless.base.files import read_text
from gpuless.compile.source import kernels_in, split
from rung import progress
from rung.adopt import host_calls, launches, names, python_calls
from rung.adopt.host_launches import Written
from rung.adopt.operands import of_square
from rung.check.report import wrong_beyond
from rung.dtypes import dtype
from rung.errors import CompileError, RungError, Unjudged
from rung.operation import Operation, Values
from rung.rungs import catalogue, learned
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung, whole_text
from rung.rungs.header import has_header, inline
from rung.rungs.launcher import HostFunction, HostFunctionRung
from rung.rungs.learned import LearnedCall, LearnedFile

if TYPE_CHECKING:
    from rung.adopt.search import Budget, Outcome

SECONDS = 5.5  # of all searches of a file that lead to nothing: search.Budget
OF_FUNCTION = 2.0  # of them at least, for a host function
MOST = 48  # proposals for a kernel
SHOWN = 3  # that are shown, where none is right
OPERATIONS = 3  # of those that names speak of, whose calls are tried


def operation_of(path: Path, known: list[str]) -> str:
    """The first operation that a file's names speak of and that it has a call for."""
    source = read_text(path)
    spoken = names.spoken_of(source, path, known)
    if path.suffix == ".py" or has_header(source):
        return spoken[0]
    doubted: list[str] = []
    for n, name in enumerate(spoken[:OPERATIONS]):
        progress.stage(f"{path} may be {' or '.join(spoken[n:OPERATIONS])}; {name} is tried")
        with suppress(RungError):
            if any(not rung.doubts for rung in rungs_in_file(catalogue.operation(name), path)):
                return name
            doubted.append(name)
    return (doubted or spoken)[0]


def select(spec: str | None, file: Path | None = None) -> list[Rung]:
    """As the catalogue's; a file that does not say how it is called is tried."""
    try:
        return catalogue.select(spec, file)
    except catalogue.Unbound:
        assert spec is not None and file is not None
        return list(rungs_in_file(catalogue.operation(spec), file))


def named(spec: str, file: Path | None) -> str | Rung:
    """What a command's OP[/RUNG] and FILE name: of a file the first call that is confirmed."""
    if file is None:
        return spec
    found = select(spec, file)
    return next((rung for rung in found if not rung.doubts), found[0])


def rungs_in_file(of: Operation, path: Path) -> tuple[Rung, ...]:
    """The calls of a file, a rung each: those that it says, or those that were found out."""
    try:
        return catalogue.rungs_in_file(of, path)
    except catalogue.Unbound as unbound:
        source = catalogue.text_of(path)
        triton = path.suffix == ".py"
        found = _python(of, source, path, unbound) if triton else _Kernels(of, source, path).learn()
        learned.write(of, source, found)
        return catalogue.rungs_in_file(of, path)


def rung_from_file(of: Operation, path: Path, name: str = "") -> Rung:
    found = rungs_in_file(of, path)
    return next((rung for rung in found if rung.name == name), found[0])


def others_in_file(of: Operation, path: Path) -> Mapping[str, str]:
    """The kernels of a file that no call of it reaches, and why they are not judged."""
    found = learned.read(of, catalogue.text_of(path)) if path.suffix != ".py" else None
    return found.others if found else {}


def of_kernel(of: Operation, path: Path, kernel: str, launch: str = "") -> list[Rung]:
    """One kernel of a file, with the launch that the file makes or that the user gives, as
    'grid=ceil_div(N, 256), block=256, shared=0'."""
    source = whole_text(path)
    call = _Kernels(of, source, path).one(kernel, launch)
    return [_with_asked(of, path, source, [call])[0]]


def of_functions(of: Operation, path: Path, patterns: Sequence[str], words: Sequence[str]) -> list[Rung]:
    """Host functions of a file that a user names."""
    source = whole_text(path)
    calls = []
    for name, function, tables in host_calls.asked(of, source, path, patterns, words):
        call = _of_function(of, path, name, function, tables, _budget())
        if call.doubts:
            host_calls.require_known(of, path, name, function, tables[0])
        # The user says what the function computes, so that wrong numbers are its own.
        table = {**call.table, "adopted": "text"}
        calls.append(LearnedCall(call.name, "host", call.kernels, table, asked=True))
    return _with_asked(of, path, source, calls)


def _with_asked(of: Operation, path: Path, source: str, calls: Sequence[LearnedCall]) -> list[Rung]:
    """The calls that a user asks for, stored beside what is known: other processes find them by name."""
    known = learned.read(of, source) or LearnedFile([], {})
    kept = [call for call in known.calls if not (call.asked and call.name in {one.name for one in calls})]
    learned.write(of, source, LearnedFile([*kept, *calls], known.others))
    return [catalogue.rung_of_call(of, path, call, alone=False) for call in calls]


def _budget() -> Budget:
    from rung.adopt.search import Budget  # it imports torch: a copy of this process has it

    return Budget(SECONDS)


def _python(of: Operation, source: str, path: Path, unbound: catalogue.Unbound) -> LearnedFile:
    tables = python_calls.propose(of, source, path)
    if not tables:
        raise unbound
    found = _budget().search(of, path, "python", tables)
    table, doubts = _concluded(tables, found, "NEEDS", tables[0]["entry"])
    call = LearnedCall(tables[0]["entry"], "python", (), table, doubts, failure=found.failure, error=found.error)
    return LearnedFile([call], {})


def _concluded(
    tables: Sequence[Mapping[str, Any]], found: Outcome, key: str, name: str
) -> tuple[dict[str, Any], list[str]]:
    """The table that is used, and why it is no ground for a verdict."""
    table = {**(found.table or tables[0])}
    if found.table is None:
        why = f"none of the {found.tried} calls that were tried is right"
        if not found.tried:
            why = f"the file's other kernels took all that its searches may cost; --kernel {name} judges it alone"
        return table, [f"rung does not know how {name} is called: {why}", *_lines(tables)]
    if not found.needs:
        return table, []
    rules = dict.fromkeys([*table.get("needs", []), *found.needs])
    wrong = wrong_beyond(" and ".join(found.needs), found.failure.get("place", {}))
    why = f"it {wrong}; only if it is for such sizes alone, it needs the line {key} = "
    return table, [why + json.dumps([*rules]), *_lines([table])]


def _launch_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """Without the instance of the kernel, which says nothing of the grid."""
    return {name: value for name, value in table["launch"][0].items() if name != "kernel"}


def _lines(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The likeliest calls, a line each: what differs between them."""
    lines = []
    for table in tables:
        parts = (
            {**table["launch"][0], **({"bind": table["bind"]} if "bind" in table else {})}
            if "launch" in table
            else table
        )
        lines.append(", ".join(f"{name} = {inline(value)}" for name, value in parts.items() if name != "adopted"))
    return list(dict.fromkeys(lines))[:SHOWN]


def _of_function(
    of: Operation, path: Path, name: str, function: HostFunction, tables: Sequence[Mapping[str, Any]],
    budget: Budget, share: float = 1.0,
) -> LearnedCall:  # fmt: skip
    with suppress(RungError):
        HostFunctionRung(of, path, tables[0]).compile()  # once, for the processes of all trials; it is not their time
    found = budget.search(of, path, "host", tables, own=True, share=share)
    table, doubts = _concluded(tables, found, "needs", name)
    given = found.fault, found.failure, found.error, True
    return LearnedCall(name, "host", host_calls.kernels_of(function), table, doubts, *given)


class _Kernels:
    """The kernels of a `.cu` file without a header, each alone or with those that a host function launches with it."""

    def __init__(self, of: Operation, source: str, path: Path) -> None:
        self.of, self.source, self.path = of, source, path
        self.budget: Budget | None = None
        self.share = 1.0  # of what is left of it, that the next kernel's search may cost
        self.calls: list[LearnedCall] = []
        self.others: dict[str, str] = {}
        self.unsure: list[LearnedCall] = []  # of functions that do it with several kernels, if any does
        self.fitted: dict[str, Values] = {}  # the first case, by `needs`

    def learn(self) -> LearnedFile:
        text = launches.propose(self.of, self.source, self.path)
        functions = host_calls.launching(self.source, self.path)
        done = {kernel for row in text.in_a_row for kernel in self._in_a_row(row, functions)}
        own = self._of_the_operation(self._of_the_file([kernel for kernel in text.proposals if kernel not in done]))
        if text.launched & {*own, *done}:
            for kernel in [kernel for kernel in own if kernel not in text.launched]:
                refused = self._refused(next(text.proposals[kernel]))
                self.others[kernel] = f"nothing in the file launches it; {refused or f'--kernel {kernel} judges it'}"
                own.remove(kernel)
        for n, kernel in enumerate(own):
            self.share = 1 / (len(own) - n)
            self.calls.append(self._of_kernel(kernel, list(itertools.islice(text.proposals[kernel], MOST)), functions))
        for function in self.unsure:  # says more than its kernels, if none of them is right by itself
            own_calls = [call for call in self.calls if {*call.kernels} <= {*function.kernels}]
            if not any(map(_said, own_calls)):
                self.calls = [*(call for call in self.calls if call not in own_calls), function]
                self.others = {kernel: why for kernel, why in self.others.items() if kernel not in function.kernels}
                done |= {*function.kernels}
        known = [*catalogue.operations()]
        parts = {kernel for row in text.in_a_row for kernel in row} - done
        for call in [call for call in self.calls if not _said(call) and parts & {*call.kernels}]:
            # It says nothing of the file, unless it is said to be the operation.
            if any(not other.doubts for other in self.calls) or self.of.name not in names.in_text(call.name, known):
                self.calls.remove(call)
                self.others[call.name] = call.doubts[0]
        self.others |= {kernel: _why(error, self.path) for kernel, error in text.failures.items() if kernel not in done}
        if not self.calls:
            raise self._none(text)
        return LearnedFile(self.calls, self.others)

    def one(self, kernel: str, launch: str) -> LearnedCall:
        given = _given(self.path, kernel, launch) if launch else None
        text = launches.propose(self.of, self.source, self.path, given)
        if kernel not in text.proposals:
            if kernel in text.failures:
                raise text.failures[kernel]
            if given and kernel in kernels_in(self.source):
                raise RungError(f"--launch {launch!r}: {self.of.name} has the sizes {', '.join(self.of.dims)}.")
            listed = ", ".join([*text.proposals, *text.failures])
            raise RungError(f"{self.path} has no kernel {kernel}; it has {listed}.")
        call = self._of_kernel(kernel, list(itertools.islice(text.proposals[kernel], MOST)), {})
        name = f"{kernel}<<<{launch}>>>" if launch else kernel
        return LearnedCall(**{**vars(call), "name": name, "asked": True})

    def _of_the_file(self, kernels: list[str]) -> list[str]:
        """Without those of its headers, if it has some itself."""
        itself = kernels_in(read_text(self.path))
        found = [kernel for kernel in kernels if kernel in itself] or kernels
        self.others |= {k: f"a header has it; --kernel {k} judges it" for k in kernels if k not in found}
        return found

    def _of_the_operation(self, kernels: list[str]) -> list[str]:
        """Without those whose names speak of other operations only, if names of others do not."""
        known = [*catalogue.operations()]
        spoken = {kernel: names.in_text(kernel, known) for kernel in kernels}
        foreign = {kernel: said for kernel, said in spoken.items() if said and self.of.name not in said}
        if len(foreign) == len(kernels):
            return kernels
        self.others |= {kernel: f"its name speaks of {next(iter(said))}" for kernel, said in foreign.items()}
        return [kernel for kernel in kernels if kernel not in foreign]

    def _in_a_row(self, row: list[str], functions: Mapping[str, HostFunction]) -> list[str]:
        """The kernels of a host function that does it with several, if that is right."""
        for name, function in functions.items():
            if host_calls.kernels_of(function) == row and (call := self._function(name, function)):
                if _said(call):
                    self.calls.append(call)
                    return row
                self.unsure.append(call)
        return []

    def _function(self, name: str, function: HostFunction) -> LearnedCall | None:
        with suppress(RungError):
            proposals = host_calls.propose(self.of, self.source, self.path, name, function)
            if tables := list(itertools.islice(proposals, host_calls.MOST)):
                self.budget = self.budget or _budget()
                self.budget.left = max(self.budget.left, OF_FUNCTION)
                share = len(host_calls.kernels_of(function)) / max(1, len(kernels_in(self.source)))
                return _of_function(self.of, self.path, name, function, tables, self.budget, min(1.0, share))
        return None

    def _of_kernel(
        self, kernel: str, every: list[launches.Proposal], functions: Mapping[str, HostFunction]
    ) -> LearnedCall:
        """What a kernel's call is: as the text says it, or as trials confirm; else what the likeliest one gives."""
        bindable = [one for one in every if self._compiles(one.table, only_bound=True)] or every
        first = bindable[0]
        chosen = [{**one.table, "adopted": "trial"} for one in bindable]
        chosen = self._compiling(chosen)
        if not chosen:  # the compiler's own words are the reason, where the file says which instance is meant
            values = launches.says_values(self.source, kernel)
            table = {**first.table, "adopted": "text" if values else "trial"}
            unsaid = launches.values_unsaid(self.source, kernel)
            refused = f"{unsaid}, and the usual ones do not compile: {_first_error(self._refused(first))}"
            doubts = [] if values or not unsaid else [refused, *_lines([table])]
            return LearnedCall(kernel, "kernel", (kernel,), table, doubts)
        self.budget = self.budget or _budget()
        tables = [one for one in chosen if one is chosen[0] or of_square(one)] if first.sure else chosen
        found = self.budget.search(self.of, self.path, "kernel", tables, own=first.own, share=self.share)
        stated = [_launch_of(one.table) for one in every if one.by_sizes]
        guessed = bool(found.table) and first.by_sizes and _launch_of(found.table or {}) not in stated
        if found.table and not guessed:
            found = dataclasses.replace(found, fault={})  # of a launch for one size
        lacks = guessed or not (found.table or found.fault)
        if lacks and (function := self._host_of(kernel, functions)):  # which may launch otherwise than it reads
            return function
        table, doubts = _concluded(tables, found, "needs", kernel)
        if guessed and not found.fault:  # the file's own launch is what is judged
            doubts = ["it is right with another launch, but rung judges the file's own", *_lines([table])]
        if first.sure and not found.needs:  # as the file says it: what is wrong is the kernel's
            table, doubts = {**table, "adopted": "text"}, []
        stands = [one.own for one in every if _launch_of(one.table) == _launch_of(table)]
        given = found.fault, found.failure, found.error, first.own if doubts else any(stands)
        return LearnedCall(kernel, "kernel", (kernel,), table, doubts, *given)

    def _host_of(self, kernel: str, functions: Mapping[str, HostFunction]) -> LearnedCall | None:
        for name, function in functions.items():
            if host_calls.kernels_of(function) != [kernel]:
                continue
            if (call := self._function(name, function)) and _said(call):
                return call
        return None

    def _compiling(self, tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those whose instances of the kernel compile, as far as one shows it."""
        left = tables
        instances = {table["launch"][0]["kernel"]: table for table in reversed(tables)}
        for instance, table in reversed(instances.items()):
            progress.doing(f"{instance} is compiled")
            if self._compiles(table):
                break
            left = [one for one in left if one["launch"][0]["kernel"] != instance]
        return left

    def _compiles(self, table: dict[str, Any], *, only_bound: bool = False) -> bool:
        """Whether compilers take the file; torch is not imported. Or only whether the parameters can be bound."""
        error = self._error_of(table, only_bound=only_bound)
        return error is None or not (only_bound or isinstance(error, CompileError))  # else it does not suit the file

    def _error_of(self, table: dict[str, Any], *, only_bound: bool = False) -> RungError | None:
        try:
            rung, needs = CudaRung(self.of, self.path, table), str(table.get("needs"))
            values, real = self.of.complete(self.of.cases[0].values), dtype(rung.dtypes[0])
            if needs not in self.fitted:
                self.fitted[needs] = rung.fitted(values, real) or values
            given = self.fitted[needs], real
            rung.require_bindable(*given) if only_bound else rung.require_compiled(*given, ("sm_90",))
        except RungError as error:
            return error
        return None

    def _refused(self, one: launches.Proposal) -> str:
        """What compilers say against a kernel that is not judged; empty if nothing."""
        error = self._error_of(one.table)
        return str(error) if isinstance(error, CompileError) else ""

    def _none(self, text: launches.OfKernels) -> RungError:
        if not (text.failures or text.in_a_row):
            return Unjudged(f"{self.path}: no kernel has the operands of {self.of.name}.")
        why = {kernel: _why(error, self.path) for kernel, error in text.failures.items()}
        if len(why) == 1 and not text.in_a_row:
            return Unjudged(str(next(iter(text.failures.values()))))
        told = f"{self.path} has no header, and none of its kernels computes {self.of.name} by itself:"
        told += "".join(f"\n    {kernel}: {error}" for kernel, error in why.items())
        if text.in_a_row:
            told += f"\n    {', '.join(text.in_a_row[0])} run one after another: let a function take the operands' "
            told += f"device pointers and launch them, and `rung check {self.of.name} {self.path} --call FUNCTION` "
            told += "judges it as a whole; or write a header with a [[launch]] for each (docs/header.md)."
        return Unjudged(told)


def _first_error(text: str) -> str:
    """Of a compiler's words the first, with its line."""
    return text.partition("\n")[2].partition("\n")[0].strip() or text


def _said(call: LearnedCall) -> bool:
    """Whether the call has a verdict."""
    return not call.doubts or bool(call.fault)


def _why(error: RungError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} has no header, and none can be proposed: ")


def _given(path: Path, kernel: str, launch: str) -> Written:
    """'grid=ceil_div(N, 256), block=(32, 8), shared=0' as a launch of the kernel."""
    parts: dict[str, str] = {}
    for part in split(launch):
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in ("grid", "block", "shared"):
            raise RungError(f"--launch {part!r}: write 'grid=ceil_div(N, 256), block=256, shared=0', as in a header.")
        value = value.strip()
        several = value.startswith("(") and value.endswith(")") and len(split(value[1:-1])) > 1
        parts[name.strip()] = f"dim3{value}" if several else value
    if not {"grid", "block"} <= {*parts}:
        raise RungError("--launch needs grid and block, as in 'grid=ceil_div(N, 256), block=256'.")
    return Written(kernel, grid=parts["grid"], block=parts["block"], shared=parts.get("shared", ""), given=True)
