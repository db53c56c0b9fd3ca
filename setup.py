"""The one part that is compiled; everything else is in pyproject.toml."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel


class AnyPython(bdist_wheel):
    """The compiled part is loaded with ctypes: it depends on the platform, but on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


SOURCE = "src/symphony/runtime/native.c"
DIGEST = hashlib.sha256((Path(__file__).parent / SOURCE).read_bytes()).hexdigest()
native = Extension(
    "symphony.runtime._native",
    [SOURCE],
    define_macros=[("NATIVE_SOURCE", f'"{DIGEST}"')],  # what was compiled: runtime/native.py takes no other
    extra_compile_args=["-O3", "-g0"],
    libraries=["m"],
    py_limited_api=True,  # one file name for all versions
    optional=True,  # without a compiler, decisions are taken in NumPy
)
setup(ext_modules=[native], cmdclass={"bdist_wheel": AnyPython})
