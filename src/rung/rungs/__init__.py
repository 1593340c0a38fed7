"""The definition of a rung: header, expressions and arguments; CUDA, Python and library rungs with one interface."""
