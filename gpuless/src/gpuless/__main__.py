"""`python -m gpuless`."""

from gpuless.program.command import main

if __name__ == "__main__":
    main()
