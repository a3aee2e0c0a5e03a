"""How Tideline's own connections to brokers are made: the one place for every client library."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Self

from tideline.domain.security import OwnMechanism, SecurityProtocol
from tideline.kafka.tls import TlsFiles, client_context
from tideline.settings import JobsSettings, KafkaSecuritySettings


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """What the settings say. May be pickled and travels to executors: as those settings, where they
    leave secrets out, else with its password."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: OwnMechanism | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    files: TlsFiles = field(default_factory=TlsFiles)
    origin: JobsSettings | None = field(default=None, repr=False, compare=False)
    """What an executor makes it from."""

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return KafkaSecurity.of, (self.origin,)
        values = (self.protocol, self.mechanism, self.username, self.password, self.files)
        return KafkaSecurity, values

    @classmethod
    def of(cls, settings: KafkaSecuritySettings) -> Self:
        secret = settings.kafka_sasl_password
        return cls(
            settings.kafka_security_protocol,
            settings.kafka_sasl_mechanism,
            settings.kafka_sasl_username or "",
            secret.get_secret_value() if secret else "",
            TlsFiles(
                settings.kafka_ssl_ca_file,
                settings.kafka_ssl_certificate_file,
                settings.kafka_ssl_key_file,
            ),
            settings
            if isinstance(settings, JobsSettings) and settings.jobs_executors_config
            else None,
        )

    def tls(self) -> ssl.SSLContext | None:
        """For a connection that is opened now; ``None``: in clear text. Raises
        :class:`tideline.errors.UsageError` if the files cannot be used."""
        return client_context(self.files) if self.protocol.is_tls else None

    @property
    def librdkafka(self) -> dict[str, str]:
        """Configuration of confluent-kafka's clients. They read the files when they are made."""
        found: dict[str, str] = {"security.protocol": str(self.protocol)}
        if self.protocol.is_sasl:
            found |= {
                "sasl.mechanism": str(self.mechanism),
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self.protocol.is_tls:
            files = self.files
            named = {
                "ssl.ca.location": files.ca,
                "ssl.certificate.location": files.certificate,
                "ssl.key.location": files.key,
            }
            found |= {name: str(path) for name, path in named.items() if path is not None}
        return found


UNSECURED = KafkaSecurity()
"""Clear text, and nobody logs in."""
