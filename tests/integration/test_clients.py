"""Client libraries on a topic that migrates under all of them at once (docs/clients.md). Over TLS
beside clear text: nightly/stack/test_clients_by_two_ways.py; logged in: test_secured.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.migrating import CONSUMERS, LIBRARIES, PRODUCERS, STREAMS, Migration, migrated
from tests.clients.ways import Way
from tests.harness import migration_case
from tideline.kafka.security import UNSECURED
from tideline.stack import Stack

WAY = "PLAINTEXT"


@pytest.fixture(scope="module")
def migration(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    with migration_case(stack, name="clients") as case:
        way = Way(case.bootstrap, UNSECURED)
        assert way.name == WAY
        with migrated(case, [way], tmp_path_factory.mktemp("clients")) as seen:
            yield seen


def by_name(consumer: tuple[str, str]) -> str:
    return "-".join(consumer)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_idempotent_producer_writes_on_through_the_migration(
    migration: Migration, library: str
) -> None:
    migration.wrote_on(WAY, library)


@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_consumer_reads_each_record_once_across_b0_and_its_restarts(
    migration: Migration, consumer: tuple[str, str]
) -> None:
    migration.read_each_once(WAY, *consumer)


@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_that_comes_afterwards_reads_the_hybrid_topic_from_its_beginning(
    migration: Migration, consumer: tuple[str, str]
) -> None:
    migration.read_late(WAY, *consumer)


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transaction_is_told_abortable_and_the_producer_goes_on_elsewhere(
    migration: Migration, library: str, producer: str
) -> None:
    migration.told_abortable(WAY, library, producer)


def test_a_share_group_of_another_topic_gets_every_record(migration: Migration) -> None:
    migration.shared_elsewhere(WAY)


def test_a_share_group_that_comes_during_a_migration_is_told_that_it_may_not_read(
    migration: Migration,
) -> None:
    migration.late_sharer_was_told(WAY)


@pytest.mark.parametrize("protocol", STREAMS)
def test_streams_processes_each_record_exactly_once_across_b0(
    migration: Migration, protocol: str
) -> None:
    migration.numbered_exactly_once(WAY, protocol)
