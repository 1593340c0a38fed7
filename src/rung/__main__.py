"""`python -m rung`: the same as the command `rung`."""

from rung.cli import main

if __name__ == "__main__":  # not in a process of multiprocessing, which imports this, too
    main()
