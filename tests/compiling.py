"""Tests compile many programs and run each of them briefly: leave out what costs more than it brings.

Imported before JAX starts. Without optimisation, and with XLA's older code generator, a simulator compiles three
times as fast; scenarios side by side run at a sixth of the speed, so tests run few steps (`conftest.py`). A program
is not split into parts that compile side by side: the cores are busy with other tests, and splitting takes a seventh
of the time. Loops are taken as they are written: to search them for what does not change from turn to turn takes a
quarter of the time where a program runs and learns, and brings nothing in a brief run. Passes that look through a whole
program for what none of ours has (numbers of 4 and 8 bits, convolutions), and the check of the
program between passes, are a tenth of the time. What one process has compiled, the others read: processes of tests, and
commands that tests start.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

SMALL_NUMBERS = ("s4", "u4", "f4e2m1fn", "f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz")
SMALL_NUMBERS += ("f8e5m2", "f8e5m2fnuz", "f8e8m0fnu")
LEFT_OUT = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
    "while-loop-trip-count-annotator",
    "hlo-verifier",
    "cpu-parallel-task-assigner",
    "tree_reduction_rewriter",
    "dynamic-dimension-simplifier",
    "convolution-group-converter",
    "batchnorm_expander",
    "stochastic_convert_decomposer",
    "sub-byte-size-setter",
    *(f"float-normalization-{name}" for name in SMALL_NUMBERS),
)
FLAGS = (
    "xla_cpu_use_fusion_emitters=false",
    "xla_backend_optimization_level=0",
    "xla_cpu_parallel_codegen_split_count=1",
    f"xla_disable_hlo_passes={','.join(LEFT_OUT)}",
)


def known(flag: str) -> bool:
    """Whether this XLA has a flag: it ends the process when it is given one that it has not."""
    spec = find_spec("jaxlib")
    name = flag.split("=", maxsplit=1)[0].encode()
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    for path in folder.rglob("libjax_common*"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(name) >= 0:
                return True
    return False


def compile_quickly() -> None:
    """Set the flags, beside those that are set already."""
    given = os.environ.get("XLA_FLAGS", "")
    flags = [f"--{flag}" for flag in FLAGS if flag.split("=")[0] not in given and known(flag)]
    os.environ["XLA_FLAGS"] = " ".join([given, *flags]).strip()


def share_programs() -> None:
    """Keep what takes long to compile in a folder for all processes of this run, which goes with the first of them."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="symphony-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
