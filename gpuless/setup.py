"""Compiles the executor of machine code into a wheel, so that `rung check` and `rung count` need no compiler where it
is installed. A wheel that is built without g++ compiles at first use, as an editable installation does."""

import importlib.util
import os
import platform
import shutil
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


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Platform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildMachine, "bdist_wheel": AnyPython}, distclass=Platform)
