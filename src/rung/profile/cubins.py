"""A launch of a kernel in a cubin, by itself: counted, and its time predicted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuless
from rung.errors import RungError


@dataclass(frozen=True)
class Launch:
    """A launch as options say it."""

    grid: str | None = None
    block: str | None = None
    shared: int = 0
    cluster: str | None = None
    kernel: str | None = None
    args: str = ""

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{name}" for name, value in vars(self).items() if value]

    def words(self) -> list[str]:
        return [word for name, value in vars(self).items() if value for word in (f"--{name}", str(value))]

    def config(self, path: Path) -> Any:
        from gpuless.launch import LaunchConfig

        if not (self.grid and self.block):
            example = "--grid 4 --block 256 --args 'x:f32[1024] out:f32[1024]=unset n:i32=1024'"
            raise RungError(f"{path} does not say how its kernel is launched: give {example}.")
        cluster = _three(self.cluster) if self.cluster else None
        return LaunchConfig(_three(self.grid), _three(self.block), self.shared, False, cluster)


def _three(text: str) -> tuple[int, int, int]:
    try:
        x, y, z = (*(int(part) for part in text.replace("x", ",").split(",")), 1, 1)[:3]
    except ValueError:
        raise RungError(f"{text!r} is no size of a grid or a block; give 4 or 4,2,1.") from None
    return x, y, z


def count(path: Path, launch: Launch) -> Any:
    """Counts the memory traffic of a launch."""
    import numpy as np

    from rung.profile.counted import PATIENCE, Counted

    of, kernel, given = read(path, launch)
    arrays = [one.made(np.random.default_rng(0), aligned=True) for one in given]
    with gpuless.current().recorded() as launches, gpuless.under(counters=True, poison=False, seconds=PATIENCE):
        arguments = [one.argument(array) for one, array in zip(given, arrays, strict=True)]
        of.launch(kernel, launch.config(path), arguments)
    return Counted(str(path), "", "", launches, {})


def predict(path: Path, launch: Launch, gpu: str) -> Any:
    """How long a launch takes on a GPU."""
    import numpy as np

    from gpuless import timing
    from gpuless.facts import gpus
    from rung.profile.counted import PATIENCE
    from rung.profile.prediction import Prediction

    of, kernel, given = read(path, launch)
    arrays = [one.made(np.random.default_rng(0), aligned=True) for one in given]
    size = sum(array.nbytes for array in arrays if array is not None)
    session = gpuless.current()
    with session.under(poison=False, seconds=PATIENCE), session.predicted(gpu, timing.sets_of(size)) as launches:
        arguments = [one.argument(array) for one, array in zip(given, arrays, strict=True)]
        of.launch(kernel, launch.config(path), arguments)
    return Prediction(gpus.find(gpu).name, launches)


def read(path: Path, launch: Launch) -> tuple[Any, str, list[Any]]:
    from gpuless import cubins

    of = cubins.read(path)
    given = [cubins.Given.parsed(word, number) for number, word in enumerate(shlex.split(launch.args), 1)]
    return of, cubins.select_kernel(of.kernels, launch.kernel, str(path)), given
