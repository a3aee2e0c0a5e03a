"""Two fleets of gateways before one cluster, one in clear text and one over TLS, on a topic that
migrates under clients of every library by both (docs/clients.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import beside
from tests.clients.migrating import Migration, checks, migrated
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


CHECKS = {
    f"{way}-{name}": check for way in WAYS for name, check in checks(way).items()
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_clients_of_either_fleet_see_of_a_migration_what_those_of_the_other_see(
    migration: Migration, check: Callable[[Migration], None]
) -> None:
    check(migration)
