"""Settings are typed, and their page is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings_page import render
from tideline.errors import UsageError
from tideline.settings import GatewaySettings, KafkaSettings, load

GATEWAY = {
    "TIDELINE_POSTGRES_DSN": "host=127.0.0.1",
    "TIDELINE_GATEWAY_ID": "1",
    "TIDELINE_GATEWAY_BROKER_ID": "1",
    "TIDELINE_GATEWAY_LISTEN": "127.0.0.1:19191",
    "TIDELINE_GATEWAY_ADVERTISED": "127.0.0.1:19191",
    "TIDELINE_GATEWAY_BROKER": "127.0.0.1:19091",
    "TIDELINE_GATEWAY_PEERS": "1=127.0.0.1:19191, 2=127.0.0.1:19192",
    "TIDELINE_GATEWAY_STATE_DIR": "state",
}


def test_the_settings_page_is_the_one_that_the_classes_make() -> None:
    assert Path("docs/settings.md").read_text() == render(), "run `make docs`"


def test_peers_are_read_by_node_id() -> None:
    settings = GatewaySettings.of(GATEWAY)
    assert settings.gateway_peers == {1: ("127.0.0.1", 19191), 2: ("127.0.0.1", 19192)}


@pytest.mark.parametrize("wrong", ["9092", "host:", ":9092", "host:70000", "host:port"])
def test_a_wrong_address_is_named_with_the_right_form(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", wrong)
    with pytest.raises(UsageError, match=r"TIDELINE_KAFKA_BOOTSTRAP.*write host:port"):
        load(KafkaSettings)


def test_a_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    monkeypatch.delenv("TIDELINE_KAFKA_BOOTSTRAP", raising=False)
    with pytest.raises(UsageError, match="TIDELINE_KAFKA_BOOTSTRAP: is not set"):
        load(KafkaSettings)


def test_the_environment_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "client.env").write_text("TIDELINE_KAFKA_BOOTSTRAP=file:1\n")
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    assert load(KafkaSettings).kafka_bootstrap == (("file", 1),)
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "environment:2")
    assert load(KafkaSettings).kafka_bootstrap == (("environment", 2),)
