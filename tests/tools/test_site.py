"""The documentation site: every page is listed, every public name and every route described."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import symphony as sy
from tools import site

SCHEMA = {
    "paths": {
        "/v1/jobs/{number}": {
            "get": {
                "description": "A job.",
                "parameters": [
                    {"name": "number", "in": "path", "schema": {"type": "integer"}, "description": "its ID"}
                ],
                "responses": {
                    "200": {
                        "description": "OK",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobView"}}},
                    }
                },
            }
        }
    },
    "components": {
        "schemas": {
            "JobView": {
                "properties": {
                    "id": {"type": "integer"},
                    "after": {"items": {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}},
                }
            }
        }
    },
}


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = [str(path.relative_to(site.ROOT).with_suffix("")) for path in site.ROOT.glob("docs/**/*.md")]
    patterns = [pattern for found in site.SECTIONS.values() for pattern in found]
    assert [page for page in pages if not any(fnmatch(page, pattern) for pattern in patterns)] == []
    assert all(name.removesuffix(".md") in patterns for name in site.PAGES)


def test_every_public_name_is_described() -> None:
    text = "\n".join(site.public_names())
    described = set(re.findall(r"^## sy\.(\w+)$", text, re.MULTILINE))
    modules = {name for name in sy.__all__ if name not in described}
    assert all(type(getattr(sy, name)).__name__ == "module" for name in modules) and len(described) > 50
    assert "### sy.Report.table" in text


def test_the_rest_reference_has_parameters_answers_and_fields() -> None:
    text = "\n".join(site.rest(SCHEMA))
    assert "## GET /v1/jobs/{number}" in text and "- `number` (path, integer): its ID" in text
    assert "- 200: OK, [JobView](#jobview)" in text and "- `after`: list of one of `a` or null" in text
