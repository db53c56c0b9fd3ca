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
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

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
MARK = "SYMPHONY_TEST_FLAGS"  # set once the flags were tried
SHARED = "SYMPHONY_TEST_PROGRAMS"  # the folder of compiled programs
FLAGS = (
    "xla_cpu_use_fusion_emitters=false",
    "xla_backend_optimization_level=0",
    "xla_cpu_parallel_codegen_split_count=1",
    f"xla_disable_hlo_passes={','.join(LEFT_OUT)}",
)


def accepted(flags: Sequence[str]) -> bool:
    """Whether this XLA takes these flags: it ends the process when it is given one that it does not have."""
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def compile_quickly() -> None:
    """Set the flags, beside those that are set already. Processes that tests start take over what the first found."""
    if MARK in os.environ:
        return
    given = os.environ.get("XLA_FLAGS", "")
    flags = [f"--{flag}" for flag in FLAGS if flag.split("=")[0] not in given]
    if not accepted(flags):
        flags = [flag for flag in flags if accepted([flag])]
    os.environ |= {"XLA_FLAGS": " ".join([given, *flags]).strip(), MARK: "1"}


def share_programs() -> None:
    """Keep what takes long to compile in a folder for all processes of this run, which goes with the first of them.

    Tests use JAX's cache alone: Symphony's own finds programs by its source, and tests replace parts of that.
    """
    os.environ["SYMPHONY_PROGRAM_CACHE"] = "off"
    if SHARED not in os.environ:
        folder = tempfile.mkdtemp(prefix="symphony-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ |= {SHARED: folder}
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


def share_bytecode() -> None:
    """Where Python must not write bytecode beside its sources, keep it in the folder of this run.

    Otherwise every process that tests start compiles all modules of JAX and Symphony, for one to three seconds. Call it
    after `share_programs`.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(os.environ[SHARED], "bytecode")
        sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False


def environment_of_commands() -> dict[str, str]:
    """For processes that run Symphony as it is: they find each other's programs without tracing."""
    return {**os.environ, "SYMPHONY_PROGRAM_CACHE": os.environ[SHARED]}
