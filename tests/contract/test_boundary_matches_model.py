"""The SQL of generations, quiesce and B0 does what the plane in memory says, step by step."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, batch, seed
from tests.contract.twins import TwinScene
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.model import CommitError, TrackingKind
from tideline.domain.migration import MigrationState
from tideline.domain.producer_tail import ProducerSeed
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
    happened: set[str] = set()
    with asyncio.Runner() as runner:
        connection = TwinScene.connected(database)
        scene = runner.run(connection.__aenter__())
        plane = scene.plane

        class Boundary(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                scene.clear()
                self.processes = {n: runner.run(scene.gateway(n)) for n in (1, 2)}
                topic = scene.migrating_topic(list(self.processes.values()))
                self.name, (self.log,) = runner.run(topic)

            @property
            def row(self) -> Partition:
                found: Partition = scene.memory.topics.known_partition(self.log)
                return found

            def attempt(self, name: str, *arguments: object) -> object:
                """What both planes answer, or ``None`` when both refuse alike."""
                try:
                    return runner.run(getattr(plane, name)(*arguments))
                except TidelineError as error:
                    happened.add(type(error).__name__)
                    return None

            @rule()
            def take_the_next_generation(self) -> None:
                self.attempt("next_generation", self.log)

            @rule(age=AGE)
            def close(self, age: int) -> None:
                self.attempt("close_generation", self.log, self.row.generation - age, 60_000)

            @rule(gateway_id=st.integers(1, 2), highest=st.sampled_from([-1, 4, 9]), age=AGE)
            def acknowledge(self, gateway_id: int, highest: int, age: int) -> None:
                self.attempt(
                    "acknowledge_quiesce",
                    gateway_id,
                    self.processes[gateway_id].incarnation,
                    self.log,
                    self.row.generation - age,
                    highest,
                    highest + 1,
                )

            @rule(gateway_id=st.integers(1, 2))
            def fence(self, gateway_id: int) -> None:
                fenced = runner.run(scene.fence(self.processes[gateway_id]))
                happened.add(f"fenced: {fenced}")

            @rule(gateway_id=st.integers(1, 2))
            def release(self, gateway_id: int) -> None:
                incarnation = self.processes[gateway_id].incarnation
                runner.run(plane.release_gateway(gateway_id, incarnation))

            @rule(gateway_id=st.integers(1, 2))
            def confirm(self, gateway_id: int) -> None:
                incarnation = self.processes[gateway_id].incarnation
                found = self.attempt("confirm_partitions", gateway_id, incarnation, [self.log])
                happened.add(f"confirms: {found[self.log].confirms}")  # type: ignore[index]

            @rule(gateway_id=st.integers(1, 2))
            def register_anew(self, gateway_id: int) -> None:
                self.processes[gateway_id] = runner.run(scene.gateway(gateway_id))

            @rule()
            def let_the_deadline_pass(self) -> None:
                scene.expire_quiesce(self.log)

            @rule()
            def void(self) -> None:
                self.attempt("void_expired_quiesce", self.log)

            @rule(age=AGE)
            def reopen(self, age: int) -> None:
                self.attempt("reopen_generation", self.log, self.row.generation - age)

            @rule(b0=BOUNDARIES, epoch=EPOCHS, age=AGE, seeds=SEEDS)
            def propose(
                self, b0: int, epoch: int, age: int, seeds: frozenset[ProducerSeed]
            ) -> None:
                generation = self.row.generation - age
                try:
                    persisted = scene.persist(
                        self.log, b0, generation, epoch=epoch, seeds=tuple(seeds)
                    )
                    runner.run(persisted)
                    happened.add("persisted")
                except TidelineError as error:
                    happened.add(type(error).__name__)

            @rule(b0=BOUNDARIES, epoch=EPOCHS)
            def set_directly(self, b0: int, epoch: int) -> None:
                self.attempt("set_diskless_log_start_offset", self.log, b0, epoch)

            @rule(seeds=SEEDS)
            def seed_alone(self, seeds: frozenset[ProducerSeed]) -> None:
                self.attempt("seed_producer_state", self.log, tuple(seeds))

            @rule(
                b0=BOUNDARIES,
                epoch=EPOCHS,
                seeds=SEEDS,
                highest=st.sampled_from([-1, 4, 5, 9, 10]),
                twist=st.sampled_from(
                    ["none", "late", "reopened", "restarted", "fenced", "other seeds", "abort"]
                ),
            )
            def quiesce_and_propose(
                self, b0: int, epoch: int, seeds: frozenset[ProducerSeed], highest: int, twist: str
            ) -> None:
                """The whole path, so that B0 is reached often, with one thing going wrong."""
                if self.row.state is not MigrationState.MIGRATING:
                    return
                self.take_the_next_generation()
                self.close(0)
                if twist == "fenced":
                    self.fence(2)
                for gateway_id in self.processes:
                    self.acknowledge(gateway_id, highest, 0)
                if twist == "late":
                    self.let_the_deadline_pass()
                elif twist == "reopened":
                    self.reopen(0)
                    self.close(0)
                elif twist == "restarted":
                    self.register_anew(1)
                self.propose(b0, epoch, 0, seeds)
                if twist == "other seeds":
                    self.propose(b0, epoch, 0, seeds ^ {seed(1, last_offset=9)})
                elif twist == "abort":
                    self.abort()

            @rule(again=st.booleans())
            def commit_and_reset(self, again: bool) -> None:
                if again:
                    self.commit()
                self.reset(0, 3)

            @rule()
            def commit(self) -> None:
                gateway_id, incarnation = next(
                    (n, process.incarnation) for n, process in self.processes.items()
                )
                try:
                    process = GatewayProcess(gateway_id, incarnation)
                    (outcome,) = runner.run(scene.commit(process, batch(self.log)))
                except TidelineError:
                    return
                if outcome.error is CommitError.NONE:
                    happened.add("committed")

            @rule(age=AGE, epoch=EPOCHS)
            def reset(self, age: int, epoch: int) -> None:
                self.attempt("reset_boundary", self.log, self.row.generation - age, epoch)

            @rule()
            def abort(self) -> None:
                self.attempt("abort_migration", self.log.topic_id)

            @rule()
            def start_again_after_an_abort(self) -> None:
                if self.row.state is not MigrationState.TIERED_ONLY:
                    return
                runner.run(plane.stop_tracking(self.name))
                runner.run(
                    plane.begin_tracking(
                        self.name, self.log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1
                    )
                )
                for gateway_id in self.processes:
                    self.register_anew(gateway_id)
                    incarnation = self.processes[gateway_id].incarnation
                    runner.run(plane.acknowledge_tracking(gateway_id, incarnation, self.name))
                runner.run(plane.activate_topic(self.name))
                happened.add("started again")

            @invariant()
            def the_rows_are_alike(self) -> None:
                runner.run(plane.tracked_topics())
                runner.run(plane.quiesce_barrier(self.log, self.row.generation))

            def teardown(self) -> None:
                runner.run(plane.migration_status())
                runner.run(plane.tracking_barrier(self.name))
                scene.producers()
                scene.starts(self.log)

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
            # Lives in order, so that what must happen at all has happened.
            life = Boundary()
            life.quiesce_and_propose(5, 0, frozenset(), -1, "none")
            life.reset(0, 3)
            life.close(0)
            life.teardown()
            life = Boundary()
            life.quiesce_and_propose(10, 1, frozenset(), -1, "other seeds")
            life.commit_and_reset(again=True)
            life.abort()
            life.propose(10, 1, 1, frozenset())
            life.the_rows_are_alike()
        finally:
            runner.run(connection.__aexit__(None, None, None))
    assert happened >= {
        "persisted",
        "committed",
        "QuiesceNotClosed",
        "SeedMismatch",
        "ResetRefused",
        "AbortRefused",
    }
