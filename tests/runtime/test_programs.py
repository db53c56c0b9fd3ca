"""Compiled turns: where they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from symphony.runtime.programs import keep_programs

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def _options() -> Iterator[None]:
    before = {option: getattr(jax.config, option) for option in OPTIONS}
    yield
    for option, value in before.items():
        jax.config.update(option, value)


@pytest.mark.parametrize("own", ["", "chosen"])
def test_programs_are_kept_in_the_folder_that_the_user_named_or_else_in_the_given_one(own: str, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", own or None)
    keep_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == (own or str(tmp_path))
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0
