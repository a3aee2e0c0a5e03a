"""Client libraries on a topic that migrates under all of them at once (docs/clients.md), in clear
text and over TLS: two fleets of gateways before one cluster. Those that log in are tried in
test_secured.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import beside
from tests.clients.migrating import CONSUMERS, LIBRARIES, PRODUCERS, STREAMS, Migration, migrated
from tests.clients.ways import Way
from tests.harness import migration_case
from tideline.domain.security import SecurityProtocol
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.kafka.tls import TlsFiles
from tideline.stack import Stack
from tideline.stack.certificates import Authority

WAYS = ("PLAINTEXT", "SSL")


@pytest.fixture(scope="module")
def migration(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    directory = tmp_path_factory.mktemp("clients")
    authority = Authority.load_or_create(directory / "tls")
    shown = authority.issue("gateway")
    settings = {
        "TIDELINE_GATEWAY_SECURITY_PROTOCOL": "SSL",
        "TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE": str(shown.certificate),
        "TIDELINE_GATEWAY_SSL_KEY_FILE": str(shown.key),
    }
    trusts = TlsFiles(directory / "tls" / "ca.pem")
    with (
        migration_case(stack, name="clients") as case,
        beside.fleet(case, directory, settings) as encrypted,
    ):
        ways = [
            Way(case.bootstrap, UNSECURED),
            Way(encrypted, KafkaSecurity(SecurityProtocol.SSL, files=trusts)),
        ]
        assert tuple(way.name for way in ways) == WAYS
        with migrated(case, ways, directory) as seen:
            yield seen


def by_name(consumer: tuple[str, str]) -> str:
    return "-".join(consumer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_idempotent_producer_writes_on_through_the_migration(
    migration: Migration, library: str, way: str
) -> None:
    migration.wrote_on(way, library)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_consumer_reads_each_record_once_across_b0_and_its_restarts(
    migration: Migration, consumer: tuple[str, str], way: str
) -> None:
    migration.read_each_once(way, *consumer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_that_comes_afterwards_reads_the_hybrid_topic_from_its_beginning(
    migration: Migration, consumer: tuple[str, str], way: str
) -> None:
    migration.read_late(way, *consumer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transaction_is_told_abortable_and_the_producer_goes_on_elsewhere(
    migration: Migration, library: str, producer: str, way: str
) -> None:
    migration.told_abortable(way, library, producer)


@pytest.mark.parametrize("way", WAYS)
def test_a_share_group_of_another_topic_gets_every_record(migration: Migration, way: str) -> None:
    migration.shared_elsewhere(way)


@pytest.mark.parametrize("way", WAYS)
def test_a_share_group_that_comes_during_a_migration_is_told_that_it_may_not_read(
    migration: Migration, way: str
) -> None:
    migration.late_sharer_was_told(way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", STREAMS)
def test_streams_processes_each_record_exactly_once_across_b0(
    migration: Migration, protocol: str, way: str
) -> None:
    migration.numbered_exactly_once(way, protocol)
