"""What Helm makes of the chart: every container starts with the settings and files that it names,
and nobody is shown or let in who is not meant (``make chart``)."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from tests.support.waiting import HANGS_S
from tests.unit.test_chart import CHART, DEFAULTS, GIVEN, ROOT, merged
from tideline import settings
from tideline.settings import load

BUILT = ROOT / ".tools/bin/helm"
HELM = shutil.which("helm") or (str(BUILT) if BUILT.exists() else None)
pytestmark = pytest.mark.skipif(HELM is None, reason="needs Helm, which `make chart` builds")

KINDS: dict[str, type[BaseSettings]] = {
    "gateway": settings.GatewaySettings,
    "worker": settings.WorkerSettings,
    "schema": settings.SchemaSettings,
}
"""By ``app.kubernetes.io/component``."""
SECRETS = settings._secrets(settings._Base)

Manifest = dict[str, Any]


def helm_template(values: Path, *more: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, "template", "tideline", str(CHART), "--namespace", "kafka"]
    return subprocess.run(
        [*command, "--values", str(values), "--kube-version", "1.34.0", *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )


@functools.cache
def rendered(values: Path) -> list[Manifest]:
    done = helm_template(values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(values: Path, kind: str) -> list[Manifest]:
    return [document for document in rendered(values) if document["kind"] == kind]


def config(values: Path, name: str) -> str:
    (found,) = [c for c in of_kind(values, "ConfigMap") if c["metadata"]["name"] == name]
    text: str = found["data"]["tideline.toml"]
    return text


@dataclass(frozen=True)
class Container:
    """The one container of a pod."""

    values: Path
    workload: str
    component: str
    labels: dict[str, str]
    pod: Manifest
    spec: Manifest
    claims: frozenset[str]

    @property
    def environment(self) -> dict[str, str]:
        return {given["name"]: given["value"] for given in self.spec["env"]}

    @property
    def secrets(self) -> dict[str, tuple[str, str]]:
        """By the path of a file: the name of the Secret that it is of, and its key there."""
        found = {}
        for mount, volume in self._mounts():
            for source in volume.get("projected", {}).get("sources", []):
                for item in source["secret"]["items"]:
                    path = f"{mount['mountPath']}/{item['path']}"
                    found[path] = (source["secret"]["name"], item["key"])
        return found

    def _mounts(self) -> Iterator[tuple[Manifest, Manifest]]:
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in self.spec["volumeMounts"]:
            yield mount, {} if mount["name"] in self.claims else volumes[mount["name"]]

    def laid_out(self, root: Path) -> Mapping[str, str]:
        """Lay what is mounted below ``root``. The environment of a process that has it as its own
        root."""
        for mount, volume in self._mounts():
            place = below(root, mount["mountPath"])
            if "configMap" in volume:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(config(self.values, volume["configMap"]["name"]))
            else:
                place.mkdir(parents=True, exist_ok=True)
        for path in self.secrets:
            below(root, path).write_text("host=postgres\n" if path.endswith("-dsn") else "secret\n")
        mounted = [mount["mountPath"] for mount, _ in self._mounts()]
        return {
            name: str(below(root, value)) if value.startswith(tuple(mounted)) else value
            for name, value in self.environment.items()
        }


def below(root: Path, path: str) -> Path:
    return root / path.removeprefix("/")


def containers(values: Path) -> list[Container]:
    found = []
    for document in rendered(values):
        template = document.get("spec", {}).get("template")
        if template is None:
            continue
        labels = template["metadata"]["labels"]
        pod = template["spec"]
        (spec,) = pod["containers"]
        assert "initContainers" not in pod
        claims = document["spec"].get("volumeClaimTemplates", [])
        found.append(
            Container(
                values,
                document["metadata"]["name"],
                labels["app.kubernetes.io/component"],
                labels,
                pod,
                spec,
                frozenset(claim["metadata"]["name"] for claim in claims),
            )
        )
    return found


def loaded(container: Container, root: Path, patch: pytest.MonkeyPatch) -> Any:
    """By the process's own means."""
    with patch.context() as environment:
        for name, value in container.laid_out(root).items():
            environment.setenv(name, value)
        environment.chdir(root)
        return load(KINDS[container.component])


each_set = pytest.mark.parametrize("values", GIVEN, ids=lambda file: file.stem)


def test_there_is_a_set_in_plaintext_one_with_logins_and_one_for_the_world_outside() -> None:
    said = {file.stem: merged(DEFAULTS, yaml.safe_load(file.read_text())) for file in GIVEN}
    assert said["least-values"]["kafka"]["securityProtocol"] == "PLAINTEXT"
    assert said["secured-values"]["kafka"]["securityProtocol"] == "SASL_SSL"
    assert said["whole-values"]["gateway"]["service"]["type"] == "LoadBalancer"
    every = set(DEFAULTS["secrets"])
    assert {n for n, s in said["secured-values"]["secrets"].items() if s["name"]} == every


@each_set
def test_every_container_starts_with_its_settings(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = merged(DEFAULTS, yaml.safe_load(values.read_text()))
    found: dict[str, list[Any]] = {"gateway": [], "worker": [], "schema": []}
    for container in containers(values):
        made = loaded(container, tmp_path / container.workload, monkeypatch)
        found[container.component].append(made)
        verified = container.environment.get("PGSSLMODE") == "verify-full"
        assert verified is bool(said["secrets"]["postgresAuthority"]["name"])
    assert (len(found["worker"]), len(found["schema"])) == (1, said["schema"]["migrate"])
    brokers = {broker["id"]: broker["address"] for broker in said["kafka"]["brokers"]}
    beside = {g.gateway_broker_id: ":".join(map(str, g.gateway_broker)) for g in found["gateway"]}
    assert beside == brokers
    for gateway in found["gateway"]:
        assert gateway.gateway_id == gateway.gateway_broker_id
        assert gateway.gateway_peers.keys() == brokers.keys()
        assert gateway.gateway_peers[gateway.gateway_id] == gateway.gateway_advertised
        assert gateway.gateway_security_protocol == said["gateway"]["securityProtocol"]
    for one in (*found["gateway"], *found["worker"]):
        protocol = one.kafka_security_protocol
        assert protocol == said["kafka"]["securityProtocol"]
        role = "gateway" if one in found["gateway"] else "worker"
        assert one.kafka_sasl_username == (f"one-{role}" if protocol.is_sasl else None)


@each_set
def test_what_a_setting_names_as_a_file_is_mounted(values: Path) -> None:
    for container in containers(values):
        named = {
            value
            for name, value in container.environment.items()
            if name.endswith(("_FILE", "ROOTCERT"))
        }
        assert named == container.secrets.keys(), container.workload


@each_set
def test_secrets_are_those_that_the_values_name_and_none_is_forgotten(values: Path) -> None:
    said = merged(DEFAULTS, yaml.safe_load(values.read_text()))
    mounted: set[str] = set()
    for container in containers(values):
        filled = {
            name: (place(secret["name"], container), place(secret["key"], container))
            for name, secret in said["secrets"].items()
            if secret["name"]
        }
        for secret in container.secrets.values():
            assert secret in filled.values(), container.workload
        mounted |= {name for name, secret in filled.items() if secret in container.secrets.values()}
    assert mounted == {name for name, secret in said["secrets"].items() if secret["name"]}


def place(text: str, container: Container) -> str:
    broker = container.labels.get("tideline.org/broker", "")
    return text.replace("{role}", container.component).replace("{id}", broker)


@each_set
def test_no_secret_stands_in_the_clear(values: Path) -> None:
    for container in containers(values):
        for name in container.environment:
            assert name.removeprefix("TIDELINE_").lower() not in SECRETS, container.workload
    for text in (c["data"].get("tideline.toml", "") for c in of_kind(values, "ConfigMap")):
        assert not {line.partition(" ")[0] for line in text.splitlines()} & SECRETS


@each_set
def test_the_jobs_start_with_their_config_map_and_the_files_that_it_names(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = config(values, "tideline-jobs")
    directory = DEFAULTS["jobs"]["secretsDirectory"]
    for path in re.findall(rf'"({directory}/[^"]+)"', text):
        below(tmp_path, path).parent.mkdir(parents=True, exist_ok=True)
        below(tmp_path, path).write_text("host=postgres" if path.endswith("-dsn") else "secret")
    (tmp_path / "jobs.toml").write_text(text.replace(f'"{directory}', f'"{tmp_path}{directory}'))
    monkeypatch.setenv("TIDELINE_CONFIG", str(tmp_path / "jobs.toml"))
    monkeypatch.chdir(tmp_path)
    found = load(settings.JobsSettings)
    assert found.kafka_security_protocol.is_sasl is (found.kafka_sasl_username == "one-jobs")


@each_set
def test_a_pod_has_no_rights_and_writes_into_volumes_only(values: Path) -> None:
    for container in containers(values):
        pod, own = container.pod["securityContext"], container.spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container.pod["automountServiceAccountToken"] is False


@each_set
def test_gateways_and_workers_are_somebody_each_to_the_cloud(values: Path) -> None:
    """Their rights in S3 differ (docs/rights.md), also where the ServiceAccount gives them."""
    made = {a["metadata"]["name"]: a["metadata"] for a in of_kind(values, "ServiceAccount")}
    used = {one.component: one.pod.get("serviceAccountName") for one in containers(values)}
    assert made.keys() == {used["gateway"], used["worker"]}
    assert used["gateway"] != used["worker"]
    for role in ("gateway", "worker"):
        annotations = made[used[role]].get("annotations", {})
        assert annotations == ({"role-arn": f"s3-{role}"} if values.stem == "whole-values" else {})


@each_set
def test_only_services_inside_of_the_cluster_have_pages(values: Path) -> None:
    for service in of_kind(values, "Service"):
        ports = {port["name"] for port in service["spec"]["ports"]}
        if "metrics" in ports:
            assert service["spec"].get("type", "ClusterIP") == "ClusterIP"
            assert service["spec"]["clusterIP"] == "None"
            assert ports == {"metrics"}
    for container in containers(values):
        if container.component != "schema":
            assert container.component in {
                service["spec"]["selector"]["app.kubernetes.io/component"]
                for service in of_kind(values, "Service")
                if service["spec"]["ports"][0]["name"] == "metrics"
            }


@each_set
def test_a_gateway_that_is_not_ready_is_still_reached(values: Path) -> None:
    """Without a lease, while Postgres is away for example, it is not ready and serves all that is
    not tracked; while it stops it serves until its siblings have heard. No other pod has its
    address, so a Service that leaves it out helps nobody."""
    services = of_kind(values, "Service")
    assert len(services) >= 3
    assert all(service["spec"]["publishNotReadyAddresses"] for service in services)
    for container in containers(values):
        assert "lifecycle" not in container.spec


@each_set
def test_pages_are_shown_to_nobody_but_the_peers_that_the_values_name(values: Path) -> None:
    said = merged(DEFAULTS, yaml.safe_load(values.read_text()))["networkPolicy"]
    policies = of_kind(values, "NetworkPolicy")
    for component in ("gateway", "worker"):
        (policy,) = [
            p
            for p in policies
            if p["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        ]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        shown = [
            rule
            for rule in policy["spec"]["ingress"]
            if "metrics" in [port["port"] for port in rule["ports"]]
        ]
        assert [rule["from"] for rule in shown] == (
            [said["monitoring"]] if said["monitoring"] else []
        )
        assert all([p["port"] for p in rule["ports"]] == ["metrics"] for rule in shown)


@each_set
def test_where_siblings_stand_in_clients_get_through(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways = [one for one in containers(values) if one.component == "gateway"]
    services = {service["metadata"]["name"]: service for service in of_kind(values, "Service")}
    (policy,) = [
        p for p in of_kind(values, "NetworkPolicy") if p["metadata"]["name"] == "tideline-gateways"
    ]
    (for_clients,) = [
        rule
        for rule in policy["spec"]["ingress"]
        if "kafka" in [port["port"] for port in rule["ports"]]
    ]
    let_in = {port["port"] for port in for_clients["ports"]}
    for gateway in gateways:
        found = loaded(gateway, tmp_path / gateway.workload, monkeypatch)
        listens = {at[1] for at in (found.gateway_listen, *found.stands_in.values())}
        opened = {p["containerPort"]: p["name"] for p in gateway.spec["ports"]}
        assert opened.keys() == listens | {found.metrics_address[1]}
        assert {opened[port] for port in listens} <= let_in
        led = {p["port"]: p["targetPort"] for p in services[gateway.workload]["spec"]["ports"]}
        assert led == {port: opened[port] for port in listens}
        others = found.gateway_peers.keys() - {found.gateway_broker_id}
        if values.stem == "secured-values":
            assert found.stands_in.keys() == others == found.stands_in_at.keys()
            own = f"{gateway.workload}.kafka.svc"
            assert set(found.stands_in_at.values()) == {
                (own, port) for _, port in found.stands_in.values()
            }
        else:
            assert found.stands_in == {}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("monitoring.serviceMonitor.enabled=true", "networkPolicy.monitoring lets nobody"),
        ("gateway.standInBasePort=9091", "9092, which is another port of gateways"),
        ("serviceAccount.name=one", "serviceAccount.name has no {role}"),
        ("gateway.standInBasePort=65535", "65536, which is another port of gateways or none"),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_a_remedy(given: str, why: str) -> None:
    (least,) = [file for file in GIVEN if file.stem == "least-values"]
    done = helm_template(least, "--set", given)
    assert done.returncode != 0
    assert why in done.stderr
