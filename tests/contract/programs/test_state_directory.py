"""Schedule 24: who gets the lock of a state directory knows which processes are dead."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support.waiting import HANGS_S, exited
from tests.unit.gateway.fakes import FakeClock, GatewayPlane
from tideline.control_plane.errors import ControlPlaneUnavailable, GatewayIdHeld
from tideline.errors import RefusedError
from tideline.gateway.tracking.lease import Lease, NotNoted
from tideline.gateway.tracking.state_directory import LOCK_NAME, NAMES_NAME, StateDirectory

HOLDER = """
import sys
from pathlib import Path
from uuid import UUID
from tideline.gateway.tracking.state_directory import StateDirectory
StateDirectory.hold(Path(sys.argv[1]), 7).note([UUID(sys.argv[2])])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(directory: Path, incarnation: UUID) -> Iterator[subprocess.Popen[bytes]]:
    """It holds the directory and has named its incarnation there."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), str(incarnation)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], HANGS_S)[0]
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        with process:
            exited(process)


def test_a_second_process_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with (
        another_process(tmp_path, uuid4()) as holder,
        pytest.raises(RefusedError, match=f"held by gateway 7, process {holder.pid}"),
    ):
        StateDirectory.hold(tmp_path, 1, patience_s=0)


def test_a_process_that_was_killed_leaves_the_directory_and_its_name(tmp_path: Path) -> None:
    incarnation = uuid4()
    with another_process(tmp_path, incarnation) as holder:
        holder.kill()
        exited(holder)
        directory = StateDirectory.hold(tmp_path, 1)
    assert directory.dead == (incarnation,)
    directory.release()


def test_who_waits_gets_the_directory_of_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    with another_process(tmp_path, uuid4()) as holder:
        assert holder.stdin is not None
        holder.stdin.close()
        StateDirectory.hold(tmp_path, 1, patience_s=HANGS_S).release()


def test_names_stay_until_postgres_knows_of_them(tmp_path: Path) -> None:
    first, second, third = uuid4(), uuid4(), uuid4()

    def process(*names: UUID) -> tuple[UUID, ...]:
        directory = StateDirectory.hold(tmp_path, 1)
        dead = directory.dead
        directory.note(names)
        directory.release()
        return dead

    assert process(first) == ()
    assert process(second) == (first,)
    directory = StateDirectory.hold(tmp_path, 1)
    assert directory.dead == (first, second)
    directory.settled()
    directory.note([third])
    directory.release()
    assert process() == (third,)


@pytest.mark.parametrize("moved", ["copied", "booted", "damaged"])
def test_a_directory_that_is_not_where_it_was_proves_nothing(tmp_path: Path, moved: str) -> None:
    """The process may live on, on the machine from which the volume was taken or copied."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    directory = StateDirectory.hold(home, 1)
    directory.note([uuid4()])
    if moved == "copied":
        shutil.copytree(home, elsewhere)
        assert os.stat(home / LOCK_NAME).st_ino != os.stat(elsewhere / LOCK_NAME).st_ino
    directory.release()
    names = home / NAMES_NAME
    if moved == "booted":
        found = json.loads(names.read_text())
        found["where"][0] = "the boot id of another machine"
        names.write_text(json.dumps(found))
    elif moved == "damaged":
        names.write_text(names.read_text()[:-9])
    there = StateDirectory.hold(elsewhere if moved == "copied" else home, 1)
    assert there.dead == ()
    there.release()


def test_a_copy_on_another_volume_with_the_same_inodes_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may live on, over the first one."""
    directory = StateDirectory.hold(tmp_path, 1)
    directory.note([uuid4()])
    directory.release()
    kept = os.fstat

    def elsewhere(file: int) -> os.stat_result:
        mode, inode, device, *more = kept(file)
        return os.stat_result((mode, inode, device + 1, *more))

    monkeypatch.setattr(os, "fstat", elsewhere)
    directory = StateDirectory.hold(tmp_path, 1)
    assert directory.dead == ()
    directory.release()


def gateway(plane: GatewayPlane, clock: FakeClock, directory: StateDirectory) -> Lease:
    return Lease(
        plane, gateway_id=1, broker_id=1, address="here:1", version="0", duration_ms=3_000,
        clock=clock, directory=directory,
    )  # fmt: skip


async def unaccounted(plane: GatewayPlane) -> list[UUID]:
    return [g.incarnation for g in await plane.unaccounted_incarnations()]


async def take_over(lease: Lease, clock: FakeClock) -> None:
    for _ in range(2):
        with pytest.raises(GatewayIdHeld):
            await lease.renew()
        clock.now += 3.6
    await lease.renew()


async def test_a_gateway_that_was_killed_goes_on_over_its_directory_without_an_operator(
    tmp_path: Path,
) -> None:
    plane, clock = GatewayPlane(), FakeClock()
    killed = StateDirectory.hold(tmp_path, 1)
    await gateway(plane, clock, killed).renew()
    killed.release()
    await take_over(gateway(plane, clock, StateDirectory.hold(tmp_path, 1)), clock)
    assert await unaccounted(plane) == []


async def test_one_that_starts_elsewhere_says_nothing_of_who_was_before(tmp_path: Path) -> None:
    plane, clock = GatewayPlane(), FakeClock()
    here = StateDirectory.hold(tmp_path / "here", 1)
    first = gateway(plane, clock, here)
    await first.renew()
    elsewhere = gateway(plane, clock, StateDirectory.hold(tmp_path / "elsewhere", 1))
    await take_over(elsewhere, clock)
    assert await unaccounted(plane) == [first.incarnation]
    here.release()
    again = gateway(plane, clock, StateDirectory.hold(tmp_path / "here", 1))
    with pytest.raises(GatewayIdHeld):
        await again.renew()
    assert await unaccounted(plane) == []


async def test_a_process_that_was_fenced_answers_for_itself_once_it_is_registered_again(
    tmp_path: Path,
) -> None:
    plane, clock = GatewayPlane(), FakeClock()
    lease = gateway(plane, clock, StateDirectory.hold(tmp_path, 1))
    await lease.renew()
    before = lease.incarnation
    assert await plane.fence_gateway(1, before, 0, "lapsed")
    await lease.renew()
    plane.down = True
    with pytest.raises(ControlPlaneUnavailable):
        await lease.renew()
    plane.down = False
    await lease.renew()
    assert lease.incarnation != before
    assert await unaccounted(plane) == []


async def test_a_live_process_whose_id_another_one_holds_is_not_accounted_for(
    tmp_path: Path,
) -> None:
    """It may pass a topic through that it never heard of, until it stops."""
    plane, clock = GatewayPlane(), FakeClock()
    first = gateway(plane, clock, StateDirectory.hold(tmp_path / "a", 1))
    await first.renew()
    was = first.incarnation
    second = gateway(plane, clock, StateDirectory.hold(tmp_path / "b", 1))
    await take_over(second, clock)
    await first.renew()
    with pytest.raises(GatewayIdHeld):
        await first.renew()
    assert await unaccounted(plane) == [was]
    await first.release()
    assert await unaccounted(plane) == []


async def test_nothing_is_registered_that_is_not_named_on_disk_first(tmp_path: Path) -> None:
    plane = GatewayPlane()
    directory = StateDirectory.hold(tmp_path / "state", 1)
    lease = gateway(plane, FakeClock(), directory)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(NotNoted, match="could not be noted"):
        await lease.renew()
    assert await plane.list_gateways() == []
