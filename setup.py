"""The one part that is compiled; everything else is in pyproject.toml."""

from setuptools import Extension, setup

# Loaded with ctypes, so without Python's headers. Without a compiler the same decisions are taken in NumPy.
native = Extension(
    "symphony.runtime._native", ["src/symphony/runtime/native.c"], extra_compile_args=["-O3"], optional=True
)

setup(ext_modules=[native])
