"""The systemd units start commands that there are, with settings that there are."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tideline import settings
from tideline.cli.app import app
from tideline.errors import ExitCode
from tideline.gateway import __main__ as gateway

UNITS = sorted(Path("infra/systemd").glob("*.service"))
LOGINS = sorted(Path("infra/systemd").glob("*.service.d/kafka-login.conf"))
HARDENED = dict.fromkeys(
    ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "ProtectKernelTunables",
     "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "RestrictNamespaces",
     "RestrictSUIDSGID", "LockPersonality"),
    "yes",
) | {
    "LimitCORE": "0",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
    "SystemCallErrorNumber": "EPERM",
    "UMask": "0077",
}  # fmt: skip
KINDS = {"gateway": settings.GatewaySettings, "worker": settings.WorkerSettings}


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


def role_of(unit: Path) -> str:
    """Also of a drop-in."""
    service = unit if unit.suffix == ".service" else unit.parent
    return service.name.partition(".")[0].removeprefix("tideline-")


def test_there_is_one_for_each_process_and_how_it_logs_in() -> None:
    assert [role_of(unit) for unit in UNITS] == list(KINDS)
    assert [role_of(login) for login in LOGINS] == list(KINDS)


@pytest.mark.parametrize("login", LOGINS, ids=str)
def test_it_logs_in_as_whom_the_rights_are_given_to(login: Path) -> None:
    given = dict(value.split("=", 1) for value in values(login, "Environment"))
    rights = Path(f"infra/kafka/acls/{role_of(login)}.sh").read_text()
    assert f":=User:{given['TIDELINE_KAFKA_SASL_USERNAME']}}}" in rights
    (credential,) = values(login, "LoadCredential")
    name, _, source = credential.partition(":")
    assert given["TIDELINE_KAFKA_SASL_PASSWORD_FILE"] == f"%d/{name}"
    assert source == f"/etc/tideline/secrets/{role_of(login)}-kafka-password"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_starts_a_command_that_there_is(unit: Path) -> None:
    (line,) = values(unit, "ExecStart")
    program, *words = line.split()
    assert Path(program).name == "tideline"
    part, step = words
    group = typer.main.get_command(app).commands[part]  # type: ignore[attr-defined]
    assert step in group.command.commands


@pytest.mark.parametrize("unit", [*UNITS, *LOGINS], ids=str)
def test_it_names_settings_of_its_process(unit: Path) -> None:
    kind = KINDS[role_of(unit)]
    for given in values(unit, "Environment"):
        name = given.partition("=")[0].removeprefix("TIDELINE_").removesuffix("_FILE").lower()
        assert name == "config" or name in kind.model_fields, given


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_may_do_no_more_than_it_has_to_and_leaves_no_core(unit: Path) -> None:
    """A core of such a process has the secrets of its role, and passwords that pass it."""
    assert {key: values(unit, key) for key in HARDENED} == {k: [v] for k, v in HARDENED.items()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_what_a_restart_cannot_mend_is_not_restarted(unit: Path) -> None:
    (codes,) = values(unit, "RestartPreventExitStatus")
    assert [int(code) for code in codes.split()] == [ExitCode.USAGE, ExitCode.REFUSED]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EADDRINUSE, errno.EMFILE])
def test_a_gateway_that_ends_for_what_may_pass_is_restarted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: int
) -> None:
    """While it is away nobody reaches its broker."""

    async def ends(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    given = {
        "GATEWAY_ID": "1",
        "GATEWAY_BROKER_ID": "1",
        "GATEWAY_STATE_DIR": str(tmp_path),
        "GATEWAY_PEERS": "1=127.0.0.1:9",
        "POSTGRES_DSN": "host=127.0.0.1",
        "METRICS_ADDRESS": "",
    }
    given |= dict.fromkeys(
        ("GATEWAY_BROKER", "GATEWAY_LISTEN", "GATEWAY_ADVERTISED"), "127.0.0.1:9"
    )
    for name, value in given.items():
        monkeypatch.setenv(f"TIDELINE_{name}", value)
    monkeypatch.setattr(gateway, "serve", ends)
    monkeypatch.setattr(gateway, "configure_logging", lambda process: None)
    monkeypatch.setattr(gateway, "keep_what_is_loaded", lambda: None)  # that of all tests
    (unit,) = [one for one in UNITS if "gateway" in one.stem]
    (stays_down,) = values(unit, "RestartPreventExitStatus")
    code = gateway.main()
    assert code != ExitCode.OK
    assert str(code) not in stays_down.split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_has_nothing_to_object(unit: Path, tmp_path: Path) -> None:
    """With a program and a user that this machine has."""
    text = unit.read_text().replace("/opt/tideline/bin/tideline", sys.executable)
    here = tmp_path / unit.name
    here.write_text(text.replace("User=tideline", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])
