"""The table of docs/performance.md: a line for each figure, which its benchmark writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/performance.md")


@dataclass(frozen=True, slots=True)
class Figure:
    """What a line shows behind its first cell, which names the figure and its unit."""

    ours: str
    beside: str
    """With what it is, as the first words."""
    ratio: float


def write(page: Path, name: str, figure: Figure, command: str, where: str) -> None:
    """Replaces what the line of the benchmark ``name`` shows, by ``command`` (``--only name`` and
    its options). ``where``: day and machine. Raises ``ValueError`` without exactly one such line.
    """
    lines = page.read_text().splitlines()
    found = [
        at
        for at, line in enumerate(lines)
        if f"| `--only {name}`" in line or f"| `--only {name} " in line
    ]
    if len(found) != 1:
        raise ValueError(
            f"{page} has {len(found)} lines of `--only {name}`; it needs one: write its first cell"
        )
    what = lines[found[0]].split(" | ")[0]
    lines[found[0]] = " | ".join(
        [what, figure.ours, figure.beside, f"{figure.ratio:.2f}", f"`{command}`", f"{where} |"]
    )
    page.write_text("\n".join(lines) + "\n")
