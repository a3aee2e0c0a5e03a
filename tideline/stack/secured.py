"""What makes a stack a secured one: certificates, Kafka users, and who may do what.

Kafka's own traffic (broker to broker, to controllers, of the remote log's metadata) shows
certificates to each other; clients, gateways, worker and jobs log in by SCRAM. Nobody is a super
user but the brokers and, for the setup, whoever has the files of a home.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32
from kio.static.protocol import RequestPayload

from tideline.domain.rights import EVERY, Acl, Process, Resource, acls_of
from tideline.domain.security import OwnMechanism, SecurityProtocol
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.scram import MIN_ITERATIONS
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.tls import TlsFiles
from tideline.stack.certificates import Authority
from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.home import Home, read_json, write_private
from tideline.stack.probes import Address, show

MECHANISM = OwnMechanism.SCRAM_SHA_512
_SCRAM_SHA_512 = 2
"""Kafka's number of it (``ScramMechanism``)."""
CLIENT = "client"
"""The user of whoever works with the stack: topics, groups and transactions are its own."""
USERS = (*map(str, Process), CLIENT)
REAUTH_MS = 10_000
"""``connections.max.reauth.ms`` of the brokers: short, so that renewals are seen."""
SUPER_USERS = "User:CN=broker;User:CN=setup"
LOGIN_WITHIN_S = 20.0
PROBE_TIMEOUT_MS = 2_000

_RESOURCES = {
    Resource.TOPIC: 2,
    Resource.GROUP: 3,
    Resource.CLUSTER: 4,
    Resource.TRANSACTIONAL_ID: 5,
}
"""Kafka's numbers (``ResourceType``)."""
_OPERATIONS = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
}
"""Kafka's numbers (``AclOperation``)."""
_ANY, _LITERAL, _ALLOW = 1, 3, 3
_THE_CLUSTER = "kafka-cluster"
_CLIENTS = {
    Resource.TOPIC: "Read Write Create Delete Alter Describe DescribeConfigs AlterConfigs",
    Resource.GROUP: "Read Delete Describe DescribeConfigs AlterConfigs",
    Resource.TRANSACTIONAL_ID: "Write Describe",
}
RIGHTS: Mapping[str, Sequence[Acl]] = {
    **{str(process): acls_of(process) for process in Process},
    CLIENT: [
        Acl(resource, EVERY, operation)
        for resource, operations in _CLIENTS.items()
        for operation in operations.split()
    ],
}
"""By user. What Tideline's processes are given is the table of least rights as it stands, so that
whatever runs on a secured stack shows that they need nothing more."""


@dataclass(frozen=True, slots=True)
class Secured:
    """The certificates and users of one home."""

    home: Home

    def make(self) -> None:
        """What is not there yet, before several parts ask for it at once."""
        for name in ("broker", "setup", "gateway"):
            self.authority.issue(name)
        self.password(CLIENT)

    @property
    def authority(self) -> Authority:
        return Authority.load_or_create(self.home.tls)

    @property
    def ca(self) -> Path:
        """What everybody trusts."""
        return self.home.tls / "ca.pem"

    def password(self, user: str) -> str:
        """Of one of :data:`USERS`."""
        known = read_json(self.home.kafka_users_file)
        if known is None:
            known = {name: secrets.token_hex(20) for name in USERS}
            write_private(self.home.kafka_users_file, json.dumps(known, indent=2) + "\n")
        return known[user]

    def login(self, user: str) -> KafkaSecurity:
        """How ``user`` connects to a broker or gateway."""
        return KafkaSecurity(
            SecurityProtocol.SASL_SSL, MECHANISM, user, self.password(user), TlsFiles(self.ca)
        )

    def setup(self) -> KafkaSecurity:
        """How a super user connects to the brokers' own listener."""
        pair = self.authority.issue("setup")
        files = TlsFiles(self.ca, pair.certificate, pair.key)
        return KafkaSecurity(SecurityProtocol.SSL, files=files)

    def environment(self, user: str) -> dict[str, str]:
        """``TIDELINE_*`` variables of a process that logs in as ``user``."""
        found = {
            "TIDELINE_KAFKA_SECURITY_PROTOCOL": str(SecurityProtocol.SASL_SSL),
            "TIDELINE_KAFKA_SASL_MECHANISM": str(MECHANISM),
            "TIDELINE_KAFKA_SASL_USERNAME": user,
            "TIDELINE_KAFKA_SASL_PASSWORD": self.password(user),
            "TIDELINE_KAFKA_SSL_CA_FILE": str(self.ca),
        }
        if user == "gateway":
            pair = self.authority.issue("gateway")
            found |= {
                "TIDELINE_GATEWAY_SECURITY_PROTOCOL": str(SecurityProtocol.SASL_SSL),
                "TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE": str(pair.certificate),
                "TIDELINE_GATEWAY_SSL_KEY_FILE": str(pair.key),
            }
        return found

    def java_properties(self, user: str) -> str:
        """The same for Kafka's own tools, as the content of a properties file."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines = {
            "security.protocol": str(SecurityProtocol.SASL_SSL),
            "sasl.mechanism": str(MECHANISM),
            "sasl.jaas.config": f'{module} required username="{user}" '
            f'password="{self.password(user)}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def broker_properties(self, internal: str, clients: str) -> str:
        """What a broker's configuration gets beside listeners: ``internal`` is the name of the one
        for Kafka's own traffic, ``clients`` that of everybody else's."""
        pair = self.authority.issue("broker")
        stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pair.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        remote_log = "rlmm.config.remote.log.metadata.common.client."
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        one = f"listener.name.{clients.lower()}."
        lines = {
            **stores,
            **{f"{remote_log}{name}": value for name, value in stores.items()},
            "ssl.client.auth": "required",
            f"listener.name.{internal.lower()}.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            f"{one}ssl.client.auth": "none",
            f"{one}sasl.enabled.mechanisms": str(MECHANISM),
            f"{one}{str(MECHANISM).lower()}.sasl.jaas.config": f"{module} required;",
            "sasl.enabled.mechanisms": str(MECHANISM),
            "connections.max.reauth.ms": str(REAUTH_MS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": SUPER_USERS,
            "allow.everyone.if.no.acl.found": "false",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def set_up(self, internal: Address, clients: Address) -> None:
        """Users and their rights, through a broker's own listener; returns when they can log in
        at its listener for ``clients``. Idempotent. Raises :class:`StackError`."""
        try:
            asyncio.run(self._set_up(internal, clients))
        except (KafkaError, KafkaUnavailable, TimeoutError) as error:
            raise StackError(f"the users of {show(clients)} were not set up: {error}") from error

    async def _set_up(self, internal: Address, clients: Address) -> None:
        async with KafkaCluster([internal], security=self.setup()) as cluster:
            broker = await cluster.any()
            await _done(broker, self._users())
            await _done(broker, _rights())
        async with asyncio.timeout(LOGIN_WITHIN_S):
            await self._rights_are_known(internal)
            for user in USERS:
                await self._logs_in(user, clients)

    def _users(self) -> AlterUserScramCredentialsRequest:
        rows = []
        for user in USERS:
            salt = secrets.token_bytes(16)
            password = self.password(user).encode()
            rows.append(
                ScramCredentialUpsertion(
                    name=user,
                    mechanism=i8(_SCRAM_SHA_512),
                    iterations=i32(MIN_ITERATIONS),
                    salt=salt,
                    salted_password=hashlib.pbkdf2_hmac("sha512", password, salt, MIN_ITERATIONS),
                )
            )
        return AlterUserScramCredentialsRequest(deletions=(), upsertions=tuple(rows))

    async def _rights_are_known(self, internal: Address) -> None:
        """The broker answers from what it goes by, and may be seconds behind the controller."""
        wanted = len({(user, acl) for user, acls in RIGHTS.items() for acl in acls})
        broker = await KafkaConnection.open(*internal, security=self.setup())
        with contextlib.closing(broker):
            while True:
                answer: Any = await broker.send(_every_right())
                if sum(len(found.acls) for found in answer.resources) >= wanted:
                    return
                await asyncio.sleep(0.1)

    async def _logs_in(self, user: str, address: Address) -> None:
        """The broker has heard of it, which takes a moment."""
        while True:
            try:
                opened = await KafkaConnection.open(*address, security=self.login(user))
            except KafkaError as error:
                if error.code is not ErrorCode.sasl_authentication_failed:
                    raise
                await asyncio.sleep(0.1)
            else:
                opened.close()
                return


def kafka_nodes(address: Address, security: KafkaSecurity) -> set[int]:
    """Node ids of the brokers that the broker or gateway at ``address`` names as alive. Raises
    :class:`NotReadyError`."""

    async def ask() -> set[int]:
        async with KafkaCluster(
            [address], client_id="tideline-stack", timeout_ms=PROBE_TIMEOUT_MS, security=security
        ) as cluster:
            return set(await cluster.nodes())

    try:
        return asyncio.run(ask())
    except (KafkaError, KafkaUnavailable) as error:
        raise NotReadyError(str(error)) from None


async def _done(broker: KafkaConnection, request: RequestPayload) -> None:
    answer: Any = await broker.send(request)
    for row in answer.results:
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, f"{type(request).__name__}: {row.error_message}")


def _every_right() -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=i8(_ANY),
        resource_name_filter=None,
        pattern_type_filter=i8(_ANY),
        principal_filter=None,
        host_filter=None,
        operation=i8(_ANY),
        permission_type=i8(_ANY),
    )


def _rights() -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=tuple(
            AclCreation(
                resource_type=i8(_RESOURCES[acl.resource]),
                resource_name=_THE_CLUSTER if acl.resource is Resource.CLUSTER else acl.name,
                resource_pattern_type=i8(_LITERAL),
                principal=f"User:{user}",
                host="*",
                operation=i8(_OPERATIONS[acl.operation]),
                permission_type=i8(_ALLOW),
            )
            for user, acls in RIGHTS.items()
            for acl in acls
        )
    )
