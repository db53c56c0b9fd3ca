"""The library of the parts in C: it belongs to these sources, or is not used."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import setuptools

from symphony.problem import native_code

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(native_code.library() is None, reason="the parts in C were not compiled")
def test_what_was_compiled_from_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a change of the sources without `make`: fields and rules may differ."""
    assert native_code.library.__wrapped__() is not None
    for source in native_code.SOURCES:
        copy = tmp_path / source
        copy.parent.mkdir()
        copy.write_text("/* another one */")
    monkeypatch.setattr(native_code, "__file__", str(tmp_path / "problem/native_code.py"))
    assert native_code.library.__wrapped__() is None
    assert "install Symphony again" in caplog.text


def test_the_installation_compiles_the_sources_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    found = runpy.run_path(str(ROOT / "setup.py"))["native"]
    assert found.sources == [f"src/symphony/{source}" for source in native_code.SOURCES]
    assert found.name == "symphony._native"
