"""A host function that launches kernels, as a rung: bound by name, and called in a program of its own (`rung run`'s),
whose memory holds nothing but the call's operands."""

from __future__ import annotations

import fnmatch
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rung.cuda.host_code import host_part
from rung.cuda.source import Parameter, function_parameters
from rung.dtypes import name_of
from rung.emulator import executable, running
from rung.emulator.module import ambient, launching
from rung.errors import FAULTS, EmulatorFault, FaultKind, RungError
from rung.expressions import evaluate
from rung.files import read_text
from rung.lazy import torch
from rung.operation import Operation
from rung.rungs import adopt
from rung.rungs.arguments import POINTEES
from rung.rungs.base import Call, Prepared, Rung
from rung.rungs.header import Header

SECONDS = 60.0  # of one call
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
    RungOperand(const char* folder, int number, const char* name)
    {{
        path = std::string(folder) + "/" + std::to_string(number);
        FILE* file = fopen(path.c_str(), "rb");
        if (!file) return;
        fseek(file, 0, SEEK_END), bytes.resize(size_t(ftell(file))), rewind(file);
        if (fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) exit(98);
        fclose(file);
        cudaMalloc(&device, bytes.size(), RungSite{{name, 0}});
        cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    }}
    void leave()
    {{
        if (!device || cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost)) return;
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


def select(of: Operation, path: Path, calls: Sequence[str], words: Sequence[str]) -> list[LauncherRung]:
    """The launchers of a file that the patterns name. `words` are NAME=VALUE for parameters, and conditions."""
    source = read_text(path)
    defined = dict(function_parameters(text, source, str(path)) for text in host_part(source).split("\0"))
    defined = {name: parameters for name, parameters in defined.items() if any(p.pointer for p in parameters)}
    given = dict(word.split("=", 1) for word in words if word.partition("=")[0].isidentifier() and "==" not in word)
    needs = [word for word in words if word.partition("=")[0] not in given]
    found: list[LauncherRung] = []
    for call in calls:
        plain = call.partition("<")[0].rpartition("::")[2]
        names = [name for name in defined if name == plain or fnmatch.fnmatchcase(name, call)]
        if not names:
            listed = ", ".join(name for name in defined if name != "main") or "none"
            raise RungError(f"{path} defines no host function {call} that takes pointers; it has {listed}.")
        found += [LauncherRung(of, path, call if n == plain else n, defined[n], given, needs) for n in names]
    unknown = given.keys() - {p.name for rung in found for p in rung.parameters}
    if unknown:
        raise RungError(f"--with {min(unknown)}: no launcher has such a parameter.")
    return found


class LauncherRung(Rung):
    """A host function of a `.cu` file that launches kernels."""

    kind = "launcher"

    def __init__(
        self,
        of: Operation,
        path: Path,
        call: str,
        parameters: tuple[Parameter, ...],
        given: Mapping[str, str],
        needs: Sequence[str] = (),
    ) -> None:
        self.parameters, self._call = parameters, call
        own = {name: value for name, value in given.items() if name in {p.name for p in parameters}}
        self._source = read_text(path)
        self.bind, dtypes, conditions = adopt.launcher(of, self._source, path, call, parameters, own)
        idea = f"{call} of {path.name}."
        super().__init__(of, call, path, Header(idea, dtypes=tuple(dtypes), needs=(*conditions, *needs), align=1))

    @property
    def source(self) -> str:
        return self._source

    @cached_property
    def binds(self) -> frozenset[str]:
        return frozenset({o.name for o in self.operation.operands} & {str(target) for target in self.bind.values()})

    @cached_property
    def _program(self) -> Path:
        assert self.path is not None
        self._folder = tempfile.TemporaryDirectory(prefix="rung-launcher-")
        here = Path(self._folder.name)
        operands: list[str] = []
        arguments: list[str] = []
        for n, p in enumerate(self.parameters):
            if p.pointer:
                arguments.append(f"({'const ' * p.const}{p.ctype}*)operands[{len(operands)}].device")
                operands.append(f'RungOperand(words[1], {n}, "{p.name}")')
            else:
                arguments.append(f"({p.ctype})atof(words[{2 + n}])")
        parts = {"path": self.path.resolve(), "call": self._call}
        source = here / f"{self.path.stem}.cu"
        source.write_text(_DRIVER.format(**parts, operands=", ".join(operands), arguments=", ".join(arguments)))
        made, program = here / "made.o", here / "made"
        executable.compile_file(source, made, executable.Options(include=(str(self.path.resolve().parent),)))
        executable.link([made], program)
        return program

    def bound(self, call: Call) -> Prepared:
        if call.device != "emulator":
            raise RungError("--call runs on the emulator; leave --device cuda out.")
        tensors: dict[int, torch.Tensor] = {}
        words: list[str] = []
        for n, p in enumerate(self.parameters):
            target = self.bind[p.name]
            words.append("0" if p.pointer else repr(float(evaluate(str(target), call.names))))
            if not p.pointer or str(target) not in call.tensors:
                continue
            tensors[n] = tensor = call.tensors[str(target)]
            if POINTEES.get(p.ctype) != name_of(tensor.dtype):
                raise RungError(f"{self._call}: {p.ctype}* {p.name} is bound to {target}, of {tensor.dtype}.")
            if not tensor.is_contiguous():
                raise RungError(f"{self._call}: {p.name} is bound to {target}, whose elements have gaps here.")
        program = self._program

        def run() -> None:
            launching()
            self._run(program, tensors, words)

        return Prepared(self, run, call.tuning)

    def _run(self, program: Path, tensors: Mapping[int, torch.Tensor], words: Sequence[str]) -> None:
        now = ambient()
        how = running.Execution(now.order, now.seed, "yes" if now.check_races else "no", quiet=True)
        with tempfile.TemporaryDirectory(prefix="rung-operands-") as folder:
            for n, tensor in tensors.items():
                (Path(folder) / str(n)).write_bytes(_bytes(tensor).numpy().tobytes())
            ended = running.run(program, [folder, *words], how, keep=True, seconds=SECONDS)
            for fault in ended.report.get("findings", []):
                if fault["kind"] == "exit":
                    break
                if fault["kind"] == "unasked":  # a host function leaves that to its caller; the results tell
                    continue
                kind: FaultKind = next((kind for kind in FAULTS if kind == fault["kind"]), "bounds")
                more = f" (launched at {fault['launched']})" if "launched" in fault else ""
                text = re.sub(r"from cudaMalloc \((\w+):0\)", r"of '\1'", fault["text"])
                raise EmulatorFault(kind, f"{text}{more}")
            if ended.code:
                said = ["", *(line for line in (ended.errors + ended.output).splitlines() if line.strip())]
                raise RungError(f"{self._call} ended its process with exit code {ended.code}: {said[-1]}")
            for n, tensor in tensors.items():
                if left := bytearray((Path(folder) / str(n)).read_bytes()):
                    _bytes(tensor).copy_(torch.frombuffer(left, dtype=torch.uint8))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
