"""Blocks of a page that a test runs as they stand: those behind ``<!-- rehearsed: NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- rehearsed: (?P<name>[\w.-]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)
MARKER = re.compile(r"^<!-- rehearsed", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block; ``kind`` is what stands behind the fence."""

    kind: str
    text: str


def blocks(page: Path) -> tuple[dict[str, Block], list[Block]]:
    """The marked blocks by name, and the others. A marker without its block fails."""
    text = page.read_text()
    marked: dict[str, Block] = {}
    others: list[Block] = []
    for found in BLOCK.finditer(text):
        block = Block(found["kind"], found["text"])
        if found["name"] is None:
            others.append(block)
        else:
            assert found["name"] not in marked, f"{page} has {found['name']} twice"
            marked[found["name"]] = block
    assert len(MARKER.findall(text)) == len(marked), f"a marker in {page} has no block behind it"
    return marked, others


def substituted(text: str, table: Mapping[str, str]) -> str:
    """``text`` with each key of ``table`` replaced, all at once, the longest first."""
    keys = sorted(table, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, keys)), lambda found: table[found[0]], text)
