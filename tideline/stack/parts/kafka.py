"""Stock Kafka brokers in racks, KRaft controllers in the same processes, tiered storage on S3."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from string import Template

from tideline.stack.endpoints import S3_REGION, TIERED_BUCKET, TIERED_PREFIX
from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.home import write_private
from tideline.stack.kafka_classes import QUICK_START, archived_classes
from tideline.stack.kafka_jars import ensure, is_current, java, libraries, tool_command
from tideline.stack.parts.base import StackPart, StackPlan
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import Address, kafka_nodes, show
from tideline.stack.processes import Program
from tideline.stack.secured import kafka_nodes as kafka_nodes_of


def new_cluster_id() -> str:
    """Kafka's way to write a UUID: URL-safe base64 without padding, not starting with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


class Kafka(StackPart):
    ready_within_s = 90

    def __init__(self, plan: StackPlan, node: int) -> None:
        super().__init__(plan)
        self.node = node
        self._jars = libraries()

    @property
    def name(self) -> str:
        return f"kafka-{self.node}"

    @property
    def where(self) -> str:
        return show(self.plan.address(self.name))

    @property
    def data(self) -> Path:
        return self.plan.home.data / self.name

    @property
    def properties(self) -> Path:
        return self.plan.home.run / f"{self.name}.properties"

    @property
    def overrides(self) -> Path:
        """Settings that a person gives this broker; of two values of a key Kafka takes the last."""
        return self.plan.home.path / f"{self.name}.properties"

    @property
    def machine_options(self) -> tuple[str, ...]:
        """Of the JVM, which a person gives this broker; of two values the JVM takes the last."""
        file = self.plan.home.path / f"{self.name}.jvm"
        return tuple(file.read_text().split()) if file.is_file() else ()

    @property
    def temporary(self) -> Path:
        """Codecs unpack their native libraries here; a killed JVM leaves them behind."""
        return self.plan.home.run / f"{self.name}.tmp"

    def program(self) -> Program:
        return Program(
            name=self.name,
            command=(
                java(),
                "-Xms128m",
                "-Xmx384m",
                *QUICK_START,
                *archived_classes(self._jars.output),
                "-XX:+ExitOnOutOfMemoryError",
                "-XX:-UsePerfData",
                "-Djava.awt.headless=true",
                f"-Djava.io.tmpdir={self.temporary}",
                f"-Dlog4j2.configurationFile={self._jars.config / 'log4j2.properties'}",
                f"-Dtideline.log={self.log()}",
                *self.machine_options,
                "-cp",
                f"{self._jars.broker}/*",
                "kafka.Kafka",
                str(self.properties),
            ),
            log=self.plan.home.logs / f"{self.name}.out",
            main_log=self.log(),
            stop_wait_s=5,
        )

    @property
    def preparation(self) -> str:
        return "" if is_current(self._jars) else "Maven fetches Kafka's jars"

    def prepare(self) -> None:
        ensure(self._jars)
        self.write_properties()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(exist_ok=True)
        if (self.data / "meta.properties").exists():
            return
        command = tool_command(
            "kafka.tools.StorageTool",
            *("format", "-t", self.plan.state.kafka_cluster_id, "-c", str(self.properties)),
        )
        made = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if made.returncode != 0:
            raise StackError(
                f"formatting {self.data} failed: {(made.stderr + made.stdout).strip()[-2000:]}"
            )

    def write_properties(self) -> None:
        """Anew at each start: ports may have moved."""
        state, credentials = self.plan.state, self.plan.credentials
        template = Template((self._jars.config / "broker.properties.template").read_text())
        secured = self.plan.secured
        clients, internal, encrypted = ("PLAINTEXT", "PLAINTEXT", "PLAINTEXT")
        if secured is not None:
            clients, internal, encrypted = ("CLIENTS", "INTERNAL", "SSL")
        listeners = {clients: self.plan.port(self.name)}
        if secured is not None:
            listeners[internal] = self.plan.port(f"internal-{self.node}")
        advertised = dict(listeners)
        if self.node in state.voters:
            listeners["CONTROLLER"] = self.plan.port(f"controller-{self.node}")
        text = template.substitute(
            node_id=self.node,
            rack=state.rack(self.node),
            voters=",".join(
                f"{node}@{show(self.plan.address(f'controller-{node}'))}" for node in state.voters
            ),
            roles="broker,controller" if "CONTROLLER" in listeners else "broker",
            listeners=_listed(listeners),
            advertised=_listed(advertised),
            protocols=f"{clients}:{'SASL_SSL' if secured else 'PLAINTEXT'},"
            + (f"{internal}:{encrypted}," if secured else "")
            + f"CONTROLLER:{encrypted}",
            internal=internal,
            log_dir=self.data,
            replication_factor=min(3, state.brokers),
            min_insync_replicas=min(2, state.brokers),
            rsm_libs=self._jars.rsm,
            tiered_bucket=TIERED_BUCKET,
            tiered_prefix=TIERED_PREFIX,
            s3_region=S3_REGION,
            s3_endpoint=self.plan.endpoints.s3.url,
            s3_access_key=credentials.s3_broker_access_key,
            s3_secret_key=credentials.s3_broker_secret_key,
        )
        if secured is not None:
            text += "\n" + secured.broker_properties(internal, clients)
        if self.overrides.is_file():
            text += f"\n# {self.overrides}\n{self.overrides.read_text()}"
        write_private(self.properties, text)

    @property
    def _internal(self) -> Address:
        return self.plan.address(f"internal-{self.node}")

    def probe(self) -> None:
        """This broker answers and is unfenced."""
        if (secured := self.plan.secured) is not None:
            alive = kafka_nodes_of(self._internal, secured.setup())
        else:
            alive = kafka_nodes(self.plan.address(self.name))
        if self.node not in alive:
            raise NotReadyError(f"broker {self.node} is not among the alive {sorted(alive)}")

    def finish(self) -> None:
        """Users and rights of a secured stack."""
        if (secured := self.plan.secured) is not None:
            secured.set_up(self._internal, self.plan.address(self.name))


def _listed(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())
