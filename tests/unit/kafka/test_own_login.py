"""Tideline's own connections log in, over TLS, and say what to correct when they may not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import until
from tests.unit.kafka.fake_broker import FakeBroker, nothing_but_versions
from tests.unit.kafka.sasl_broker import SaslBroker
from tests.unit.kafka.test_client import metadata
from tideline.domain.security import ClientAuth, OwnMechanism, SecurityProtocol
from tideline.errors import UsageError
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.protocol import RequestHeader, encode_response
from tideline.kafka.scram import ScramClient, ScramFailed
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.tls import TlsFiles
from tideline.stack.certificates import Authority


def login(mechanism: str, password: str = "secret") -> KafkaSecurity:
    protocol = SecurityProtocol.SASL_PLAINTEXT
    return KafkaSecurity(protocol, OwnMechanism(mechanism), "alice", password)


def test_scram_gives_the_messages_of_rfc_7677() -> None:
    client = ScramClient(OwnMechanism.SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = client.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_name_with_a_comma_or_an_equals_sign_is_escaped() -> None:
    client = ScramClient(OwnMechanism.SCRAM_SHA_512, "a,b=c", "p", "n")
    assert client.first() == b"n,,n=a=2Cb=3Dc,r=n"


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=nx,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=nx,s=c2FsdA==,i=1000001", "1000001 iterations"),
        (b"r=nx,s=c2FsdA==,i=99999999999999999999", "iterations"),
        (b"r=nx,s=c2FsdA==", "no iterations"),
        (b"r=other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=n,s=c2FsdA==,i=4096", "nonce"),
        (b"r=nx,s=***,i=4096", "base64"),
        (b"m=ext,r=nx,s=c2FsdA==,i=4096", "extension"),
        (b"\xff", "UTF-8"),
        (b"r=n" + b"x" * 20_000, "bytes"),
    ],
)
def test_a_challenge_that_is_wrong_is_not_answered(challenge: bytes, why: str) -> None:
    client = ScramClient(OwnMechanism.SCRAM_SHA_256, "user", "pencil", "n")
    with pytest.raises(ScramFailed, match=why):
        client.final(challenge)


def test_a_server_that_does_not_prove_itself_is_refused() -> None:
    client = ScramClient(OwnMechanism.SCRAM_SHA_256, "user", "pencil", "n")
    client.final(b"r=nx,s=c2FsdA==,i=4096")
    with pytest.raises(ScramFailed, match="prove"):
        client.verify(b"v=AAAA")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_connection_logs_in_before_it_asks(mechanism: str) -> None:
    told = SaslBroker(nothing_but_versions)
    async with FakeBroker(told) as broker:
        connection = await KafkaConnection.open(*broker.address, security=login(mechanism))
        assert told.logins == ["alice"]
        connection.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_is_said_with_what_to_look_at(mechanism: str) -> None:
    async with FakeBroker(SaslBroker(nothing_but_versions)) as broker:
        with pytest.raises(KafkaError, match=r"alice.*TIDELINE_KAFKA_SASL_PASSWORD_FILE") as failed:
            await KafkaConnection.open(*broker.address, security=login(mechanism, "wrong"))
        assert failed.value.code is ErrorCode.sasl_authentication_failed
        assert "wrong" not in str(failed.value)


async def test_a_broker_that_asks_for_a_cheap_guess_gets_no_proof() -> None:
    async with FakeBroker(SaslBroker(nothing_but_versions, iterations=1)) as broker:
        with pytest.raises(KafkaError, match="1 iterations"):
            await KafkaConnection.open(*broker.address, security=login("SCRAM-SHA-256"))


async def test_a_connection_whose_login_lapses_is_replaced_before_it_does() -> None:
    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        return encode_response(metadata({1: broker.address}), header.correlation_id)

    told = SaslBroker(answer, lifetime_ms=1_500)
    async with FakeBroker(told) as broker:
        security = login("SCRAM-SHA-256")
        async with KafkaCluster([broker.address], security=security) as cluster:
            first = await cluster.node(1)
            await until(lambda: not first.is_usable)
            assert not first.is_closed
            told.lifetime_ms = 60_000
            second = await cluster.node(1)
            assert second is not first
            assert second.is_usable
            assert first.is_closed


async def test_the_brokers_certificate_and_its_name_are_verified(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    for one in (authority, other):
        Authority.load_or_create(one.directory)
    pair = authority.issue("broker", "kafka-1.example")
    tls = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)

    def trusting(ca: Path) -> KafkaSecurity:
        return KafkaSecurity(SecurityProtocol.SSL, files=TlsFiles(ca))

    async with FakeBroker(nothing_but_versions, tls) as broker:
        host, port = broker.address
        connection = await KafkaConnection.open(
            host, port, security=trusting(authority.certificate)
        )
        connection.close()
        with pytest.raises(KafkaUnavailable, match="certificate verify failed"):
            await KafkaConnection.open(host, port, security=trusting(other.certificate))
        with pytest.raises(KafkaUnavailable, match="localhost"):
            await KafkaConnection.open("localhost", port, security=trusting(authority.certificate))
        with pytest.raises(KafkaUnavailable):
            await KafkaConnection.open(host, port, timeout_ms=1_000)


async def test_a_broker_that_asks_for_a_certificate_is_shown_the_own_one(tmp_path: Path) -> None:
    authority = Authority.load_or_create(tmp_path)
    pair, own = authority.issue("broker"), authority.issue("worker")
    files = TlsFiles(authority.certificate, pair.certificate, pair.key)
    async with FakeBroker(
        nothing_but_versions, files.server_context(ClientAuth.REQUIRED)
    ) as broker:
        mine = TlsFiles(authority.certificate, own.certificate, own.key)
        security = KafkaSecurity(SecurityProtocol.SSL, files=mine)
        (await KafkaConnection.open(*broker.address, security=security)).close()
        nobody = KafkaSecurity(SecurityProtocol.SSL, files=TlsFiles(authority.certificate))
        with pytest.raises(KafkaUnavailable):
            await KafkaConnection.open(*broker.address, security=nobody)


def test_files_that_are_no_pair_are_named(tmp_path: Path) -> None:
    authority = Authority.load_or_create(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(UsageError, match=r"one\.pem.*other\.key.*PEM"):
        TlsFiles(None, one.certificate, other.key).server_context(ClientAuth.NONE)


def test_the_password_is_not_shown_and_travels_to_executors() -> None:
    security = login("PLAIN", "hush")
    assert "hush" not in repr(security)
    assert pickle.loads(pickle.dumps(security)) == security
    assert security.librdkafka == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "hush",
    }
