"""How a Kafka listener is protected, in Kafka's own words, and which settings do not go together.

Each ``…_problem`` says in one sentence what is wrong and what to do, or ``None``.
"""

from __future__ import annotations

from enum import StrEnum


class SecurityProtocol(StrEnum):
    """``security.protocol`` of Kafka's clients and listeners."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class OwnMechanism(StrEnum):
    """What Tideline's own connections can log in with."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class ClientAuth(StrEnum):
    """``ssl.client.auth``: whether clients have to show a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


def own_connection_problem(
    protocol: SecurityProtocol,
    *,
    mechanism: OwnMechanism | None,
    has_username: bool,
    has_password: bool,
    has_ca: bool,
    has_certificate: bool,
    has_key: bool,
) -> str | None:
    """What is wrong with ``TIDELINE_KAFKA_…``."""
    login = mechanism is not None or has_username or has_password
    if protocol.is_sasl and not (mechanism and has_username and has_password):
        return (
            f"TIDELINE_KAFKA_SECURITY_PROTOCOL={protocol} needs a login: set "
            "TIDELINE_KAFKA_SASL_MECHANISM, TIDELINE_KAFKA_SASL_USERNAME and "
            "TIDELINE_KAFKA_SASL_PASSWORD_FILE"
        )
    if login and not protocol.is_sasl:
        return (
            f"TIDELINE_KAFKA_SASL_… are set, and nobody logs in with protocol {protocol}: choose "
            "SASL_SSL or SASL_PLAINTEXT with TIDELINE_KAFKA_SECURITY_PROTOCOL, or leave them out"
        )
    if has_certificate is not has_key:
        return (
            "TIDELINE_KAFKA_SSL_CERTIFICATE_FILE and TIDELINE_KAFKA_SSL_KEY_FILE belong together: "
            "set both, or neither"
        )
    if (has_ca or has_certificate) and not protocol.is_tls:
        return (
            f"TIDELINE_KAFKA_SSL_… are set, and protocol {protocol} has no TLS: choose SASL_SSL or "
            "SSL with TIDELINE_KAFKA_SECURITY_PROTOCOL, or leave them out"
        )
    return None


def gateway_problem(
    listener: SecurityProtocol,
    broker: SecurityProtocol,
    *,
    client_auth: ClientAuth,
    has_certificate: bool,
    has_key: bool,
    has_ca: bool,
    shows_certificate: bool,
) -> str | None:
    """What is wrong with ``TIDELINE_GATEWAY_SECURITY_PROTOCOL`` and what goes with it.

    ``broker``: the protocol of the paired broker's listener; ``shows_certificate``: whether the
    gateway has a certificate for that. Whoever a client says it is, is decided by Kafka on the
    client's own connection behind the gateway, where it can say so by SASL only.
    """
    if listener.is_sasl and not broker.is_sasl:
        return (
            f"TIDELINE_GATEWAY_SECURITY_PROTOCOL={listener}, and nobody authenticates clients at a "
            f"broker's listener of protocol {broker}: name a SASL listener of the broker with "
            "TIDELINE_GATEWAY_BROKER and TIDELINE_KAFKA_SECURITY_PROTOCOL"
        )
    if broker.is_sasl and not listener.is_sasl:
        return (
            f"TIDELINE_KAFKA_SECURITY_PROTOCOL={broker}: the broker wants a login, which clients "
            f"of a listener of protocol {listener} do not give; set "
            "TIDELINE_GATEWAY_SECURITY_PROTOCOL to SASL_SSL (or SASL_PLAINTEXT)"
        )
    if broker is SecurityProtocol.SSL and shows_certificate:
        return (
            "TIDELINE_KAFKA_SSL_CERTIFICATE_FILE with protocol SSL: Kafka would take every client "
            "for the principal of the gateway's certificate. Use a SASL_SSL listener of the broker"
        )
    if listener is SecurityProtocol.SSL and client_auth is not ClientAuth.NONE:
        return (
            f"TIDELINE_GATEWAY_SSL_CLIENT_AUTH={client_auth} with protocol SSL: a certificate's "
            "identity cannot be shown to the broker, which would take its owner for somebody else. "
            "Use SASL_SSL (with client certificates too, if you like), and let clients log in by "
            "SCRAM, OAUTHBEARER, or a delegation token of the certificate's principal"
        )
    if listener.is_tls and not (has_certificate and has_key):
        return (
            f"TIDELINE_GATEWAY_SECURITY_PROTOCOL={listener} needs "
            "TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE and TIDELINE_GATEWAY_SSL_KEY_FILE"
        )
    if not listener.is_tls and (has_certificate or has_key or has_ca):
        return (
            f"TIDELINE_GATEWAY_SSL_… are set, and protocol {listener} has no TLS: choose SASL_SSL "
            "or SSL with TIDELINE_GATEWAY_SECURITY_PROTOCOL, or leave them out"
        )
    if not listener.is_tls and client_auth is not ClientAuth.NONE:
        return (
            f"TIDELINE_GATEWAY_SSL_CLIENT_AUTH={client_auth}, and protocol {listener} has no TLS: "
            "choose SASL_SSL with TIDELINE_GATEWAY_SECURITY_PROTOCOL, or leave it out"
        )
    if client_auth is not ClientAuth.NONE and not has_ca:
        return (
            f"TIDELINE_GATEWAY_SSL_CLIENT_AUTH={client_auth} needs TIDELINE_GATEWAY_SSL_CA_FILE: "
            "the authorities that may have signed clients' certificates"
        )
    return None
