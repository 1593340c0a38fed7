"""`python -m rung`: the same as the command `rung`."""

from rung.cli import main

main()
