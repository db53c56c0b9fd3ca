"""`python -m symphony`: the `symphony` command of this very interpreter, wherever its scripts are."""

from __future__ import annotations

from symphony.cli import main

if __name__ == "__main__":  # a worker process of multiprocessing imports it under another name
    main()
