"""Settings out of a TOML file with a context for each cluster, and secrets out of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tideline.cli.app import app
from tideline.errors import UsageError
from tideline.settings import (
    ControlPlaneSettings,
    JobsSettings,
    KafkaSettings,
    RebuildSettings,
    SchemaSettings,
    load,
)

TWO_CLUSTERS = """
context = "staging"
kafka_request_timeout_ms = 7000

[contexts.staging]
kafka_bootstrap = "staging:9092"

[contexts.production]
kafka_bootstrap = "production:9092"
kafka_request_timeout_ms = 9000
"""


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("KAFKA_BOOTSTRAP", "POSTGRES_DSN", "POSTGRES_DSN_FILE", "CONTEXT"):
        monkeypatch.delenv(f"TIDELINE_{name}", raising=False)
    path = tmp_path / "tideline.toml"
    path.write_text(TWO_CLUSTERS)
    monkeypatch.setenv("TIDELINE_CONFIG", str(path))
    return path


def test_a_context_goes_over_what_all_share(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = load(KafkaSettings)
    assert (staging.kafka_bootstrap, staging.kafka_request_timeout_ms) == (
        (("staging", 9092),),
        7_000,
    )
    monkeypatch.setenv("TIDELINE_CONTEXT", "production")
    production = load(KafkaSettings)
    assert (production.kafka_bootstrap, production.kafka_request_timeout_ms) == (
        (("production", 9092),),
        9_000,
    )


def test_the_environment_wins_over_a_context(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "other:1")
    assert load(KafkaSettings).kafka_bootstrap == (("other", 1),)


def test_a_context_is_chosen_on_the_command_line(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_CONTEXT", "staging")
    done = CliRunner().invoke(app, ["--context", "nowhere", "db", "check"])
    assert "has no context 'nowhere': it has production, staging" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('kafka_bootstrp = "a:1"', "kafka_bootstrp is no setting; kafka_bootstrap was meant"),
        (
            'context = "a"\n[contexts.a]\nweather = 1',
            r"\[contexts.a\] weather is no setting \(docs/settings.md",
        ),
        ("[contexts.a]\n[contexts.b]", "has the contexts a, b: choose one with TIDELINE_CONTEXT"),
        ('context = "b"\n[contexts.a]', "has no context 'b': it has a"),
        ("kafka_bootstrap = [1]", r"kafka_bootstrap is \[1\]: write a string"),
        ("= 1", "is no TOML"),
        ("contexts = 3", r"contexts is 3: write a table for each cluster"),
        ('context = ["a"]\n[contexts.a]', r"has no context \['a'\]"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        load(KafkaSettings)


def test_a_secret_is_read_from_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = file.with_name("dsn")
    secret.write_text("host=a password=b\n")
    file.write_text(f'postgres_dsn_file = "{secret}"')
    assert load(ControlPlaneSettings).postgres_dsn.get_secret_value() == "host=a password=b"
    other = file.with_name("other")
    other.write_text("host=c")
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN_FILE", str(other))
    assert load(ControlPlaneSettings).postgres_dsn.get_secret_value() == "host=c"
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=d")
    with pytest.raises(UsageError, match="POSTGRES_DSN and TIDELINE_POSTGRES_DSN_FILE are both"):
        load(ControlPlaneSettings)


@pytest.mark.parametrize(
    "name", ["postgres_dsn", "rebuild_postgres_dsn", "jobs_postgres_dsn", "s3_secret_key"]
)
def test_every_secret_may_lie_in_a_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file.with_name("secret").write_text("host=a")
    kind = RebuildSettings if name.startswith("rebuild") else JobsSettings
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=any")
    if name == "postgres_dsn":
        monkeypatch.delenv("TIDELINE_POSTGRES_DSN")
    monkeypatch.setenv(f"TIDELINE_{name.upper()}_FILE", str(file.with_name("secret")))
    assert getattr(load(kind), name).get_secret_value() == "host=a"


def test_a_secret_whose_file_is_not_there_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN_FILE", str(file.with_name("nowhere")))
    with pytest.raises(UsageError, match=r"POSTGRES_DSN_FILE names .*nowhere, which cannot"):
        load(ControlPlaneSettings)


def test_a_secret_of_another_process_is_not_read(file: Path) -> None:
    """One file for all: who runs a gateway may not read the owner's password."""
    file.write_text(
        f'kafka_bootstrap = "a:1"\nschema_postgres_dsn_file = "{file.with_name("nowhere")}"'
    )
    assert load(KafkaSettings).kafka_bootstrap == (("a", 1),)


def test_the_environment_wins_over_a_file_of_a_secret_that_cannot_be_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f'postgres_dsn_file = "{file.with_name("nowhere")}"')
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=a")
    assert load(ControlPlaneSettings).postgres_dsn.get_secret_value() == "host=a"


@pytest.mark.parametrize(
    ("shared", "of_context"),
    [
        ('postgres_dsn = "host=shared"', 'postgres_dsn_file = "{secret}"'),
        ('postgres_dsn_file = "nowhere"', 'postgres_dsn = "host=own"'),
    ],
)
def test_a_secret_of_a_context_goes_over_the_one_that_all_share_however_it_is_given(
    file: Path, shared: str, of_context: str
) -> None:
    secret = file.with_name("dsn")
    secret.write_text("host=own")
    own = of_context.format(secret=secret)
    file.write_text(f'context = "a"\n{shared}\n[contexts.a]\n{own}')
    assert load(ControlPlaneSettings).postgres_dsn.get_secret_value() == "host=own"


def test_a_file_without_a_secret_is_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq would go by its defaults, to a database of this machine."""
    empty = file.with_name("empty")
    empty.write_text("\n")
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN_FILE", str(empty))
    with pytest.raises(UsageError, match=r"POSTGRES_DSN_FILE names .*empty, which is empty"):
        load(ControlPlaneSettings)


@pytest.mark.parametrize("lines", [True, False], ids=["a file of lines", "no file"])
def test_a_context_that_nothing_can_choose_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, lines: bool
) -> None:
    """It would go to the cluster that is set, whatever it is."""
    monkeypatch.setenv("TIDELINE_CONTEXT", "production")
    if lines:
        other = file.with_name("client.env")
        other.write_text("TIDELINE_KAFKA_BOOTSTRAP=staging:9092\n")
        monkeypatch.setenv("TIDELINE_CONFIG", str(other))
    else:
        monkeypatch.delenv("TIDELINE_CONFIG")
        monkeypatch.setenv("TIDELINE_HOME", str(file.parent))
    with pytest.raises(UsageError, match=r"context 'production'.*no TOML file"):
        load(KafkaSettings)


def test_a_secret_of_a_file_of_lines_may_lie_in_a_file_of_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = file.with_name("dsn")
    secret.write_text("host=a\n")
    lines = file.with_name("client.env")
    lines.write_text(f"# of the worker\nTIDELINE_POSTGRES_DSN_FILE={secret}\n")
    monkeypatch.setenv("TIDELINE_CONFIG", str(lines))
    assert load(ControlPlaneSettings).postgres_dsn.get_secret_value() == "host=a"


@pytest.mark.parametrize("given", ["postgresql://u:p%ss@host/db", "host=a password=two words"])
def test_a_wrong_connection_string_is_refused_and_not_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """libpq shows what it does not understand, which may be a password."""
    for kind, name in (
        (ControlPlaneSettings, "POSTGRES_DSN"),
        (SchemaSettings, "SCHEMA_POSTGRES_DSN"),
        (RebuildSettings, "REBUILD_POSTGRES_DSN"),
    ):
        monkeypatch.setenv(f"TIDELINE_{name}", given)
        with pytest.raises(UsageError, match=f"TIDELINE_{name}: .*no libpq connection") as refused:
            load(kind)
        assert "p%ss" not in str(refused.value)
        assert "words" not in str(refused.value)
        monkeypatch.delenv(f"TIDELINE_{name}")
