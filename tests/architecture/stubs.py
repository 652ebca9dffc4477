"""The docstrings of the stubs: editors show a stub's, and not those of a compiled module.

    python -m tests.architecture.stubs             writes those of the modules into the stubs
    python -m tests.architecture.stubs --modules   names the modules that have stubs

``test_stubs.py`` fails where the two differ.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import strata

PACKAGE = Path(strata.__file__).resolve().parent
STUBS = sorted(path for path in PACKAGE.rglob("*.pyi"))

Defined = ast.FunctionDef | ast.ClassDef


def name_of(stub: Path) -> str:
    return ".".join(("strata", *stub.relative_to(PACKAGE).with_suffix("").parts))


def module_of(stub: Path) -> ModuleType:
    return importlib.import_module(name_of(stub))


def docstring(owner: object, name: str) -> str | None:
    """What the module says of a name, without the signature that Cython puts first; None where it says nothing."""
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if name.startswith("__") and name.endswith("__"):
        return None  # Python's own words for them
    text = getattr(found, "__doc__", None)
    if not isinstance(text, str):
        return None
    text = re.sub(rf"\A(?:\w+\.)*{re.escape(name)}\([^\n]*\n?", "", inspect.cleandoc(text))
    return inspect.cleandoc(text) or None


def wanted(stub: Path, tree: ast.Module) -> Iterator[tuple[Defined, str | None]]:
    """Every public class and function of a stub, with the docstring that its module has."""
    module = module_of(stub)

    def within(body: list[ast.stmt], owner: object) -> Iterator[tuple[Defined, str | None]]:
        seen = set()
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                if node.name.startswith("_") or node.name in seen:  # a setter, another overload
                    continue
                seen.add(node.name)
                yield node, docstring(owner, node.name)
                if isinstance(node, ast.ClassDef):
                    yield from within(node.body, getattr(owner, node.name))

    return within(tree.body, module)


def written(stub: Path) -> str:
    """Return the stub's text with its module's docstrings."""
    lines = stub.read_text(encoding="utf-8").split("\n")
    tree = ast.parse("\n".join(lines))
    for node, text in sorted(wanted(stub, tree), key=lambda pair: -pair[0].lineno):
        indent = " " * (node.col_offset + 4)
        first = node.body[0]
        has = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if text is None:
            continue
        block = literal(text, indent)
        if has:  # an ellipsis, or a docstring that there is
            head = lines[first.lineno - 1][: first.col_offset].rstrip()
            assert first.end_lineno is not None
            lines[first.lineno - 1 : first.end_lineno] = ([head] if head else []) + block
        else:
            lines[first_line(first) - 1 : first_line(first) - 1] = block
    return "\n".join(lines)


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def literal(text: str, indent: str) -> list[str]:
    quoted = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    rows = quoted.split("\n")
    if len(rows) == 1:
        return [f'{indent}"""{rows[0]}"""']
    return [f'{indent}"""{rows[0]}', *(f"{indent}{row}".rstrip() for row in rows[1:]), f'{indent}"""']


def main() -> int:
    if sys.argv[1:] == ["--modules"]:
        print(*map(name_of, STUBS))
        return 0
    for stub in STUBS:
        text = written(stub)
        if text != stub.read_text(encoding="utf-8"):
            stub.write_text(text, encoding="utf-8")
            print(f"{stub.relative_to(PACKAGE)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
