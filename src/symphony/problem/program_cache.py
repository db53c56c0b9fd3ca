"""Compiled programs, kept in a folder that all processes of a user share.

A program of Symphony is found by Symphony's own source, the shapes of its arguments and everything else that it depends
on, before JAX traces it: tracing, lowering and compilation are all skipped (`compiled`). Programs with code of a user
inside, such as a policy, are found by JAX's own cache after lowering (`keep_programs`).

The folder may be deleted at any time. Entries appear complete or not at all; an entry that cannot be read is compiled
again. Beyond `MAX_CACHE_BYTES`, the entries that were not used for longest are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import platform
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "SYMPHONY_PROGRAM_CACHE"  # "off": keep nothing; otherwise the folder
CACHE_OFF = "off"
MAX_CACHE_BYTES = 512 << 20
PRUNED_SHARE = 0.75  # of the bound, which is left after entries were removed
ENTRY_SUFFIXES = (".program", "-cache")  # Symphony's entries, JAX's entries
JAX_READ = "/jax/compilation_cache/cache_hits"  # an event of JAX
MIN_COMPILE_S = 0.1  # JAX keeps programs that took at least as long to compile
# Packages whose code is identified by their versions. Programs with other code inside are not found before tracing.
VERSIONED_PACKAGES = frozenset({"symphony", "jax", "jaxlib", "equinox", "numpy", *sys.stdlib_module_names})


def cache_folder() -> Path | None:
    """The folder of compiled programs, which need not exist; None if they are not kept.

    The first of: SYMPHONY_PROGRAM_CACHE, JAX's own setting (JAX_COMPILATION_CACHE_DIR), the user's cache folder.
    """
    named = os.environ.get(CACHE_VARIABLE, "")
    if named == CACHE_OFF:
        return None
    jax_folder = _jax_folder()
    if named or jax_folder:
        return Path(named or jax_folder)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home folder
        return None
    return home / "symphony" / "programs"


def keep_programs(otherwise: Path | None = None) -> None:
    """Switch on JAX's cache of compiled programs in `cache_folder`, unless the user has chosen a folder for it.

    If the cache folder cannot be written, `otherwise` is used.
    """
    import jax

    folder = cache_folder()
    if folder is None or _jax_folder():
        return
    if not _prepare_folder(folder):
        if otherwise is None:
            return
        folder = otherwise
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    prune(folder)


def compiled(
    function: Callable[..., Any],
    constants: Any,
    arguments: tuple[Any, ...],
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """`function(constants, *arguments)` as a program of its arguments, read from the cache folder or compiled.

    `function` is defined in a module of Symphony and reads no global value that changes. `arguments` are trees of
    arrays; the program takes arrays of the same shapes. A version of XLA that does not know the `options` compiles
    without them.
    """
    path = _entry(function, constants, arguments, options)
    program = None if path is None else _read(path, arguments)
    if program is None:
        if path is None:
            keep_programs()
        reads = _jax_reads()[JAX_READ]
        program = _compile(partial(function, constants), arguments, options)
        if path is not None and _jax_reads()[JAX_READ] == reads:
            _write(path, program)
    return program


def compiled_call(function: Callable[..., Any], *arguments: Any, options: dict[str, Any] | None = None) -> Any:
    """Call a function through `compiled`: the arrays in its arguments are inputs of the program, the rest constants."""
    import equinox as eqx

    arrays, constants = eqx.partition(arguments, eqx.is_array)
    return compiled(call_combined, (function, constants), (arrays,), options)(arrays)


def call_combined(constants: tuple[Callable[..., Any], Any], arrays: Any) -> Any:
    """Call a function with arguments that `equinox.partition` has separated into arrays and constants."""
    import equinox as eqx

    function, rest = constants
    return function(*eqx.combine(arrays, rest))


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any] | None) -> Any:
    import jax

    lowered = jax.jit(function).lower(*arguments)
    try:
        return lowered.compile(options)
    except jax.errors.JaxRuntimeError:  # a version of XLA without these options
        return lowered.compile()


@cache
def _jax_reads() -> Counter[str]:
    """Counts the programs that JAX reads from its cache. XLA serialises such a program without all of its code."""
    import jax

    events: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event] if event == JAX_READ else []))
    return events


# --- Keys --------------------------------------------------------------------------------------------------


def _entry(
    function: Callable[..., Any], constants: Any, arguments: tuple[Any, ...], options: dict[str, Any] | None
) -> Path | None:
    """The file of a program; None if it is not kept, or if it contains code whose version is not known."""
    import jax

    folder = cache_folder()
    one_processor = jax.default_backend() == "cpu" and len(jax.devices()) == 1
    if folder is None or not one_processor or not _prepare_folder(folder):
        return None
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    content = (
        _platform(),
        os.environ.get("XLA_FLAGS", ""),
        sorted((name, repr(value)) for name, value in settings.items()),
        jax.config.jax_enable_x64,  # type: ignore[attr-defined]  # may differ between threads
        function,
        options,
        constants,
        jax.tree.map(_shape, arguments),
    )
    buffer = io.BytesIO()
    try:
        _KeyPickler(buffer).dump(content)
    except Exception:  # any object may raise anything when it is pickled
        return None
    return folder / f"{hashlib.blake2b(buffer.getvalue(), digest_size=20).hexdigest()}.program"


def _shape(x: Any) -> tuple[str, tuple[int, ...], str, bool]:
    return "array", tuple(x.shape), str(x.dtype), bool(getattr(x, "weak_type", False))


class _KeyPickler(pickle.Pickler):
    """Equal bytes for equal content, in every process. Refuses functions and classes of unknown version."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # whether equal parts are the same object does not matter

    def reducer_override(self, obj: Any) -> Any:
        module = getattr(obj, "__module__", None) or ""
        if callable(obj) and hasattr(obj, "__qualname__") and module.partition(".")[0] not in VERSIONED_PACKAGES:
            raise pickle.PicklingError(f"{obj!r} is not part of a versioned package")
        return NotImplemented


@cache
def _platform() -> tuple[str, ...]:
    """What compiled programs depend on besides their content: sources, versions, processor."""
    import equinox
    import jax
    import jaxlib
    import numpy as np

    versions = (platform.python_version(), jax.__version__, jaxlib.__version__, equinox.__version__, np.__version__)
    return (*versions, _source_digest(), _processor(), str(len(jax.devices("cpu"))), str(os.cpu_count()))


def _source_digest() -> str:
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=20)
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Model and instruction sets: a home folder may be shared by different machines."""
    names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)


# --- Files -------------------------------------------------------------------------------------------------


def _jax_folder() -> str:
    """The folder that JAX uses: set by the user, or by `keep_programs`."""
    if "jax" in sys.modules:
        return str(sys.modules["jax"].config.values.get("jax_compilation_cache_dir") or "")
    return os.environ.get("JAX_COMPILATION_CACHE_DIR", "")


def _prepare_folder(folder: Path) -> bool:
    """Make the folder, for this user only: a program that is read is executed. False if it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _read(path: Path, arguments: tuple[Any, ...]) -> Any:
    """A kept program; None if there is none. A damaged entry is removed."""
    import jax
    from jax.experimental import serialize_executable

    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        executable, result = pickle.loads(zlib.decompress(content))
        trees = jax.tree.structure((arguments, {})), jax.tree.structure(result)
        program = serialize_executable.deserialize_and_load(executable, *trees)
    except Exception:  # JAX does not say what it raises for content that it cannot load
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now: many file systems do not record it
    return program


def _write(path: Path, program: Any) -> None:
    """Keep a program, unless it calls back into this process, cannot be serialised, or the disk is full."""
    import jax
    from jax.experimental import serialize_executable

    unloaded = getattr(program._executable, "_unloaded_executable", None)
    if unloaded is None or unloaded.keepalive or unloaded.host_callbacks or unloaded.ordered_effects:
        return
    try:
        executable, _, tree = serialize_executable.serialize(program)
        # A result with numbers in place of arrays. Tree definitions of Equinox modules cannot be read back.
        result = jax.tree.unflatten(tree, range(tree.num_leaves))
        content = zlib.compress(pickle.dumps((executable, result)), 1)
    except Exception:  # programs that cannot be serialised raise various errors
        return
    try:
        number, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError:
        return
    prune(path.parent)


def prune(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Remove the entries that were not used for longest if the folder is larger than `max_bytes`.

    JAX's entries are removed in Symphony's own folder only, not where the user keeps programs of other packages.
    """
    own = folder.parent.name == "symphony"
    entries = [entry for entry in _entries(folder) if own or entry[2].name.endswith(ENTRY_SUFFIXES[0])]
    total = sum(size for _, size, _ in entries)
    if total <= max_bytes:
        return
    for _, size, path in sorted(entries):
        with contextlib.suppress(OSError):  # another process was faster
            path.unlink()
        total -= size
        if total <= max_bytes * PRUNED_SHARE:
            return


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Time of last use, bytes and path of each entry."""
    try:
        paths = [path for path in folder.iterdir() if path.name.endswith((*ENTRY_SUFFIXES, ".part"))]
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            yield max(stat.st_atime, stat.st_mtime), stat.st_size, path
