"""A host function that launches kernels, as a rung: bound by name, and called in a program of its own,
whose memory holds nothing but the call's operands."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

import gpuless
from gpuless.base import disk_cache
from gpuless.base.errors import TooLong
from gpuless.base.files import read_text
from gpuless.compile.host_code import host_part
from gpuless.compile.source import Parameter, function_parameters
from gpuless.program import building, execution
from rung.arrays import Array, bits_of, is_contiguous, to_numpy
from rung.dtypes import name_of
from rung.errors import FAULTS, EmulatorFault, FaultKind, OutOfTime, RungError
from rung.operation import Operation
from rung.rungs.arguments import POINTEES, Arguments, formats_of
from rung.rungs.base import Call, Prepared, Rung
from rung.rungs.header import Header

SECONDS = 120.0  # of one call; executed instructions are limited first
START = 300_000  # instructions that take as long as a program's start
# Operands lie in files named 0, 1, ... of the folder that the program is given, and numbers follow it. Device memory is
# allocated in a line of its own for each operand, in a file of the operand's name: reports name it so.
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
    RungOperand(const char* folder, int number, bool of_host) : of_host(of_host)
    {{
        path = std::string(folder) + "/" + std::to_string(number);
        FILE* file = fopen(path.c_str(), "rb");
        if (!file) return;
        fseek(file, 0, SEEK_END), bytes.resize(size_t(ftell(file))), rewind(file);
        if (fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) exit(98);
        fclose(file);
    }}
    void fill()
    {{
        if (device) cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
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
{allocations}
#line 1 "made.cu"
    for (RungOperand& one : operands) one.fill();
    {call}({arguments});
    if (cudaError_t error = cudaDeviceSynchronize()) return fprintf(stderr, "%s\\n", cudaGetErrorString(error)), 97;
    for (RungOperand& one : operands) one.leave();
    return 0;
}}
"""


@dataclass(frozen=True)
class HostFunction:
    text: str
    parameters: tuple[Parameter, ...]


def plain_name(call: str) -> str:
    return call.partition("<")[0].rpartition("::")[2]


def host_functions(source: str, path: Path) -> dict[str, HostFunction]:
    """The host functions of a file that take pointers."""
    found: dict[str, HostFunction] = {}
    for text in host_part(source).split("\0"):
        try:
            name, parameters = function_parameters(text, source, str(path))
        except RungError:  # a parameter that is a function, for example
            continue
        if any(p.pointer for p in parameters):
            found[name] = HostFunction(text, parameters)
    return found


class HostFunctionRung(Rung):
    """A host function of a `.cu` file that launches kernels."""

    kind = "launcher"

    def __init__(self, of: Operation, path: Path, table: Mapping[str, Any]) -> None:
        """`table` has the call (a function, with template arguments), bind, needs, and what holds of its header."""
        self._source, self._call, self.bind = read_text(path), str(table["call"]), dict(table["bind"])
        name = plain_name(self._call)
        if (function := host_functions(self._source, path).get(name)) is None:
            raise RungError(f"{path} defines no host function {name} that takes pointers.")
        self.parameters, self._function = function.parameters, function
        header = Header(
            f"{self._call} of {path.name}.",
            adopted=str(table.get("adopted", "")),
            dtypes=tuple(formats_of(self.parameters)),
            needs=tuple(table["needs"]),
            zeroed=tuple(table.get("zeroed", ())),
            align=1,
        )
        super().__init__(of, self._call, path, header)
        numbers = {str(self.bind[p.name]): None for p in self.parameters if not p.pointer}
        self.operation = self.operation.with_numbers(numbers)

    @property
    def source(self) -> str:
        return self._source

    @cached_property
    def binds(self) -> frozenset[str]:
        return frozenset({o.name for o in self.operation.operands} & {str(target) for target in self.bind.values()})

    @cached_property
    def _program(self) -> Path:
        assert self.path is not None
        return _program(self.path.resolve(), self._source, self._call, self._function)

    def compile(self) -> None:
        """Makes the program that calls the function; a copy of this process has it then."""
        _ = self._program

    def bound(self, call: Call) -> Prepared:
        if call.device != "emulator":
            raise RungError("--call runs on the emulator; leave --device cuda out.")
        tensors: dict[int, Array] = {}
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
            if not is_contiguous(tensor):
                raise RungError(f"{self._call}: {p.name} is bound to {target}, whose elements have gaps here.")
        program = self._program

        def run() -> None:
            for zero in call.zeroed:
                zero()
            gpuless.current().admit()
            self._run(program, tensors, words)

        return Prepared(self, run, call.tuning)

    def _run(self, program: Path, tensors: Mapping[int, Array], words: Sequence[str]) -> None:
        now = gpuless.current().settings
        races: Literal["yes", "no"] = "yes" if now.check_races else "no"
        how = execution.Execution(now.order, now.seed, races, quiet=True, steps=now.steps)
        with tempfile.TemporaryDirectory(prefix="rung-operands-") as folder:
            for n, tensor in tensors.items():
                (Path(folder) / str(n)).write_bytes(_bytes(tensor).tobytes())
            try:
                ended = execution.run([program, folder, *words], how, keep=True, seconds=SECONDS)
            except TooLong:
                raise OutOfTime(f"{self._call} had not ended after {SECONDS:.0f} s") from None
            gpuless.current().steps += START + sum(kernel["instructions"] for kernel in ended.kernels)
            gpuless.current().atomics += sum(kernel["atomics"] for kernel in ended.kernels)
            told = ended.findings()
            # of calls that fail its caller may ask; the results tell
            for fault in (one for one in told if one["kind"] not in ("unasked", "exit")):
                kind: FaultKind = next((kind for kind in FAULTS if kind == fault["kind"]), "bounds")
                more = f" (launched at {fault['launched']})" if "launched" in fault else ""
                text = re.sub(r"from cudaMalloc \((?:[^()]*/)?(\w+):1\)", r"of '\1'", fault["text"])
                where = fault.get("place"), fault.get("related", ()), {"memory": fault.get("memory", "")}
                raise EmulatorFault(kind, f"{text}{more}", *where)
            if ended.code and not ended.faults:
                said = ["", *(line for line in (ended.errors + ended.output).splitlines() if line.strip())]
                raise RungError(f"{self._call} ended its process with exit code {ended.code}: {said[-1]}")
            for n, tensor in tensors.items():
                if left := bytearray((Path(folder) / str(n)).read_bytes()):
                    _bytes(tensor)[...] = np.frombuffer(left, np.uint8)


def _bytes(tensor: Array) -> Array:
    return bits_of(to_numpy(tensor).reshape(-1), "uint8")


@functools.lru_cache(maxsize=16)
def _program(path: Path, source: str, call: str, function: HostFunction) -> Path:
    """The program that calls a file's function."""
    operands: list[str] = []
    arguments: list[str] = []
    allocations: list[str] = []
    for n, p in enumerate(function.parameters):
        if p.pointer:
            to, of = rf"\s*{p.name}\b[^;]*DeviceToHost", rf"[^,;]*,\s*{p.name}\b[^;]*HostToDevice"
            of_host = re.search(rf"\bcudaMemcpy\w*\s*\((?:{to}|{of})", function.text)
            one = f"operands[{len(operands)}]"
            if not of_host:
                allocated = f"if (!{one}.bytes.empty()) cudaMalloc(&{one}.device, {one}.bytes.size());"
                allocations.append(f'#line 1 "{p.name}"\n{allocated}')
            arguments.append(f"({'const ' * p.const}{p.ctype}*){one}.data()")
            operands.append(f"RungOperand(words[1], {n}, {'true' if of_host else 'false'})")
        else:
            arguments.append(f"({p.ctype})atof(words[{2 + n}])")
    text = _DRIVER.format(
        path=path, call=call, operands=", ".join(operands), arguments=", ".join(arguments),
        allocations="\n".join(allocations),
    )  # fmt: skip
    digest = hashlib.sha256(f"{path}{source}{text}".encode()).hexdigest()[:24]
    made = disk_cache.folder("launchers") / f"{digest}.cu"
    fresh = made.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(made)
    return building.program([made], building.Options(include=(str(path.parent),)))
