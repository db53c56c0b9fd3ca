"""Files as they arrive when something went wrong: cut off, or with a wrong byte."""

from __future__ import annotations

import random
from pathlib import Path

from symphony.lowering import readers
from symphony.lowering.readers.reading import read_bytes
from symphony.problem.errors import DataError, SymphonyError


def try_all(name: str, file: Path, *, ask: Path | None = None, times: int = 8, lenient: bool = False) -> int:
    """Read a file cut off and spoilt in many ways; anything but a `FileContents` or a `SymphonyError` fails the test.

    `ask`: what is read, if that is the folder of the file. `lenient`: single entries may be left out even if strict.
    Gives how many of the damaged files were refused.
    """
    whole = read_bytes(file)
    rng = random.Random(len(whole))
    damaged = [b"", b"\x1f\x8b\x08garbage", bytes(range(256))]
    damaged += [whole[: rng.randrange(len(whole))] for _ in range(times)] + [whole[:-1], whole[:-2]]
    for _ in range(times):
        at = rng.randrange(len(whole))
        damaged.append(
            whole[:at] + rng.choice([b"\xff", b"\0", b"-", b"9", b"\n", b"{", b"#", b"", b"nan"]) + whole[at + 1 :]
        )
    refused = 0
    for content in damaged:
        file.write_bytes(content)
        for strict in (True, False):
            try:
                reading = readers.read(ask or file, name, strict=strict)
            except SymphonyError as error:
                refused += 1
                assert not strict or isinstance(error, DataError)
                assert file.parent.name in str(error), "the error does not say which file"
                assert error.hint
            else:
                assert lenient or not strict or not reading.problems
    file.write_bytes(whole)
    return refused


def write(path: Path, text: str) -> Path:
    """A file with that text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
