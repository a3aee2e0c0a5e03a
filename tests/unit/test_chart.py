"""The Helm chart's values, and what of its templates needs no Helm; `make chart` renders them.

``compose.yaml`` beside it: `make images` asks Compose itself.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tideline.settings import GatewaySettings, SchemaSettings, WorkerSettings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "helm" / "tideline"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
GIVEN = sorted((CHART / "ci").glob("*-values.yaml"))
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SETTINGS = {
    *GatewaySettings.model_fields,
    *WorkerSettings.model_fields,
    *SchemaSettings.model_fields,
}


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """As Helm does it: objects key by key, all else as a whole."""
    made = copy.deepcopy(defaults)
    for key, value in given.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if both else value
    return made


def valid(values: dict[str, Any]) -> bool:
    return jsonschema.Draft7Validator(SCHEMA).is_valid(values)


@pytest.mark.parametrize("file", GIVEN, ids=lambda file: file.stem)
def test_values_that_name_the_parts_are_taken(file: Path) -> None:
    jsonschema.validate(merged(DEFAULTS, yaml.safe_load(file.read_text())), SCHEMA)


def test_the_values_that_the_page_shows_are_taken() -> None:
    """One block after the other, as an operator adds them."""
    page = (ROOT / "docs" / "install-containers.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    values = DEFAULTS
    for block in blocks:
        values = merged(values, yaml.safe_load(block))
        jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize("left_out", ["kafka", "secrets", "s3", "temporal"])
def test_what_has_no_default_must_be_given(left_out: str) -> None:
    given = yaml.safe_load((CHART / "ci" / "least-values.yaml").read_text())
    assert valid(merged(DEFAULTS, given))
    del given[left_out]
    assert not valid(merged(DEFAULTS, given))


def objects(schema: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the objects whose keys are the chart's own."""
    for reference in [
        part["$ref"] for part in (schema, *schema.get("allOf", [])) if "$ref" in part
    ]:
        schema = schema | SCHEMA["definitions"][reference.rpartition("/")[2]]
    if "properties" in schema:
        yield where
        for name, inner in schema["properties"].items():
            yield from objects(inner, (*where, name))


@pytest.mark.parametrize("where", list(objects(SCHEMA)), ids=".".join)
def test_a_value_that_the_chart_does_not_know_is_refused(where: tuple[str, ...]) -> None:
    values = merged(DEFAULTS, yaml.safe_load((CHART / "ci" / "whole-values.yaml").read_text()))
    assert valid(values)
    at = values
    for name in where:
        at = at[name]
    at["misspelt"] = {}
    assert not valid(values)


def test_a_broker_has_an_address_with_a_port() -> None:
    given = yaml.safe_load((CHART / "ci" / "least-values.yaml").read_text())
    for wrong in ({"id": 1, "address": "kafka-1"}, {"address": "kafka-1:9094"}, {"id": 1}):
        given["kafka"]["brokers"] = [wrong]
        assert not valid(merged(DEFAULTS, given)), wrong


@pytest.mark.parametrize(
    ("part", "protocol", "needed"),
    [
        ("kafka", "SASL_SSL", ["kafkaPassword"]),
        ("kafka", "SASL_PLAINTEXT", ["kafkaPassword"]),
        ("gateway", "SSL", ["gatewayCertificate", "gatewayKey"]),
        ("gateway", "SASL_SSL", ["gatewayCertificate", "gatewayKey"]),
    ],
)
def test_what_a_protocol_needs_must_be_named(part: str, protocol: str, needed: list[str]) -> None:
    given = yaml.safe_load((CHART / "ci" / "least-values.yaml").read_text())
    given.setdefault(part, {})["securityProtocol"] = protocol
    given["secrets"] |= {name: {"name": "there", "key": "one"} for name in needed}
    assert valid(merged(DEFAULTS, given))
    for name in needed:
        less = copy.deepcopy(given)
        del less["secrets"][name]
        assert not valid(merged(DEFAULTS, less)), name


def test_nobody_stands_in_at_ports_that_are_not_those_of_the_node() -> None:
    given = yaml.safe_load((CHART / "ci" / "least-values.yaml").read_text())
    for kind, is_right in (("ClusterIP", True), ("LoadBalancer", True), ("NodePort", False)):
        given["gateway"] = {"standInBasePort": 9500, "service": {"type": kind}}
        assert valid(merged(DEFAULTS, given)) is is_right
    given["gateway"]["standInBasePort"] = 0
    assert valid(merged(DEFAULTS, given))


def test_values_name_secrets_and_hold_none() -> None:
    given = yaml.safe_load((CHART / "ci" / "least-values.yaml").read_text())
    given["secrets"]["gatewayPostgresDsn"] = (
        "postgresql://tideline_gateway_1:open@postgres/tideline"
    )
    assert not valid(merged(DEFAULTS, given))


def test_templates_set_settings_that_there_are() -> None:
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    named = {name.lower() for name in re.findall(r"TIDELINE_([A-Z0-9_]+)", text)}
    named |= set(re.findall(r"^ *([a-z0-9_]+) = ", text, re.MULTILINE))
    assert "gateway_advertised" in named
    unknown = named - SETTINGS - {f"{name}_file" for name in SETTINGS} - {"config", ""}
    assert unknown == set()


def test_alerts_and_dashboard_of_the_chart_are_those_of_the_project() -> None:
    assert (
        CHART / "files/tideline.rules.yml"
    ).resolve() == ROOT / "infra/alerts/tideline.rules.yml"
    assert (CHART / "files/tideline.json").resolve() == ROOT / "infra/dashboards/tideline.json"


def test_a_gateway_has_time_to_drain() -> None:
    assert DEFAULTS["gateway"]["terminationGracePeriodSeconds"] >= 10 + 5


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from COMPOSE["services"].items()


def test_compose_sets_settings_that_there_are() -> None:
    named = {
        name.removeprefix("TIDELINE_").lower()
        for _, service in services()
        for name in service.get("environment", {})
        if name.startswith("TIDELINE_")
    }
    assert "gateway_peers" in named
    assert named - SETTINGS == set()


def test_every_image_of_compose_can_be_another_one() -> None:
    for name, service in services():
        assert re.fullmatch(r"\$\{[A-Z0-9]+_IMAGE:-[\w./-]+:[\w.-]+\}", service["image"]), name


def test_nothing_in_compose_gets_more_rights_than_it_has() -> None:
    for name, service in services():
        assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize("name", [name for name, one in services() if "tideline-" in one["image"]])
def test_tidelines_own_containers_write_into_volumes_only_and_leave_no_core(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp"]
    assert service["ulimits"] == {"core": 0}


def test_compose_has_a_gateway_for_each_broker_under_the_address_that_the_others_tell() -> None:
    found = dict(services())
    brokers = {name.removeprefix("kafka-") for name in found if name.startswith("kafka-")}
    gateways = {n.removeprefix("gateway-"): s for n, s in found.items() if n.startswith("gateway-")}
    assert gateways.keys() == brokers
    for number, gateway in gateways.items():
        settings = gateway["environment"]
        peers = dict(pair.split("=") for pair in settings["TIDELINE_GATEWAY_PEERS"].split(","))
        assert peers[number] == settings["TIDELINE_GATEWAY_ADVERTISED"]
        assert settings["TIDELINE_GATEWAY_BROKER"].startswith(f"kafka-{number}:")


def test_compose_opens_ports_on_loopback_only() -> None:
    ports = [port for _, service in services() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
