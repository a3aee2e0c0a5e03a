"""What brokers' configs say of plugin, logins and listeners."""

from __future__ import annotations

import pytest

from tideline.domain.broker_offers import AIVENS, OURS, PLUGIN, BrokerConfigs, logins, plugin

INSIDE = {
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "INTERNAL:SSL,CONTROLLER:SSL,CLIENTS:SASL_SSL,MORE:SSL",
}
COMMON = "INTERNAL://:1,CONTROLLER://:2,CLIENTS://:3"


@pytest.mark.parametrize(
    ("configs", "said", "supported"),
    [
        ({PLUGIN: OURS}, "supported", True),
        ({PLUGIN: AIVENS}, "plain: supported", True),
        ({PLUGIN: AIVENS, "rsm.config.compression.enabled": "false"}, "plain", True),
        ({PLUGIN: AIVENS, "rsm.config.compression.enabled": "true"}, "compression", False),
        ({PLUGIN: AIVENS, "rsm.config.encryption.enabled": None}, "encryption", False),
        (
            {
                PLUGIN: AIVENS,
                "remote.log.storage.manager.impl.prefix": "a.",
                "a.compression.enabled": None,
            },
            "a.compression",
            False,
        ),
        ({PLUGIN: "com.example.Other"}, "com.example.Other", False),
        ({}, "not told", False),
    ],
)
def test_the_plugin_is_named_and_what_of_it_is_supported(
    configs: dict[str, str | None], said: str, supported: bool
) -> None:
    found = plugin(configs)
    assert said in found.found
    assert bool(found.remedy) is not supported


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER"}, ["supported"]),
        ({"sasl.enabled.mechanisms": "GSSAPI,PLAIN"}, ["GSSAPI"]),
        ({"sasl.enabled.mechanisms": "PLAIN", "ssl.client.auth": "required"}, ["ssl.client.auth"]),
        ({"sasl.enabled.mechanisms": "PLAIN", "listeners": f"{COMMON},MORE://:4"}, ["several"]),
        (
            {
                "sasl.enabled.mechanisms": "AWS_MSK_IAM",
                "listeners": f"{COMMON},MORE://:4",
                "ssl.client.auth": "requested",
            },
            ["CLIENTS, MORE", "AWS_MSK_IAM", "requested"],
        ),
        ({"listeners": "PLAINTEXT://:1", "sasl.enabled.mechanisms": "GSSAPI"}, ["supported"]),
        (
            {
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
                "inter.broker.listener.name": "PLAINTEXT",
            },
            ["supported"],
        ),
    ],
)
def test_logins_and_listeners_that_gateways_do_not_have_are_named(
    configs: dict[str, str | None], said: list[str]
) -> None:
    found = logins(BrokerConfigs({**INSIDE, "listeners": COMMON, **configs}))
    assert len(found) == len(said)
    for one, word in zip(found, said, strict=True):
        assert word in one.found
        assert bool(one.remedy) is ("supported" not in one.found)


@pytest.mark.parametrize("advertised", [None, "INTERNAL://b:1,CLIENTS://b:3,MORE://b:9094"])
def test_the_listener_of_install_md_for_gateways_is_none_for_clients(
    advertised: str | None,
) -> None:
    configs = {
        **INSIDE,
        "listeners": f"{COMMON},MORE://0.0.0.0:{9094 if advertised is None else 4}",
        "advertised.listeners": advertised,
        "sasl.enabled.mechanisms": "PLAIN",
    }
    assert [bool(one.remedy) for one in logins(BrokerConfigs(configs, 9094))] == [False]
    assert "several" in logins(BrokerConfigs(configs, 4711))[0].found


def test_of_a_clients_listener_its_own_configs_count() -> None:
    configs = {
        **INSIDE,
        "listeners": COMMON,
        "sasl.enabled.mechanisms": "GSSAPI",
        "ssl.client.auth": "required",
        "listener.name.clients.ssl.client.auth": "none",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
    }
    (found,) = logins(BrokerConfigs(configs))
    assert found.found == "listeners CLIENTS: supported"
