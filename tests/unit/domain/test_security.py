"""Settings of listeners that do not go together are refused with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tideline.domain.security import (
    ClientAuth,
    OwnMechanism,
    SecurityProtocol,
    gateway_problem,
    own_connection_problem,
)

PLAINTEXT, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL
SASL_PLAINTEXT, SASL_SSL = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL
LOGIN = {"mechanism": OwnMechanism.PLAIN, "has_username": True, "has_password": True}
OWN = {"has_certificate": True, "has_key": True}


def own(protocol: SecurityProtocol, **given: Any) -> str | None:
    nothing: dict[str, Any] = {
        "mechanism": None,
        "has_username": False,
        "has_password": False,
        "has_ca": False,
        "has_certificate": False,
        "has_key": False,
    }
    return own_connection_problem(protocol, **{**nothing, **given})


@pytest.mark.parametrize(
    ("protocol", "given"),
    [
        (PLAINTEXT, {}),
        (SSL, {}),
        (SSL, {"has_ca": True, **OWN}),
        (SASL_PLAINTEXT, LOGIN),
        (SASL_SSL, {**LOGIN, "has_ca": True, **OWN}),
    ],
)
def test_own_connections_may_be_set_up_so(
    protocol: SecurityProtocol, given: dict[str, Any]
) -> None:
    assert own(protocol, **given) is None


@pytest.mark.parametrize(
    ("protocol", "given", "remedy"),
    [
        (SASL_SSL, {}, "TIDELINE_KAFKA_SASL_MECHANISM"),
        (SASL_SSL, {**LOGIN, "has_password": False}, "TIDELINE_KAFKA_SASL_PASSWORD_FILE"),
        (SSL, LOGIN, "TIDELINE_KAFKA_SECURITY_PROTOCOL"),
        (SSL, {"has_certificate": True}, "belong together"),
        (SSL, {"has_key": True}, "belong together"),
        (PLAINTEXT, {"has_ca": True}, "no TLS"),
        (SASL_PLAINTEXT, {**LOGIN, **OWN}, "no TLS"),
    ],
)
def test_own_connections_may_not_be_set_up_so(
    protocol: SecurityProtocol, given: dict[str, Any], remedy: str
) -> None:
    problem = own(protocol, **given)
    assert problem is not None
    assert remedy in problem


def at_gateway(listener: SecurityProtocol, broker: SecurityProtocol, **given: Any) -> str | None:
    nothing: dict[str, Any] = {
        "client_auth": ClientAuth.NONE,
        "has_certificate": listener.is_tls,
        "has_key": listener.is_tls,
        "has_ca": False,
        "shows_certificate": False,
    }
    return gateway_problem(listener, broker, **{**nothing, **given})


@pytest.mark.parametrize(
    ("listener", "broker", "given"),
    [
        (PLAINTEXT, PLAINTEXT, {}),
        (SSL, PLAINTEXT, {}),
        (SSL, SSL, {}),
        (PLAINTEXT, SSL, {}),
        (SASL_SSL, SASL_PLAINTEXT, {}),
        (SASL_SSL, SASL_SSL, {"shows_certificate": True}),
        (SASL_SSL, SASL_SSL, {"client_auth": ClientAuth.REQUIRED, "has_ca": True}),
        (SASL_SSL, SASL_SSL, {"client_auth": ClientAuth.REQUESTED, "has_ca": True}),
    ],
)
def test_a_gateway_may_listen_so(
    listener: SecurityProtocol, broker: SecurityProtocol, given: dict[str, Any]
) -> None:
    assert at_gateway(listener, broker, **given) is None


@pytest.mark.parametrize(
    ("listener", "broker", "given", "remedy"),
    [
        (SASL_SSL, SSL, {}, "name a SASL listener of the broker"),
        (SSL, SASL_SSL, {}, "TIDELINE_GATEWAY_SECURITY_PROTOCOL to SASL_SSL"),
        (SSL, SSL, {"shows_certificate": True}, "take every client"),
        (SSL, SSL, {"client_auth": ClientAuth.REQUIRED, "has_ca": True}, "delegation token"),
        (SSL, SSL, {"client_auth": ClientAuth.REQUESTED, "has_ca": True}, "delegation token"),
        (SSL, SSL, {"has_certificate": False}, "TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE"),
        (SSL, SSL, {"has_key": False}, "TIDELINE_GATEWAY_SSL_KEY_FILE"),
        (PLAINTEXT, PLAINTEXT, {"has_certificate": True}, "no TLS"),
        (PLAINTEXT, PLAINTEXT, {"client_auth": ClientAuth.REQUIRED}, "no TLS"),
        (
            SASL_SSL,
            SASL_SSL,
            {"client_auth": ClientAuth.REQUIRED},
            "TIDELINE_GATEWAY_SSL_CA_FILE",
        ),
    ],
)
def test_a_gateway_that_would_listen_so_does_not_start(
    listener: SecurityProtocol, broker: SecurityProtocol, given: dict[str, Any], remedy: str
) -> None:
    problem = at_gateway(listener, broker, **given)
    assert problem is not None
    assert remedy in problem
