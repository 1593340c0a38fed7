"""`python -m gpuless.driver`: the variables of a process that finds the GPU in software, for `env $(...) COMMAND`."""

from __future__ import annotations

from gpuless.driver import environment

if __name__ == "__main__":
    for name, value in environment().items():
        print(f"{name}={value}")
