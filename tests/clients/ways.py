"""How clients get to the gateways, in the words of each library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tideline.kafka.security import KafkaSecurity
from tideline.stack.home import write_private

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Way:
    """Where clients bootstrap, and how they connect and log in."""

    bootstrap: str
    security: KafkaSecurity

    @property
    def name(self) -> str:
        """As ``security.protocol`` has it."""
        return str(self.security.protocol)

    @property
    def librdkafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap, **self.security.librdkafka}

    def by_library(self) -> dict[str, dict[str, Any]]:
        return {
            "librdkafka": self.librdkafka,
            "java": self._java(),
            "kafka-python": self._kafka_python(),
            "go": self._go(),
        }

    def _java(self) -> dict[str, str]:
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self.name}
        security = self.security
        if security.protocol.is_tls:
            found |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(security.files.ca),
            }
        if security.protocol.is_sasl:
            login = f'username="{security.username}" password="{security.password}"'
            found |= {
                "sasl.mechanism": str(security.mechanism),
                "sasl.jaas.config": f"{SCRAM} required {login};",
            }
        return found

    def _kafka_python(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap.split(","),
            "security_protocol": self.name,
        }
        security = self.security
        if security.protocol.is_tls:
            found["ssl_cafile"] = str(security.files.ca)
        if security.protocol.is_sasl:
            found |= {
                "sasl_mechanism": str(security.mechanism),
                "sasl_plain_username": security.username,
                "sasl_plain_password": security.password,
            }
        return found

    def _go(self) -> dict[str, Any]:
        """``ca``: empty without TLS; ``user``: empty without a login (SCRAM-SHA-512)."""
        security = self.security
        return {
            "seeds": self.bootstrap.split(","),
            "ca": str(security.files.ca) if security.protocol.is_tls else "",
            "user": security.username,
            "password": security.password,
        }


def write_ways(ways: Sequence[Way], file: Path) -> Path:
    """The file that every program is given: by the name of a way, then by library."""
    write_private(file, json.dumps({way.name: way.by_library() for way in ways}))
    return file
