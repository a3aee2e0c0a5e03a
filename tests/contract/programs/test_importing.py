"""What a process imports is not looked through by Python's garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.waiting import HANGS_S
from tideline.importing import kept


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("collects", [True, False])
def test_it_collects_afterwards_as_before(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    during = []

    def imports() -> None:
        with kept():
            during.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        imports()
    assert during == [False]
    assert gc.isenabled() is collects


def test_what_a_command_is_made_of_is_not_collected() -> None:
    asked = (
        "import gc\n"
        "from tideline.cli.commands import TABLE, Later\n"
        "Later(next(entry for entry in TABLE if entry.name == 'status')).command\n"
        "print(gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled())"
    )
    said = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=HANGS_S
    ).stdout
    frozen, looked_at, collects = said.split()
    assert int(frozen) > 100_000
    assert int(looked_at) < 10_000
    assert collects == "True"


def test_what_commands_open_does_not_load_boto3() -> None:
    """A fifth of a second, for a record that most commands do not write."""
    asked = (
        "import sys\n"
        "import tideline.migration.connections, tideline.migration.overview\n"
        "print(sorted({'boto3', 'botocore', 's3transfer'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
