"""The SQL of the boundary does what ``tideline.domain.boundary`` and ``fencing`` say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from uuid import UUID

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, Scene, batch, seed
from tideline.control_plane import connect
from tideline.control_plane.model import BoundaryToPersist, CommitError, TrackingKind
from tideline.domain import boundary as rules
from tideline.domain.boundary import BoundaryState, Proposal, Refusal
from tideline.domain.fencing import (
    Gateway,
    GatewayStatus,
    QuiesceState,
    may_act,
    missing_at_quiesce,
)
from tideline.domain.migration import MigrationState
from tideline.domain.producer_state import ProducerSeed
from tideline.errors import TidelineError

BOUNDARIES = st.sampled_from([0, 5, 10, 20])
EPOCHS = st.integers(0, 3)
SEEDS = st.frozensets(
    st.sampled_from([seed(1, last_offset=9), seed(2, last_offset=9), seed(3, last_offset=12)]),
    max_size=2,
)
AGE = st.sampled_from([0, 0, 0, 1])
"""How far behind the current generation a caller is."""


def test_the_boundary_behaves_as_its_model(database: Database) -> None:
    with asyncio.Runner() as runner:
        connection = connect(database.settings(), application_name="model")
        plane = runner.run(connection.__aenter__())
        scene = Scene(plane, database.dsn)
        watcher = psycopg.connect(database.dsn, autocommit=True)

        def refusal(call: Awaitable[object]) -> str | None:
            async def run() -> str | None:
                try:
                    await call
                except TidelineError as error:
                    return type(error).__name__
                return None

            return runner.run(run())

        class Boundary(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                scene.clear()
                self.gateways: list[Gateway] = []
                processes = [runner.run(scene.gateway(n)) for n in (1, 2)]
                for process in processes:
                    self._registered(process)
                self.name, (self.log,) = runner.run(scene.migrating_topic(processes))
                self.row = BoundaryState()
                self.deadline_passed = False
                self.acks: dict[tuple[int, UUID], int] = {}

            def _registered(self, process: GatewayProcess) -> None:
                self.gateways = [g for g in self.gateways if g.gateway_id != process.gateway_id]
                self.gateways.append(
                    Gateway(process.gateway_id, process.incarnation, GatewayStatus.ACTIVE)
                )

            def _gateway(self, gateway_id: int) -> Gateway:
                return next(g for g in self.gateways if g.gateway_id == gateway_id)

            def _apply(self, outcome: BoundaryState | Refusal, seen: str | None) -> None:
                if isinstance(outcome, Refusal):
                    assert seen == outcome.value
                else:
                    assert seen is None
                    self.row = outcome

            @rule()
            def take_the_next_generation(self) -> None:
                outcome = rules.next_generation(self.row)
                self._apply(outcome, refusal(plane.next_generation(self.log)))
                if not isinstance(outcome, Refusal):
                    self.acks = {}

            @rule(age=AGE)
            def close(self, age: int) -> None:
                generation = self.row.generation - age
                outcome = rules.close(self.row, generation)
                self._apply(outcome, refusal(plane.close_generation(self.log, generation, 60_000)))
                if not isinstance(outcome, Refusal):
                    self.deadline_passed = False

            @rule(gateway_id=st.integers(1, 2), highest=st.sampled_from([-1, 4, 9]), age=AGE)
            def acknowledge(self, gateway_id: int, highest: int, age: int) -> None:
                gateway = self._gateway(gateway_id)
                generation = self.row.generation - age
                seen = refusal(
                    plane.acknowledge_quiesce(
                        gateway_id, gateway.incarnation, self.log, generation, highest, highest + 1
                    )
                )
                if not may_act(gateway, gateway.incarnation):
                    assert seen == "GatewayFenced"
                elif age:
                    assert seen == "StaleGeneration"
                elif self.row.quiesce is not QuiesceState.CLOSED:
                    assert seen == "QuiesceNotClosed"
                else:
                    assert seen is None
                    key = (gateway_id, gateway.incarnation)
                    self.acks[key] = max(highest, self.acks.get(key, -1))

            @rule(gateway_id=st.integers(1, 2))
            def fence(self, gateway_id: int) -> None:
                gateway = self._gateway(gateway_id)
                assert runner.run(plane.fence_gateway(gateway_id, gateway.incarnation, "lapsed"))
                self.gateways.remove(gateway)
                self.gateways.append(replace(gateway, status=GatewayStatus.FENCED))

            @rule(gateway_id=st.integers(1, 2))
            def register_anew(self, gateway_id: int) -> None:
                self._registered(runner.run(scene.gateway(gateway_id)))

            @rule()
            def let_the_deadline_pass(self) -> None:
                scene.expire_quiesce(self.log)
                self.deadline_passed = True

            @rule()
            def void(self) -> None:
                if not self.row.is_set and (
                    self.row.quiesce is not QuiesceState.CLOSED or self.deadline_passed
                ):
                    self.row = rules.reopen(self.row)
                    expected = True
                else:
                    expected = False
                assert runner.run(plane.void_expired_quiesce(self.log)) is expected

            @rule(age=AGE)
            def reopen(self, age: int) -> None:
                opened = runner.run(plane.reopen_generation(self.log, self.row.generation - age))
                assert opened is (age == 0 and not self.row.is_set)
                if opened:
                    self.row = rules.reopen(self.row)

            @rule(b0=BOUNDARIES, epoch=EPOCHS, age=AGE, seeds=SEEDS)
            def propose(
                self, b0: int, epoch: int, age: int, seeds: frozenset[ProducerSeed]
            ) -> None:
                proposal = Proposal(b0, epoch, self.row.generation - age, seeds)
                outcome = rules.propose(
                    self.row,
                    proposal,
                    deadline_passed=self.deadline_passed,
                    gateways_missing=len(missing_at_quiesce(self.gateways, self.acks)),
                    highest_acknowledged=max(self.acks.values(), default=-1),
                )
                seen = refusal(
                    plane.initialize_diskless_migration(
                        BoundaryToPersist(self.log, b0, epoch, proposal.generation, tuple(seeds), 0)
                    )
                )
                self._apply(outcome, seen)

            @rule(
                b0=BOUNDARIES,
                epoch=EPOCHS,
                seeds=SEEDS,
                highest=st.sampled_from([-1, 4, 5, 9, 10]),
                twist=st.sampled_from(["none", "none", "late", "reopened", "restarted", "fenced"]),
            )
            def quiesce_and_propose(
                self, b0: int, epoch: int, seeds: frozenset[ProducerSeed], highest: int, twist: str
            ) -> None:
                """The whole path, so that B0 is reached often, with one thing going wrong."""
                if self.row.is_set or self.row.state is MigrationState.TIERED_ONLY:
                    return
                self.take_the_next_generation()
                self.close(0)
                if twist == "fenced":
                    self.fence(2)
                for gateway in list(self.gateways):
                    self.acknowledge(gateway.gateway_id, highest, 0)
                if twist == "late":
                    self.let_the_deadline_pass()
                elif twist == "reopened":
                    self.reopen(0)
                    self.close(0)
                elif twist == "restarted":
                    self.register_anew(1)
                self.propose(b0, epoch, 0, seeds)

            @rule(again=st.booleans())
            def commit_and_reset(self, again: bool) -> None:
                if again:
                    self.commit()
                self.reset(0)

            @rule()
            def commit(self) -> None:
                process = runner.run(scene.gateway(3))
                self._registered(process)
                (outcome,) = runner.run(scene.commit(process, batch(self.log)))
                runner.run(plane.retire_gateway(3, "the test"))
                watcher.execute(
                    "DELETE FROM tideline.wal_files; "
                    "DELETE FROM tideline.gateways WHERE gateway_id = 3"
                )
                self.gateways = [g for g in self.gateways if g.gateway_id != 3]
                if not self.row.is_set:
                    assert outcome.error is CommitError.BOUNDARY_UNSET
                else:
                    assert outcome.base_offset == self.row.high_watermark
                    self.row = replace(self.row, high_watermark=self.row.high_watermark + 1)

            @rule(age=AGE)
            def reset(self, age: int) -> None:
                generation = self.row.generation - age
                outcome = rules.reset(self.row, generation)
                self._apply(outcome, refusal(plane.reset_boundary(self.log, generation)))

            @rule()
            def abort(self) -> None:
                outcome = rules.abort([self.row])
                seen = refusal(plane.abort_migration(self.log.topic_id))
                self._apply(outcome if isinstance(outcome, Refusal) else outcome[0], seen)

            @rule()
            def start_again_after_an_abort(self) -> None:
                if self.row.state is not MigrationState.TIERED_ONLY:
                    return
                for gateway in list(self.gateways):
                    if gateway.status is GatewayStatus.FENCED:
                        self.register_anew(gateway.gateway_id)
                runner.run(plane.stop_tracking(self.name))
                runner.run(
                    plane.begin_tracking(
                        self.name, self.log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1
                    )
                )
                for gateway in self.gateways:
                    runner.run(
                        plane.acknowledge_tracking(
                            gateway.gateway_id, gateway.incarnation, self.name
                        )
                    )
                runner.run(plane.activate_topic(self.name))
                self.row = replace(
                    self.row,
                    state=MigrationState.MIGRATING,
                    generation=self.row.generation + 1,
                    quiesce=QuiesceState.OPEN,
                )
                self.acks = {}

            @invariant()
            def the_row_is_as_the_model_says(self) -> None:
                found = watcher.execute(
                    "SELECT migration_state, generation, quiesce, diskless_log_start_offset, "
                    "diskless_log_start_epoch, high_watermark FROM tideline.logs"
                ).fetchone()
                assert found is not None
                state, generation, quiesce, b0, epoch, high_watermark = found
                row = self.row
                assert (state, generation, quiesce) == (row.state, row.generation, row.quiesce)
                assert (b0, epoch, high_watermark) == (row.boundary, row.epoch, row.high_watermark)

        try:
            run_state_machine_as_test(
                Boundary,
                settings=settings(
                    max_examples=80,
                    stateful_step_count=20,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            watcher.close()
            runner.run(connection.__aexit__(None, None, None))
