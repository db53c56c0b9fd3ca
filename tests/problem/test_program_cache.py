"""Compiled programs in a folder: where they are kept, how they are found again, and what is never kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import named
from symphony.problem import program_cache
from symphony.problem.program_cache import CACHE_VARIABLE, cache_folder, compiled, compiled_call, keep_programs, prune
from symphony.scheduling.clock import Amount
from symphony.scheduling.policy import Policy, wait

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
# Run twice: the second process must not compile.
RESULT = """
import symphony as sy, sys
report = sy.compare(["fifo", "eft-belief"], topology="machine", workload="cholesky:3?jobs=2", seeds=[0])
print([(run.policy, run.makespan_s, run.decisions, [job.finish_s for job in run.jobs]) for run in report.runs])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = {option: getattr(jax.config, option) for option in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "programs"))
    yield tmp_path / "programs"
    for option, value in before.items():
        jax.config.update(option, value)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.program"))


def entry(function: Any, *arguments: Any) -> Path | None:
    return program_cache._entry(program_cache.call_combined, (function, None), arguments, None)


# Functions of a module of Symphony, as far as `compiled` can see.
def total(constants: float, amount: Amount, x: jax.Array) -> Amount:
    return Amount(amount.whole + 1, amount.part * constants + x.sum())


def doubled(x: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, x)


def calls_back(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda y: np.asarray(y) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


for _function in (total, doubled, calls_back):
    _function.__module__ = "symphony.problem.program_cache"
    setattr(program_cache, _function.__name__, _function)

AMOUNT = Amount(jnp.asarray([1, 2]), jnp.asarray([0.5, 0.25]))
X = jnp.asarray([1.0, 3.0])


def test_folder_is_the_variables_or_jaxs_or_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder() == tmp_path / "symphony" / "programs"
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    assert cache_folder() == tmp_path / "jax"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    assert cache_folder() is None


def test_jaxs_cache_is_set_unless_the_user_has_set_it(folder: Path, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", "chosen")
    keep_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == "chosen"
    jax.config.update("jax_compilation_cache_dir", None)
    keep_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == str(folder)


def test_another_folder_is_used_if_the_cache_folder_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
    assert compiled_call(doubled, X).tolist() == [2, 6]
    keep_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_a_program_is_kept_and_read_without_compiling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(total, 2.0, (AMOUNT, X))(AMOUNT, X)
    assert len(entries(folder)) == 1 and folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(program_cache, "_compile", None)
    again = compiled(total, 2.0, (AMOUNT, X))(AMOUNT, X)
    assert isinstance(again, Amount)
    assert (
        (again.whole.tolist(), again.part.tolist()) == (first.whole.tolist(), first.part.tolist()) == ([2, 3], [5, 4.5])
    )


def test_constants_shapes_and_settings_are_in_the_key(folder: Path) -> None:
    found = [entry(doubled, x) for x in (X, X[:1], X.astype(jnp.int32), (X,), {"a": X})]
    found += [entry(named, X), program_cache._entry(total, 2.0, (AMOUNT, X), None)]
    found += [
        program_cache._entry(total, 3.0, (AMOUNT, X), None),
        program_cache._entry(total, 3.0, (AMOUNT, X), {"a": 1}),
    ]
    with jax.enable_x64(True):
        found.append(entry(doubled, X))
    assert None not in found and len(set(found)) == len(found)
    assert entry(doubled, X + 1) == found[0]


def test_source_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = entry(doubled, X)
    monkeypatch.setattr(program_cache, "_platform", lambda: ("other",))
    assert entry(doubled, X) != before


def test_a_damaged_entry_is_compiled_again(folder: Path) -> None:
    compiled_call(doubled, X)
    (path,) = entries(folder)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"nonsense"):
        path.write_bytes(content)
        assert compiled_call(doubled, X).tolist() == [2, 6]
        assert len(path.read_bytes()) > len(whole) // 2


def test_the_folder_may_be_deleted_at_any_time(folder: Path) -> None:
    program = compiled(total, 2.0, (AMOUNT, X))
    entries(folder)[0].unlink()
    folder.rmdir()
    assert program(AMOUNT, X).part.tolist() == [5, 4.5]
    assert compiled_call(doubled, X).tolist() == [2, 6]
    assert len(entries(folder)) == 1


def test_threads_and_processes_may_write_the_same_entry(folder: Path) -> None:
    threads = [threading.Thread(target=compiled_call, args=(doubled, X)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.suffix for path in folder.iterdir()] == [".program"]


class Mine(Policy):
    def decide(self, key: Any, state: Any, observation: Any) -> Any:
        return state, wait()


def test_code_of_a_user_is_left_to_jaxs_cache() -> None:
    assert entry(doubled, X) is not None
    assert program_cache._entry(doubled, Mine(), (X,), None) is None
    assert program_cache._entry(doubled, lambda x: x, (X,), None) is None


@pytest.mark.parametrize("name", ["fifo", "heft", "eft-belief", "symphony", "symphony-late"])
def test_policies_of_symphony_are_found_before_tracing(name: str) -> None:
    assert program_cache._entry(doubled, named(name), (X,), None) is not None


def test_programs_that_call_back_are_not_kept(folder: Path) -> None:
    for _ in range(2):
        assert compiled_call(calls_back, X).tolist() == [2, 4]
    assert entries(folder) == []


def test_the_entries_used_longest_ago_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "symphony" / "programs"
    folder.mkdir(parents=True)
    for number in range(10):
        path = folder / (f"{number}.program" if number % 2 else f"{number}-cache")
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    (folder / "other.txt").write_bytes(bytes(10_000))
    prune(folder, 1_000)
    assert len(list(folder.iterdir())) == 11
    prune(folder, 999)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["other.txt", *(f"{n}.program" if n % 2 else f"{n}-cache" for n in range(3, 10))]
    )


def test_jaxs_entries_in_a_users_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("theirs-cache", "ours.program"):
        (tmp_path / name).write_bytes(bytes(100))
    prune(tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs-cache"]


def test_a_second_process_gets_the_same_results_without_compiling(folder: Path) -> None:
    outputs = []
    for compiles in ("", "program_cache._compile = None"):
        code = f"from symphony.problem import program_cache\n{compiles}\n{RESULT}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and "eft-belief" in outputs[0]
    assert len(entries(folder)) == 2


def many_functions(constants: None, x: jax.Array) -> jax.Array:
    for k in range(30):
        x = jnp.sort(jnp.sin(x) * k)[::-1] + jnp.cumsum(x[3:])[:1]
    return x @ x


def test_a_program_that_jax_has_kept_is_compiled_anew_before_it_is_kept(folder: Path) -> None:
    """As after an upgrade: the sources are others, and the program is the same."""
    many_functions.__module__ = "symphony.problem.program_cache"
    keep_programs()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    arguments = (jnp.ones(500),)
    try:
        expected = program_cache._compile(partial(many_functions, None), arguments, None)(*arguments)
        assert list(folder.glob("jit_many_functions*-cache"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program_cache, "many_functions", many_functions, raising=False)
            compiled(many_functions, None, arguments)
            assert len(entries(folder)) == 1
            assert compiled(many_functions, None, arguments)(*arguments) == expected  # from the file
    finally:
        many_functions.__module__ = __name__
    assert jax.config.jax_enable_compilation_cache
