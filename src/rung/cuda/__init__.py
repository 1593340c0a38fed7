"""From CUDA C++ source to running code: compile, load, launch, emulate. Knows nothing of operations."""
