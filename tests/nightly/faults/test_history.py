"""Migrations with networks that are cut, gateway ids that are doubled and state that is lost,
judged by what clients did and were told (docs/proof.md)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from tests.beside import Networks, gateway, networks, retire
from tests.harness import Breakpoint, Case, command, gateways, leader_of, migration_case
from tests.history.operations import Outcome, Produce
from tests.recorder import PERIOD_S, Recorder
from tests.support.waiting import until
from tideline.domain.migration import Phase
from tideline.stack import Stack

BOTH = ("idempotent", "plain")


def everywhere(stack: Stack, **more: str) -> dict[str, str]:
    return {str(n): where for n, where in stack.endpoints.gateways.items()} | more


def test_a_doubled_gateway_id_that_is_cut_off_in_the_quiesce_loses_nothing(
    stack: Stack, tmp_path: Path
) -> None:
    """One gateway loses Postgres, not Kafka, while the write pause begins; another process takes
    its id; then the network is back. Producers of both kinds, readers through every gateway."""
    with ExitStack() as held:
        case = held.enter_context(migration_case(stack, name="history", history=0))
        leader, _ = leader_of(stack, case.topic, 0)
        ways = held.enter_context(networks(stack, leader))
        cut_off = held.enter_context(gateway(stack, leader, tmp_path / "one", ways))
        number = cut_off.number
        until("the gateway to register", lambda: number in gateways(case))
        recorder = Recorder(case.topic)
        held.callback(retire, case, number)
        recorder.produce("idempotent", case.bootstrap, idempotent=True)
        recorder.produce("plain", cut_off.address, idempotent=False)
        recorder.follow("follower", cut_off.address)
        recorder.until_told(*BOTH, more=50)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        first = gateways(case)[number].incarnation
        try:
            case.trigger()
            stop.wait_until_hit()
            cut = held.enter_context(ExitStack())
            cut.enter_context(ways.postgres.cut())
            assert case.boundaries() == [-1], "the cut has to begin before B0"
        finally:
            stop.release()
        second = held.enter_context(gateway(stack, leader, tmp_path / "two", number=number))
        (boundary,) = case.until_crossed()
        held_by = gateways(case)[number]
        assert held_by.incarnation != first or held_by.status != "active"
        until("the second process to hold the id", lambda: gateways(case)[number].status == "active"
              and gateways(case)[number].incarnation != first)  # fmt: skip
        cut.close()
        recorder.until_told("idempotent", more=100)
        end = recorder.finish(everywhere(stack, second=second.address))
        assert boundary < end, "nothing came after B0"


def test_a_gateway_whose_networks_fail_one_after_the_other_loses_nothing(
    stack: Stack, tmp_path: Path
) -> None:
    """While the migration tracks: the answers of its broker are lost, then Postgres is cut off and
    its connections are left half open; Postgres is away while B0 is set; then S3 is slow, half
    open and away under the suffix."""
    with ExitStack() as held:
        case = held.enter_context(migration_case(stack, name="networks", history=0))
        leader, _ = leader_of(stack, case.topic, 0)
        ways = held.enter_context(networks(stack, leader))
        beside = held.enter_context(gateway(stack, leader, tmp_path / "state", ways, alone=True))
        until("the gateway to register", lambda: beside.number in gateways(case))
        held.callback(retire, case, beside.number)
        recorder = Recorder(case.topic)
        held.callback(recorder.stop)
        for name in BOTH:
            recorder.produce(name, beside.address, idempotent=name == "idempotent")
        recorder.follow("follower", beside.address)
        recorder.until_told(*BOTH)
        tracking = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        persisting = Breakpoint(case.superuser_dsn, case.topic_id, Phase.SEED_AND_PERSIST)
        try:
            case.trigger()
            tracking.wait_until_hit()
            networks_fail_while_it_tracks(case, recorder, ways)
            recorder.produce("elsewhere", case.bootstrap, idempotent=True)
            tracking.let_go()
            persisting.wait_until_hit()
            with ways.postgres.cut():
                assert case.boundaries() == [-1]
                persisting.let_go()
                (boundary,) = case.until_crossed()
                recorder.until_nobody_is_told(*BOTH)
                assert recorder.told_through(*BOTH) < boundary
        finally:
            tracking.release()
            persisting.release()
        recorder.until_told(*BOTH, "elsewhere")
        assert recorder.told_through("plain") >= boundary, "the suffix is not written"
        s3_fails_under_the_suffix(recorder, ways, beside.address)
        end = recorder.finish(everywhere(stack, beside=beside.address))
        assert recorder.told_through(*BOTH) < end


def networks_fail_while_it_tracks(case: Case, recorder: Recorder, ways: Networks) -> None:
    """Each fault keeps from the producers what Kafka has appended."""
    with ways.broker.cut(to_server=False):
        until_appended_and_not_told(case, recorder)
        assert ways.broker.end() > 0
    recorder.until_told(*BOTH)
    unknown = [o for o in recorder.operations
               if isinstance(o, Produce) and o.outcome is Outcome.UNKNOWN]  # fmt: skip
    assert unknown, "no producer missed an answer"
    with ways.postgres.cut():
        until_appended_and_not_told(case, recorder)
    recorder.until_told(*BOTH)
    assert ways.postgres.half_open() > 0
    until_appended_and_not_told(case, recorder)
    ways.postgres.end()  # what stands between notices; the pool alone waits for LINGER_S
    recorder.until_told(*BOTH)
    assert case.boundaries() == [-1]


def until_appended_and_not_told(case: Case, recorder: Recorder) -> None:
    """Of something that Kafka has, nobody has been told any more for half a second."""

    def lasts() -> bool:
        end = Recorder(case.topic).end_of_log(case.stack.endpoints.kafka_bootstrap)
        recorder.until_nobody_is_told(*BOTH)
        return end > recorder.told_through(*BOTH) + 1

    until("records that Kafka has, and nobody is told of", lasts)


def s3_fails_under_the_suffix(recorder: Recorder, ways: Networks, address: str) -> None:
    """Written by two gateways, so that what the other one wrote is read from S3 here."""
    delay = 2 * PERIOD_S
    with ways.s3.slow(delay):
        seen = len(recorder.operations)
        recorder.until_told(*BOTH, more=5)
        end = recorder.told_through(*BOTH) + 1
        recorder.read_all("slow", address, end, end - 20)
        slow = [o for o in recorder.operations[seen:]
                if isinstance(o, Produce) and o.producer in BOTH]  # fmt: skip
        assert max(o.answered - o.invoked for o in slow if o.answered is not None) > delay
    with ways.s3.cut(to_server=False):
        recorder.until_nobody_is_told(*BOTH)
        assert ways.s3.half_open() > 0
    recorder.until_told(*BOTH, "elsewhere")
    with ways.s3.cut():
        recorder.until_told("elsewhere", more=50)
        recorder.follow("in the cut", address)
        recorder.until_nobody_is_told(*BOTH)
    recorder.until_told(*BOTH, "elsewhere")


def test_a_gateway_that_lost_its_state_holds_topics_back_until_it_is_accounted_for(
    stack: Stack, tmp_path: Path
) -> None:
    """A gateway that does not hear of a migration that begins is killed, and starts again without
    its state directory: that its old process is gone is an operator's to say. It loses it once
    more in the write pause, when it has acknowledged that it tracks the topic."""
    with ExitStack() as held:
        case = held.enter_context(migration_case(stack, name="state-lost", history=0))
        leader, _ = leader_of(stack, case.topic, 0)
        ways = held.enter_context(networks(stack, leader))
        state = tmp_path / "state"
        one = held.enter_context(gateway(stack, leader, state, ways))
        until("the gateway to register", lambda: one.number in gateways(case))
        held.callback(retire, case, one.number)
        first = gateways(case)[one.number].incarnation
        recorder = Recorder(case.topic)
        held.callback(recorder.stop)
        recorder.produce("plain", one.address, idempotent=False)
        recorder.produce("idempotent", case.bootstrap, idempotent=True)
        recorder.follow("follower", case.bootstrap)
        recorder.until_told(*BOTH)
        with ExitStack() as cut:
            with held_before_tracking(case):
                case.trigger()
                until("the migration to begin to track", lambda: tracking_waits(case))
                cut.enter_context(ways.postgres.cut())
            until("the migration to begin", lambda: case.rows("generation"))
            recorder.until_told("plain")  # by one that has not heard of it
            one.kill()
        shutil.rmtree(state)
        two = held.enter_context(gateway(stack, leader, state, number=one.number))
        until("the loss to be seen", lambda: unaccounted(case) == {str(first)})
        recorder.produce("beside", two.address, idempotent=True)
        recorder.until_told("idempotent", "beside", more=50)
        assert case.boundaries() == [-1]
        pause = Breakpoint(case.superuser_dsn, case.topic_id, Phase.ROLL_AND_FLUSH)
        try:
            command(stack, "gateway", "account", str(one.number), str(first), "--gone", wait=True)
            pause.wait_until_hit()
            two.kill()
            shutil.rmtree(state)
            assert case.boundaries() == [-1]
        finally:
            pause.release()
        three = held.enter_context(gateway(stack, leader, state, number=one.number))
        (boundary,) = case.until_crossed()
        recorder.produce("again", three.address, idempotent=True)
        recorder.until_told("idempotent", "again", more=50)
        assert boundary < recorder.finish(everywhere(stack, three=three.address))


@contextmanager
def held_before_tracking(case: Case) -> Iterator[None]:
    """Nothing begins to be tracked inside; preflight has seen every gateway alive by then."""
    with psycopg.connect(case.superuser_dsn) as connection:
        connection.execute("LOCK TABLE tideline.topics IN SHARE ROW EXCLUSIVE MODE")
        yield


def tracking_waits(case: Case) -> bool:
    with psycopg.connect(case.superuser_dsn, autocommit=True) as connection:
        waits = connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND relation = 'tideline.topics'::regclass"
            " AND query LIKE '%begin_migration%'"
        ).fetchone()
    return waits is not None and waits[0] > 0


def unaccounted(case: Case) -> set[str]:
    """Incarnations that were replaced and may still run."""
    with psycopg.connect(case.superuser_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT incarnation FROM tideline.unaccounted_incarnations()"
        ).fetchall()
    return {str(row[0]) for row in rows}
