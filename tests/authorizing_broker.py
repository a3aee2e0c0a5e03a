"""One stock broker with Kafka's own authorizer, and users who log in: small, and without a store.

Its first listener is for those who own it: nobody logs in there, and ``User:ANONYMOUS`` may do
everything. Its second one wants a login (SASL/PLAIN).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from tests.ports import free_ports
from tests.support.waiting import HANGS_S, bounded, stopped, until
from tideline.kafka.protocol import decode_response, encode_request
from tideline.stack.errors import NotReadyError
from tideline.stack.kafka_jars import ensure, java, libraries, tool_command
from tideline.stack.parts.kafka import new_cluster_id
from tideline.stack.probes import kafka_nodes

NODE = 1
STARTS_WITHIN_S = 120.0
ANSWERS_WITHIN_S = 60.0
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{owners},SASL_PLAINTEXT://127.0.0.1:{users},\
CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{owners},SASL_PLAINTEXT://127.0.0.1:{users}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {logins};
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
num.network.threads=1
num.io.threads=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
"""


def password_of(user: str) -> str:
    return f"{user}-secret"


@dataclass(frozen=True)
class AuthorizingBroker:
    """Where it listens."""

    owners: tuple[str, int]
    users: tuple[str, int]

    @property
    def bootstrap(self) -> str:
        """For who owns it."""
        return f"{self.owners[0]}:{self.owners[1]}"


@contextmanager
def authorizing_broker(directory: Path, users: Collection[str]) -> Iterator[AuthorizingBroker]:
    """A broker that runs meanwhile, below ``directory``; ``users`` may log in, and ``admin``."""
    jars = libraries()
    ensure(jars)
    owners, listener, controller = free_ports(3)
    logins = " ".join(f'user_{user}="{password_of(user)}"' for user in (*users, "admin"))
    properties = directory / "broker.properties"
    properties.write_text(
        PROPERTIES.format(
            owners=owners,
            users=listener,
            controller=controller,
            logins=logins,
            data=directory / "data",
        )
    )
    properties.chmod(0o600)
    subprocess.run(
        tool_command(
            "kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", str(properties)
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=HANGS_S,
    )
    with (directory / "broker.out").open("wb") as out:
        process = subprocess.Popen(
            (
                *(java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                f"-Dlog4j2.configurationFile={jars.config / 'tools-log4j2.properties'}",
                *("-cp", f"{jars.broker}/*", "kafka.Kafka", str(properties)),
            ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            _until_up(("127.0.0.1", owners), process, directory / "broker.out")
            yield AuthorizingBroker(("127.0.0.1", owners), ("127.0.0.1", listener))
        finally:
            stopped(process)


def _until_up(address: tuple[str, int], process: subprocess.Popen[bytes], out: Path) -> None:
    def is_up() -> bool:
        assert process.poll() is None, out.read_text()[-2000:]
        with suppress(NotReadyError):
            return NODE in kafka_nodes(address)
        return False

    try:
        until("the broker", is_up, STARTS_WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {out.read_text()[-2000:]}") from error


class User:
    """A client that speaks raw frames, at the broker or at a gateway."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self._reader, self._writer, self._client_id = reader, writer, client_id

    @classmethod
    async def connect(cls, address: tuple[str, int], client_id: str = "raw") -> User:
        """Without a login."""
        return cls(*await asyncio.open_connection(*address), client_id)

    @classmethod
    async def log_in(cls, address: tuple[str, int], name: str, client_id: str = "raw") -> User:
        made = await cls.connect(address, client_id)
        shaken = await made.ask(SaslHandshakeRequest(mechanism="PLAIN"))
        assert shaken.error_code is ErrorCode.none, shaken
        said = f"\0{name}\0{password_of(name)}".encode()
        known = await made.ask(SaslAuthenticateRequest(auth_bytes=said))
        assert known.error_code is ErrorCode.none, known
        return made

    async def ask(self, message: Any) -> Any:
        """One request, and its answer."""
        frame = encode_request(message, 7, self._client_id)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        async with bounded(f"the answer to {type(message).__name__}", ANSWERS_WITHIN_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = await self._reader.readexactly(size)
        return decode_response(answer, int(message.__api_key__), int(message.__version__))

    def close(self) -> None:
        self._writer.close()
