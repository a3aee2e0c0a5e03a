"""What brokers' own configs say of their tiered storage and of how clients come to them, and what
of it is supported through gateways (docs/install.md). Nothing here refuses: the objects of each
segment and each login are looked at themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline.domain.sasl import Mechanism

PLUGIN = "remote.log.storage.manager.class.name"
PLUGIN_PREFIX = "remote.log.storage.manager.impl.prefix"
OURS = "org.tideline.kafka.tiered.S3RemoteStorageManager"
AIVENS = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
NOT_PLAIN = ("compression.enabled", "encryption.enabled")
"""Aiven's: objects are then not the segment's bytes."""
LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
PROTOCOLS = "listener.security.protocol.map"
BETWEEN, CONTROLLERS = "inter.broker.listener.name", "controller.listener.names"
MECHANISMS, CLIENT_AUTH = "sasl.enabled.mechanisms", "ssl.client.auth"
SAME_BYTES = (
    "only segments whose objects have the broker's own bytes can migrate: preflight compares each "
    "topic's (remote_objects_recognised)"
)
Configs = Mapping[str, str | None]
"""``None``: the broker does not tell the value, as of every config of a plugin."""


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    configs: Configs
    port: int = -1
    """At which it was asked: of the listener that is there for Tideline."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What was found; ``remedy`` is empty where all of it is supported."""

    found: str
    remedy: str = ""


def plugin(configs: Configs) -> Offer:
    """The plugin of tiered storage, by its class."""
    name = configs.get(PLUGIN) or ""
    if name == OURS:
        return Offer(f"{name}: supported")
    if name != AIVENS:
        return Offer(f"{PLUGIN}={name or 'not told'}: not known here", SAME_BYTES)
    prefix = configs.get(PLUGIN_PREFIX) or "rsm.config."
    told = {key: configs[prefix + key] for key in NOT_PLAIN if prefix + key in configs}
    if doubtful := [key for key, value in told.items() if (value or "").lower() != "false"]:
        named = " and ".join(f"{prefix}{key}" for key in doubtful)
        return Offer(f"{name} with {named} set, of which brokers need not tell the value: "
                     "plain segments are supported, compressed and encrypted ones are not",
                     SAME_BYTES)  # fmt: skip
    return Offer(f"{name}, plain: supported")


def logins(broker: BrokerConfigs) -> list[Offer]:
    """What clients of the broker's listeners use, one offer for each thing that gateways do not
    have, or one that says that there is none."""
    configs = broker.configs
    pairs = (one.split(":", 1) for one in _listed(configs.get(PROTOCOLS)) if ":" in one)
    protocols = {name.strip().upper(): protocol.strip().upper() for name, protocol in pairs}
    clients = _listeners_of_clients(broker)
    told = []
    if len(clients) > 1:
        told.append(Offer(
            f"several listeners for clients: {', '.join(clients)}",
            "a gateway has one: choose what its clients use (docs/security.md)",
        ))  # fmt: skip
    sasl = [name for name in clients if protocols.get(name, name).startswith("SASL_")]
    offered = {m.upper() for name in sasl for m in _listed(_of(configs, name, MECHANISMS))}
    if unknown := sorted(offered - set(map(str, Mechanism))):
        told.append(Offer(
            f"{MECHANISMS} has {', '.join(unknown)}",
            f"gateways relay {', '.join(map(str, Mechanism))}: give who logs in otherwise one "
            "of them",
        ))  # fmt: skip
    tls = [name for name in clients if protocols.get(name, name).endswith("SSL")]
    for wanted in sorted({(_of(configs, name, CLIENT_AUTH) or "none").lower() for name in tls}):
        if wanted != "none":
            told.append(Offer(
                f"{CLIENT_AUTH}={wanted}",
                "a client's certificate ends at the gateway: give those who are known by one a "
                "login by SASL",
            ))  # fmt: skip
    return told or [Offer(f"listeners {', '.join(clients) or 'not told'}: supported")]


def _listeners_of_clients(broker: BrokerConfigs) -> list[str]:
    """Those that are neither for controllers, nor for brokers, nor for Tideline; one that is for
    clients, too, where no other is left."""
    configs = broker.configs
    controllers = {name.upper() for name in _listed(configs.get(CONTROLLERS))}
    places = {
        name: port for name, port in _places(configs.get(LISTENERS)) if name not in controllers
    }
    places |= {name: port for name, port in _places(configs.get(ADVERTISED)) if name in places}
    between = (configs.get(BETWEEN) or "").upper()
    names = [name for name in places if name != between] or list(places)
    return [name for name in names if places[name] != str(broker.port)] or names


def _places(value: str | None) -> list[tuple[str, str]]:
    """Name and port of each listener."""
    pairs = (one.split("://", 1) for one in _listed(value) if "://" in one)
    return [(name.upper(), at.rpartition(":")[2]) for name, at in pairs]


def _of(configs: Configs, listener: str, key: str) -> str | None:
    """The listener's own value, else everybody's (``KafkaConfig.valuesWithPrefixOverride``)."""
    return configs.get(f"listener.name.{listener.lower()}.{key}", configs.get(key))


def offers_of(brokers: Iterable[BrokerConfigs]) -> tuple[Offer, ...]:
    """What all of them have, each that differs once."""
    found = [offer for one in brokers for offer in (plugin(one.configs), *logins(one))]
    return tuple(dict.fromkeys(found))


def _listed(value: str | None) -> list[str]:
    return [one.strip() for one in (value or "").split(",") if one.strip()]
