"""Modules in the folder of a submitted file: the service does not have them, so they are sent with the kernels.

Functions and classes of these modules are pickled by value. That covers what the file imports when it is read. What a
kernel imports only when it runs cannot be sent, and is refused.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import cloudpickle

from symphony.problem.errors import WorkloadError
from symphony.runtime.graph import Graph, kernels_of

# Workers have these, or an environment that replaces them.
_INSTALLED = tuple(
    Path(path).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)


def send_modules(folder: Path) -> list[ModuleType]:
    """Have the loaded modules of a folder pickled by value; returns them."""
    place = str(folder.resolve())
    sent = [module for module in list(sys.modules.values()) if _is_beside(module, place)]
    for module in sent:
        cloudpickle.register_pickle_by_value(module)
    return sent


def script_folder() -> Path | None:
    """The folder of the script that runs; None in an interactive session."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


def check_imports(graph: Graph, folder: Path) -> None:
    """Refuse kernels that import a module of the folder when they run. Raises `WorkloadError`."""
    for kernel in kernels_of(graph):
        for function in kernel.implementations.values():
            for name in _imports(function) if isinstance(function, FunctionType) else ():
                if _found_in(name, folder):
                    raise WorkloadError(
                        f"kernel {kernel.name!r} imports {name!r} when it runs, and only this folder has it",
                        where=f"graph {graph.name!r}",
                        hint=f"write `import {name}` at the top of the file, outside of the function: then it is sent",
                    )


def _is_beside(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or module.__name__ == "__main__":
        return False
    return module.__name__.partition(".")[0] != "symphony" and _is_within(file, folder)


@cache  # asked at every submission, of all modules: to resolve the paths of two thousand takes a tenth of a second
def _is_within(file: str, folder: str) -> bool:
    path = Path(file).resolve()
    return path.is_relative_to(folder) and not any(path.is_relative_to(place) for place in _INSTALLED)


def _imports(function: FunctionType) -> Iterator[str]:
    """Modules that a function imports, in its own code and in that of the functions of its module that it calls."""
    todo: list[CodeType] = [function.__code__]
    met: set[CodeType] = set()
    while todo:
        code = todo.pop()
        if code in met:
            continue
        met.add(code)
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                yield str(step.argval)
            elif step.opname == "LOAD_GLOBAL":
                used = function.__globals__.get(str(step.argval))
                todo += [used.__code__] if isinstance(used, FunctionType) else []
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _found_in(name: str, folder: Path) -> bool:
    first = name.partition(".")[0]
    return bool(first) and ((folder / f"{first}.py").is_file() or (folder / first / "__init__.py").is_file())
