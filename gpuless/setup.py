"""Compiles the machine, the driver and the runtime into a wheel, so that no compiler is needed where it is installed. A
wheel that is built without g++ compiles at first use, as an editable installation does."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildMachine(build_py):
    def run(self) -> None:
        super().run()
        compiler = shutil.which(os.environ.get("RUNG_CXX", "g++"))
        if self.editable_mode or compiler is None:
            return
        path = Path(self.build_lib).resolve() / "gpuless" / "machine" / "compiling.py"
        spec = importlib.util.spec_from_file_location("compiling", path)
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        # The C++ library is part of it: an older one than here may be on the machine that installs the wheel.
        flags = ("-static-libstdc++", "-static-libgcc", *(compiling.X86_64 if platform.machine() == "x86_64" else ()))
        if wrong := compiling.build(compiler, compiling.shipped(), flags):
            print(f"the executor is compiled at first use: {wrong}")
            return
        # The driver and the runtime need CUDA's headers and what gpuless imports: they are there where a wheel is built
        # without isolation (tools/wheels.py).
        code = f"from gpuless.program import toolkit; toolkit.ship({flags!r})"
        environment = os.environ | {"PYTHONPATH": str(Path(self.build_lib).resolve())}
        if subprocess.run([sys.executable, "-B", "-c", code], env=environment).returncode:
            print("the driver and the runtime are compiled at first use")


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """For any Python, and the oldest glibc that has all symbols of the libraries."""
        built = [path.read_bytes() for path in Path(self.get_finalized_command("build").build_lib).rglob("*.so*")]
        needed = {(int(a), int(b)) for data in built for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)}
        usual = super().get_tag()[2]
        return "py3", "none", "manylinux_{}_{}_{}".format(*max(needed), platform.machine()) if needed else usual


class Platform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildMachine, "bdist_wheel": AnyPython}, distclass=Platform)
