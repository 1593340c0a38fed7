"""Compiles what the tests need of C++. Nothing need be installed: CI does it while pip installs the rest."""

from gpuless import machine
from rung.models.cpu import build

begun = [build.begin(dtype, source) for dtype in build.BITS for source in (build.DECODE, build.PASSES)]
machine.compiled()
for one in filter(None, begun):
    one.wait()
