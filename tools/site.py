"""Write the sources of the documentation site: `python -m tools.site FOLDER`; `make site` then runs Sphinx on them.

The pages of docs/ are copied, so that Sphinx sees the same folders and links as a reader of the repository does. Added
are an index, the reference of all public names, from their docstrings, and the reference of the REST interface, from
its OpenAPI description.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINKED = ("src", "tests", "benchmarks", "examples", "deploy", "tools", "requirements", "LICENSE", "CITATION.cff", ".ci")
LINKED += ("Makefile", "pyproject.toml", ".github")
SECTIONS = {
    "Start": ["README", "docs/tutorial", "docs/results"],
    "Guides": ["docs/guides/*"],
    "Concepts": ["ARCHITECTURE", "docs/concepts/*"],
    "Reference": ["docs/reference/*", "CHANGELOG"],
    "Development": ["CONTRIBUTING", "SECURITY", "docs/README", "docs/decisions/*", "docs/lab/*"],
}
CONFIGURATION = """\
project, release, html_theme, html_title = "Symphony", {release!r}, "furo", "Symphony"
extensions, exclude_patterns, myst_enable_extensions = ["myst_parser"], {linked!r}, ["html_image"]
myst_heading_anchors, suppress_warnings = 4, ["myst.header", "misc.highlighting_failure"]
linkcheck_anchors, html_copy_source, html_show_copyright = False, False, False
"""


def write(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in PAGES:
        shutil.copy(ROOT / name, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    (folder / "conf.py").write_text(CONFIGURATION.format(release=version("symphony-scheduler"), linked=list(LINKED)))
    (folder / "index.md").write_text(index())
    reference = folder / "docs" / "reference"
    (reference / "api.md").write_text("\n".join(public_names()))
    (reference / "rest.md").write_text("\n".join(rest(openapi())))


def index() -> str:
    parts = ["# Symphony", "A scheduler for clusters of unlike processors whose shared parts are contended."]
    for caption, pages in SECTIONS.items():
        listed = "\n".join(pages)
        parts.append(f"```{{toctree}}\n:caption: {caption}\n:glob:\n:maxdepth: 1\n\n{listed}\n```")
    return "\n\n".join(parts) + "\n"


def public_names() -> Iterator[str]:
    """Every public name with its signature, its docstring, and those of its public methods."""
    import symphony

    yield "# All public names\n"
    yield "From the docstrings. [The Python interface](python.md) groups them by what they are for.\n"
    for name in sorted(symphony.__all__, key=str.lower):
        thing = getattr(symphony, name)
        if inspect.ismodule(thing):
            continue
        yield f"## sy.{name}\n"
        yield from _described(name, thing)
        for part, method in sorted(vars(thing).items()) if inspect.isclass(thing) else ():
            if not part.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                yield f"### sy.{name}.{part}\n"
                yield from _described(part, method)


def _described(name: str, thing: Any) -> Iterator[str]:
    try:
        signature = "" if isinstance(thing, property) else str(inspect.signature(thing))
    except (TypeError, ValueError):
        signature = ""
    if callable(thing) and signature:
        yield f"```python\n{name}{signature}\n```\n"
    text = inspect.getdoc(thing) if callable(thing) or isinstance(thing, property) else repr(thing)
    yield f"```text\n{text or ''}\n```\n" if text else ""


def openapi() -> Mapping[str, Any]:
    """The description of the REST interface of a real service."""
    from symphony.engines.local import LocalEngine
    from symphony.service.app import make_app
    from symphony.service.audit import FailedLogins
    from symphony.service.connections import Connections
    from symphony.service.service import Service

    with tempfile.TemporaryDirectory() as folder:
        service = Service(lambda: LocalEngine(None), Path(folder))
        connections = Connections(4, service.limits.patience)
        try:
            return make_app(service, connections, FailedLogins(lambda rows: None), frozenset()).openapi()
        finally:
            connections.close()
            service.close()


def rest(schema: Mapping[str, Any]) -> Iterator[str]:
    """Every route with its parameters and answers, then every message with its fields."""
    yield "# The REST interface\n"
    yield "From the OpenAPI description that a service has at `/v1/openapi.json`. [Guide](../guides/service.md).\n"
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{about.get('description', '')}\n"
            for one in about.get("parameters", ()):
                text = one.get("description", "")
                yield f"- `{one['name']}` ({one['in']}, {_type(one['schema'])}){': ' if text else ''}{text}"
            for content in about.get("requestBody", {}).get("content", {}).values():
                yield f"- body: {_type(content['schema'])}"
            for code, answer in about["responses"].items():
                bodies = [_type(one.get("schema", {})) for one in answer.get("content", {}).values()]
                yield f"- {code}: {answer['description']}{', ' if bodies else ''}{', '.join(bodies)}"
            yield ""
    yield "## Messages\n"
    for name, about in sorted(schema["components"]["schemas"].items()):
        yield f"### {name}\n\n{about.get('description', '')}\n"
        for field, kind in about.get("properties", {}).items():
            yield f"- `{field}`: {_type(kind)}"
        yield ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
