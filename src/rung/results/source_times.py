"""Times that the sources of this project report, to stand beside what is measured."""

# Softmax, (linear, tree) in milliseconds by size, on the source's machine.
SOURCE_MS = {
    256: (0.135, 0.027),
    512: (0.156, 0.044),
    1024: (0.300, 0.088),
    2048: (0.619, 0.205),
    4096: (1.456, 0.641),
    8192: (3.719, 2.071),
}
