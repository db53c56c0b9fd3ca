"""Before any test module is imported."""

from tests.compiling import compile_quickly

compile_quickly()
