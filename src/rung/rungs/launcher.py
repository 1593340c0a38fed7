"""A host function that launches kernels, as a rung: bound by name, and called in a program of its own (`rung run`'s),
whose memory holds nothing but the call's operands."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import gpuless
from gpuless.base.files import read_text
from gpuless.compile.host_code import host_part
from gpuless.compile.source import Parameter, function_parameters
from gpuless.program import executable, running
from rung.dtypes import dtype as dtype_named
from rung.dtypes import name_of
from rung.errors import FAULTS, EmulatorFault, FaultKind, RungError
from rung.lazy import torch
from rung.operation import Operation
from rung.rungs import adopt
from rung.rungs.arguments import POINTEES, Arguments
from rung.rungs.base import Call, Prepared, Rung
from rung.rungs.header import Header

SECONDS, PROGRAM = 60.0, "made"  # of one call; its file
MOST, MOST_SECONDS = 24, 10.0  # bindings of a file's host functions that are tried; of CPU time
# Operands lie in files named 0, 1, ... of the folder that the program is given, and numbers follow it.
_DRIVER = """#define main rung_main_of_the_program
#include "{path}"
#undef main
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
namespace {{
struct RungOperand
{{
    std::string path;
    std::vector<char> bytes;
    void* device = nullptr;
    bool of_host;
    RungOperand(const char* folder, int number, const char* name, bool of_host) : of_host(of_host)
    {{
        path = std::string(folder) + "/" + std::to_string(number);
        FILE* file = fopen(path.c_str(), "rb");
        if (!file) return;
        fseek(file, 0, SEEK_END), bytes.resize(size_t(ftell(file))), rewind(file);
        if (fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) exit(98);
        fclose(file);
        if (of_host) return;
        cudaMalloc(&device, bytes.size(), RungSite{{name, 0}});
        cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    }}
    void* data() {{ return of_host && !bytes.empty() ? bytes.data() : device; }}
    void leave()
    {{
        if (!data() || (!of_host && cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost))) return;
        FILE* file = fopen(path.c_str(), "wb");
        if (!file || fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || fclose(file)) exit(98);
    }}
}};
}}
int main(int, char** words)
{{
    RungOperand operands[] = {{{operands}}};
    {call}({arguments});
    if (cudaError_t error = cudaDeviceSynchronize()) return fprintf(stderr, "%s\\n", cudaGetErrorString(error)), 97;
    for (RungOperand& one : operands) one.leave();
    return 0;
}}
"""


@dataclass(frozen=True)
class _Function:
    text: str
    parameters: tuple[Parameter, ...]


def _defined(source: str, path: Path) -> dict[str, _Function]:
    """The host functions of a file that take pointers."""
    found: dict[str, _Function] = {}
    for text in host_part(source).split("\0"):
        try:
            name, parameters = function_parameters(text, source, str(path))
        except RungError:  # a parameter that is a function, for example
            continue
        if any(p.pointer for p in parameters):
            found[name] = _Function(text, parameters)
    return found


def select(of: Operation, path: Path, calls: Sequence[str], words: Sequence[str]) -> list[LauncherRung]:
    """The launchers of a file that the patterns name. `words` are NAME=VALUE for parameters, and conditions."""
    source = read_text(path)
    defined = _defined(source, path)
    given = dict(word.split("=", 1) for word in words if word.partition("=")[0].isidentifier() and "==" not in word)
    needs = [word for word in words if word.partition("=")[0] not in given]
    found: list[LauncherRung] = []
    for call in calls:
        plain = call.partition("<")[0].rpartition("::")[2]
        names = [name for name in defined if name == plain or fnmatch.fnmatchcase(name, call)]
        if not names:
            listed = ", ".join(name for name in defined if name != "main") or "none"
            raise RungError(f"{path} defines no host function {call} that takes pointers; it has {listed}.")
        for name in names:
            one = defined[name]
            own = {word: value for word, value in given.items() if word in {p.name for p in one.parameters}}
            called = call if name == plain else name
            with adopt.budget(MOST_SECONDS) as left:
                rung = _right(of, path, called, one, own, needs, left)
            if rung is None:
                bound, fixed = next(_ways(of, source, path, call, one, own))
                told = {o.name for o in of.operands} | {*own.values()}
                if p := next((p for p in one.parameters if adopt.unknown(of, p) and bound[p.name] not in told), None):
                    raise RungError(f"{path}: what is {p.ctype} {p.name} of {call}? Say so, as in --with {p.name}=1.")
                rung = LauncherRung(of, path, called, one, bound, [*fixed, *needs])
            found.append(rung)
    unknown = given.keys() - {p.name for rung in found for p in rung.parameters}
    if unknown:
        raise RungError(f"--with {min(unknown)}: no launcher has such a parameter.")
    return found


def found_right(of: Operation, path: Path, *, in_a_row: bool) -> LauncherRung | None:
    """The host function that computes the operation by its launches, if a trial on small cases is right; the function
    that launches most is tried first. Either those whose kernels do it together, or the others."""
    source = read_text(path)
    defined = {name: one for name, one in _defined(source, path).items() if name != "main" and "<<<" in one.text}
    asked = [n for n, f in defined.items() if adopt.in_a_row(source, adopt.launches_in(f.text, {})) == in_a_row]
    with adopt.budget(MOST_SECONDS) as left:
        for name in sorted(asked, key=lambda name: -defined[name].text.count("<<<")):
            with suppress(RungError):
                if rung := _right(of, path, name, defined[name], {}, (), left):
                    return rung
    return None


def _right(
    of: Operation,
    path: Path,
    call: str,
    function: _Function,
    given: Mapping[str, str],
    needs: Sequence[str],
    left: Callable[[], float],
) -> LauncherRung | None:
    """A host function with what its parameters are, if a trial on small cases is right."""
    from rung.rungs import adopt_trial  # it imports torch

    held: LauncherRung | None = None
    for bound, fixed in itertools.islice(_ways(of, read_text(path), path, call, function, given), MOST):
        if left() <= 0:
            break
        rung = LauncherRung(of, path, call, function, bound, [*fixed, *needs])
        rung.guessed = True
        zeroed: list[str] = []
        with suppress(RungError):
            found = adopt_trial.cases_right(of, rung, dtype_named(rung.dtypes[0]), zeroed)
            if found:
                rung.header = replace(rung.header, zeroed=tuple(zeroed))
                rung.right = None if adopt.told(of, function.parameters, adopt.Written(call), bound) else found[0]
            if found and (found[1] is None or rung.right is None):
                return rung
            held = held or (rung if found else None)
    return held


def _ways(
    of: Operation, source: str, path: Path, name: str, function: _Function, given: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, str | float], list[str]]]:
    """What a host function's parameters may be, the likeliest first, with conditions."""
    for bound, _ in adopt.binds(of, function.parameters, adopt.Written(name), path, name, given=given):
        rows = adopt.alone(of, bound)
        yield from ((bound, [*needs, *rows]) for needs in adopt.fixed(of, source, bound))


class LauncherRung(Rung):
    """A host function of a `.cu` file that launches kernels."""

    kind = "launcher"

    def __init__(
        self,
        of: Operation,
        path: Path,
        call: str,
        function: _Function,
        bind: Mapping[str, str | float],
        needs: Sequence[str],
    ) -> None:
        self.parameters, self._function, self._call, self.bind = function.parameters, function, call, bind
        self._source = read_text(path)
        idea = f"{call} of {path.name}."
        header = Header(idea, dtypes=tuple(adopt.dtypes(self.parameters)), needs=tuple(needs), align=1)
        super().__init__(of, call, path, header)
        numbers = {str(bind[p.name]): None for p in self.parameters if not p.pointer}
        self.operation = self.operation.with_numbers(numbers)

    @property
    def source(self) -> str:
        return self._source

    @cached_property
    def binds(self) -> frozenset[str]:
        return frozenset({o.name for o in self.operation.operands} & {str(target) for target in self.bind.values()})

    @cached_property
    def _compiled(self) -> tempfile.TemporaryDirectory[str]:
        assert self.path is not None
        return _compiled(self.path.resolve(), self._source, self._call, self._function)

    def bound(self, call: Call) -> Prepared:
        if call.device != "emulator":
            raise RungError("--call runs on the emulator; leave --device cuda out.")
        tensors: dict[int, torch.Tensor] = {}
        words: list[str] = []
        bound = Arguments(self, call.tensors, call.buffers, call.dtype)
        for n, p in enumerate(self.parameters):
            target = self.bind[p.name]
            number = 0.0 if p.pointer else bound.argument(p, self._call, target, call.names)[1]
            words.append(repr(float(number)))
            if not p.pointer or str(target) not in call.tensors:
                continue
            tensors[n] = tensor = call.tensors[str(target)]
            if POINTEES.get(p.ctype) != name_of(tensor.dtype):
                raise RungError(f"{self._call}: {p.ctype}* {p.name} is bound to {target}, of {tensor.dtype}.")
            if not tensor.is_contiguous():
                raise RungError(f"{self._call}: {p.name} is bound to {target}, whose elements have gaps here.")
        program = Path(self._compiled.name) / PROGRAM

        def run() -> None:
            for zero in call.zeroed:
                zero()
            gpuless.current().admit()
            self._run(program, tensors, words)

        return Prepared(self, run, call.tuning)

    def _run(self, program: Path, tensors: Mapping[int, torch.Tensor], words: Sequence[str]) -> None:
        now = gpuless.current().settings
        how = running.Execution(now.order, now.seed, "yes" if now.check_races else "no", quiet=True)
        with tempfile.TemporaryDirectory(prefix="rung-operands-") as folder:
            for n, tensor in tensors.items():
                (Path(folder) / str(n)).write_bytes(_bytes(tensor).numpy().tobytes())
            ended = running.run(program, [folder, *words], how, keep=True, seconds=SECONDS)
            told = ended.report.get("findings", [])
            faults = [fault for fault in told if fault["kind"] != "unasked"]  # its caller may ask; the results tell
            for fault in faults:
                if fault["kind"] == "exit":
                    break
                kind: FaultKind = next((kind for kind in FAULTS if kind == fault["kind"]), "bounds")
                more = f" (launched at {fault['launched']})" if "launched" in fault else ""
                text = re.sub(r"from cudaMalloc \((\w+):0\)", r"of '\1'", fault["text"])
                raise EmulatorFault(kind, f"{text}{more}")
            if ended.code and (faults or not told):
                said = ["", *(line for line in (ended.errors + ended.output).splitlines() if line.strip())]
                raise RungError(f"{self._call} ended its process with exit code {ended.code}: {said[-1]}")
            for n, tensor in tensors.items():
                if left := bytearray((Path(folder) / str(n)).read_bytes()):
                    _bytes(tensor).copy_(torch.frombuffer(left, dtype=torch.uint8))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@functools.lru_cache(maxsize=16)
def _compiled(path: Path, source: str, call: str, function: _Function) -> tempfile.TemporaryDirectory[str]:
    """A folder with the program that calls a file's function; it is there as long as somebody holds it."""
    folder = tempfile.TemporaryDirectory(prefix="rung-launcher-")
    here = Path(folder.name)
    operands: list[str] = []
    arguments: list[str] = []
    for n, p in enumerate(function.parameters):
        if p.pointer:
            to, of = rf"\s*{p.name}\b[^;]*DeviceToHost", rf"[^,;]*,\s*{p.name}\b[^;]*HostToDevice"
            of_host = "true" if re.search(rf"\bcudaMemcpy\w*\s*\((?:{to}|{of})", function.text) else "false"
            arguments.append(f"({'const ' * p.const}{p.ctype}*)operands[{len(operands)}].data()")
            operands.append(f'RungOperand(words[1], {n}, "{p.name}", {of_host})')
        else:
            arguments.append(f"({p.ctype})atof(words[{2 + n}])")
    parts = {"path": path, "call": call, "operands": ", ".join(operands), "arguments": ", ".join(arguments)}
    driver = here / f"{path.stem}.cu"
    driver.write_text(_DRIVER.format(**parts))
    executable.compile_file(driver, here / "made.o", executable.Options(include=(str(path.parent),)))
    executable.link([here / "made.o"], here / PROGRAM)
    return folder
