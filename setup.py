"""The parts that are compiled; everything else is in pyproject.toml."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel


class AnyPython(bdist_wheel):
    """The compiled part is loaded with ctypes: it depends on the platform, but on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


PACKAGE = Path("src/symphony")
SOURCES = [PACKAGE / "estimation/flow_filter.c", PACKAGE / "runtime/native.c"]  # as in problem/native_code.py
DIGEST = hashlib.sha256(b"".join((Path(__file__).parent / source).read_bytes() for source in SOURCES)).hexdigest()
native = Extension(
    "symphony._native",
    [str(source) for source in SOURCES],
    define_macros=[("NATIVE_SOURCE", f'"{DIGEST}"')],  # what was compiled: problem/native_code.py takes no other
    extra_compile_args=["-O3", "-g0", "-fno-fast-math"],  # whatever CFLAGS says, infinite and NaN have a meaning
    libraries=["m"],
    py_limited_api=True,  # one file name for all versions
    optional=True,  # without a compiler, NumPy does the same
)
setup(ext_modules=[native], cmdclass={"bdist_wheel": AnyPython})
