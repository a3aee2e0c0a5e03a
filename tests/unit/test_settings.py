"""Settings are typed, and their page is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from infra.settings_page import CLASSES, render
from tideline import settings as classes
from tideline.errors import UsageError
from tideline.settings import (
    AirflowSettings,
    GatewaySettings,
    KafkaSettings,
    ObjectStoreSettings,
    load,
)

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


def test_every_setting_is_on_the_page() -> None:
    """Also one of a class that processes read beside their own."""
    page, every = render(), list(BaseSettings.__subclasses__())
    for cls in every:
        every += cls.__subclasses__()
    names = {
        name for cls in every if cls.__module__ == classes.__name__ for name in cls.model_fields
    }
    assert len(names) > 100
    assert {name for name in names if f"`TIDELINE_{name.upper()}`" not in page} == set()


def test_a_claim_of_split_takes_as_many_files_as_the_setting_says() -> None:
    """What the setting takes, the function takes, too."""
    (most,) = re.findall(
        r"v_most integer := least\(p_max_files, (\d+)\);",
        Path("infra/postgres/functions/split.sql").read_text(),
    )
    field = classes.JobsSettings.model_fields["tiering_splitter_max_files_per_run"]
    assert [rule.le for rule in field.metadata if hasattr(rule, "le")] == [int(most)]


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


LOGIN = "someone:open-sesame@"
WITH_A_LOGIN = {
    "host:port": [f"{LOGIN}host:1", f"SASL_SSL://{LOGIN}host:1", f"1={LOGIN}host:1"],
    "URL": [
        f"https://{LOGIN}host:1/x",
        f"s3a://{LOGIN}host/x",
        "http://someone:open-sesame/x@host",
    ],
}
"""By what a setting's description calls its value."""


def places() -> list[tuple[type[BaseSettings], str, str]]:
    """Every setting that says where something is."""
    return sorted(
        {
            (kind, name, value)
            for kind in CLASSES
            for name, field in kind.model_fields.items()
            for called, values in WITH_A_LOGIN.items()
            if called in str(field.description)
            for value in values
        },
        key=lambda place: (place[0].__name__, *place[1:]),
    )


def test_there_are_settings_that_say_where_something_is() -> None:
    named = {name for _, name, _ in places()}
    assert named >= {
        "s3_endpoint", "temporal_ui", "temporal_address", "kafka_bootstrap", "gateway_peers",
        "verify_bootstrap", "airflow_alert_url", "airflow_spark_ui", "airflow_spark_archive",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "value"), places())
def test_a_place_with_a_password_in_it_is_refused_and_not_shown(
    kind: type[BaseSettings], name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Places are printed, by the doctor and in errors, and written into reports and links."""
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    monkeypatch.setenv(f"TIDELINE_{name.upper()}", value)
    with pytest.raises(UsageError, match=f"TIDELINE_{name.upper()}: .*password") as refused:
        load(kind)
    assert "open-sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:18333", "https://s3.example.com/one", "http://[::1]:9"]
)
def test_a_url_without_one_is_taken_as_it_is(url: str) -> None:
    assert ObjectStoreSettings(s3_endpoint=url).s3_endpoint == url


@pytest.mark.parametrize("wrong", ["s3.example.com", "127.0.0.1:9000", "ftp://host", "http://"])
def test_what_is_no_url_is_named_with_the_right_form(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    monkeypatch.setenv("TIDELINE_S3_ENDPOINT", wrong)
    with pytest.raises(UsageError, match=r"TIDELINE_S3_ENDPOINT: '.*' is no URL: write https://"):
        load(ObjectStoreSettings)


def test_a_container_of_a_store_may_be_named_before_its_account() -> None:
    archive = "abfss://container@account.dfs.core.windows.net/tideline.tar.gz"
    assert AirflowSettings(airflow_spark_archive=archive).airflow_spark_archive == archive
