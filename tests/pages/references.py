"""What pages of docs/ name: whether the modules, functions and tests are there.

A page names code as ``path/of/module.py:symbol`` (``Class.method`` too) or
``path/of/file.sql:function``, tests as ``unit/file.py::test_name`` below tests/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CODE = re.compile(r"`([\w/.]+\.(?:py|sql)):([\w.]+)`")
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_SQL_FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION (?:tideline\.)?(\w+)")
_ROOTS = ("tideline", "workflows", "activities", "spark", "dags", "infra/postgres")


@cache
def defined_in(path: str) -> frozenset[str]:
    """The names that a module, or the functions that an SQL file, defines; none without a file."""
    file = Path(path)
    if not file.is_file():
        return frozenset()
    if file.suffix == ".sql":
        return frozenset(_SQL_FUNCTION.findall(file.read_text()))
    return frozenset(_names(ast.parse(file.read_text())))


def missing_code(text: str) -> dict[str, list[str]]:
    """What is named and not there, with the files that define such a name now."""
    named = {(path, symbol) for path, symbol in CODE.findall(text)}
    return {
        f"{path}:{symbol}": where_defined(symbol)
        for path, symbol in sorted(named)
        if symbol not in defined_in(path)
    }


def missing_tests(text: str) -> list[str]:
    named = set(TEST.findall(text))
    return sorted(f"{file}::{name}" for file, name in named if not has_test(f"tests/{file}", name))


def table_rows(text: str, first: str) -> Iterator[list[str]]:
    """The cells of each table row whose first cell matches the expression ``first``."""
    for line in text.splitlines():
        if re.match(rf"\| (?:{first}) \|", line):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                yield name
                for inner in body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{name}.{inner.name}"
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def where_defined(symbol: str) -> list[str]:
    """The files that define a module-level name, a method or an SQL function of this name."""
    files = (file for root in _ROOTS for file in Path(root).rglob("*.*"))
    return sorted(
        str(file)
        for file in files
        if file.suffix in {".py", ".sql"} and symbol in defined_in(str(file))
    )


def has_test(file: str, name: str) -> bool:
    """``file``: from the root of the tree; ``name`` may be ``Class::test``."""
    path, test = Path(file), name.rpartition("::")[2]
    return path.is_file() and re.search(rf"def {test}\(", path.read_text()) is not None
