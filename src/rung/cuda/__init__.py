"""From CUDA C++ source to running code: compile, load, launch, emulate. Independent of operations."""
