"""docs/performance.md has a line for each benchmark of `make bench`, which writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.page import PAGE, Figure, write
from benchmarks.write_pause import PauseResult, figure

NAMES = re.findall(
    r'arguments\.only in \(None, "([\w-]+)"\)', Path("benchmarks/__main__.py").read_text()
)
FIGURE = Figure("1.5 (1.0 to 2.0)", "a raw copy: 3.0", 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_writes_its_line_and_no_other(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    for command in (f"--only {name}", f"--only {name} --rounds 3"):
        write(page, name, FIGURE, command, "2026-12-01, 2 cores")
    pairs = zip(PAGE.read_text().splitlines(), page.read_text().splitlines(), strict=True)
    [(before, after)] = [(a, b) for a, b in pairs if a != b]
    what = before.split(" | ")[0]
    assert after == (
        f"{what} | 1.5 (1.0 to 2.0) | a raw copy: 3.0 | 0.50 | `--only {name} --rounds 3` "
        "| 2026-12-01, 2 cores |"
    )
    assert len(re.findall(r"(?<!\\)\|", before)) == len(re.findall(r"\|", after))


def test_a_benchmark_without_a_line_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| figure |\n")
    with pytest.raises(ValueError, match="0 lines of `--only gc`"):
        write(page, "gc", FIGURE, "--only gc", "here")


def test_the_write_pause_stands_beside_the_gap_without_a_migration() -> None:
    result = PauseResult(pauses=[200.0, 400.0, 600.0], quiet_gaps=[100.0, 200.0, 300.0])
    assert figure({"fsynced": result}) == Figure(
        "400 / 600 / 600", "longest gap without a migration: 200 / 300 / 300", 2.0
    )
