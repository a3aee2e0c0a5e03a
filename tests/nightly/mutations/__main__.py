"""``python -m tests.nightly.mutations [TABLE.toml]``: plants each mutation, and prints which test
finds it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.nightly.mutations.table import TABLES, mutations
from tests.nightly.mutations.test_mutations import Copy


def main(tables: Sequence[Path]) -> int:
    """How many no test finds."""
    missed = 0
    print("| mutation | what it breaks | found by |\n| --- | --- | --- |")
    with TemporaryDirectory() as directory:
        copy = Copy(Path(directory))
        try:
            for mutation in mutations(tables):
                with copy.planted(mutation):
                    why_not = copy.run(mutation.test).why_missed(mutation)
                missed += bool(why_not)
                found = f"NOT BY {mutation.test}: {why_not}" if why_not else mutation.test
                print(f"| {mutation} | {mutation.breaks} | {found} |", flush=True)
        finally:
            copy.close()
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main([Path(given) for given in sys.argv[1:]] or TABLES)))
