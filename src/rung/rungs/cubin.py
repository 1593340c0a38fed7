"""A cubin of any compiler as a rung: a `.toml` file says how its kernels are launched."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuless.base.expressions import evaluate, evaluate_int
from gpuless.base.files import read_bytes, read_text
from gpuless.compile import elf
from gpuless.launch import LaunchConfig
from rung.errors import RungError
from rung.operation import Operation
from rung.rungs.base import Call, Prepared, Rung
from rung.rungs.header import of_constants

_OWN = {"cubin", "launch"}
_LAUNCH = {"kernel", "grid", "block", "shared", "cluster", "cooperative", "args"}


class CubinRung(Rung):
    """A `.toml` file: `cubin`, keys of a header, and each `[[launch]]` with grid, block, shared, and `args` in the
    order of the kernel's parameters: an operand, a buffer, or a number as "i32 = B * T"."""

    kind = "cubin"

    def __init__(self, operation: Operation, path: Path) -> None:
        self._text = read_text(path)
        try:
            keys = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise RungError(f"{path} is not TOML: {error}.") from None
        self._launches: list[dict[str, Any]] = keys.get("launch", [])
        if not self._launches:
            raise RungError(f"{path} launches nothing; add [[launch]] with kernel, grid, block and args.")
        for launch in self._launches:
            if unknown := launch.keys() - _LAUNCH:
                raise RungError(f"{path}: a launch has no key {min(unknown)!r}; it has {', '.join(sorted(_LAUNCH))}.")
        self._cubin = path.with_name(keys.get("cubin", f"{path.stem}.cubin"))
        given = {name: value for name, value in keys.items() if name not in _OWN}
        super().__init__(
            operation, path.stem, path, of_constants(given, given.get("idea", f"{self._cubin.name}."), str(path))
        )

        known = [*(o.name for o in operation.operands), *self.header.buffers]
        for word in (word for launch in self._launches for word in launch.get("args", ())):
            if "=" not in str(word) and word not in known:
                raise RungError(
                    f"{path}: args has {word!r}; it names {', '.join(known)}, or a number as 'i32 = B * T'."
                )

    @cached_property
    def code(self) -> bytes:
        data = read_bytes(self._cubin)
        if not data.startswith(b"\x7fELF"):
            raise RungError(f"{self._cubin} is no cubin; compile for sm_90a with -cubin.")
        return data

    @property
    def source(self) -> str:
        return f"{self._text}\n# {hashlib.sha256(self.code).hexdigest()}\n"

    @property
    def binds(self) -> frozenset[str]:
        given = {word for launch in self._launches for word in launch.get("args", ())}
        return frozenset(o.name for o in self.operation.operands) & given

    def bound(self, call: Call) -> Prepared:
        from gpuless import cubins

        if call.device == "cuda":
            raise RungError(f"{self.full_name} is a cubin: it is executed without a GPU; add --device emulator.")
        loaded = cubins.loaded(self.code, str(self._cubin))
        tensors = {**call.tensors, **call.buffers}
        made = []
        for launch in self._launches:
            kernel = cubins.select_kernel(elf.kernels(self.code), launch.get("kernel"), str(self._cubin))

            def size(key: str, default: str = "1", launch: dict[str, Any] = launch) -> tuple[int, int, int]:
                given = launch.get(key, default)
                parts = given if isinstance(given, list) else [given]
                x, y, z = (*(evaluate_int(part, call.names, key) for part in parts), 1, 1)[:3]
                return x, y, z

            (shared, _, _), cluster = size("shared", "0"), size("cluster")
            config = LaunchConfig(
                size("grid"),
                size("block"),
                shared,
                bool(launch.get("cooperative")),
                cluster if max(cluster) > 1 else None,
            )
            arguments = []
            for word in launch.get("args", ()):
                if "=" not in str(word):
                    arguments.append(cubins.of_tensor(word, tensors.get(word)))
                    continue
                kind, _, expression = (part.strip() for part in str(word).partition("="))
                arguments.append(cubins.of_number(expression, kind, evaluate(expression, call.names)))
            made.append((kernel, config, arguments))

        def run() -> None:
            for zero in call.zeroed:
                zero()
            for kernel, config, arguments in made:
                loaded.launch(kernel, config, arguments)

        return Prepared(self, run, call.tuning, buffers=call.buffers)
