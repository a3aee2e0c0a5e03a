"""The hosts of a rehearsal: shells that remember, and a systemctl that starts what units say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsed import Block
from tests.rehearsed_site import Site
from tests.support.waiting import until
from tests.systemctl import Systemd

UNIT = """\
[Service]
Environment=WHO=nobody
EnvironmentFile=/etc/tideline/some.env
ExecStart=/bin/sh -c "echo $$WHO $$WHERE $$(cat $$SECRET) > said; exec sleep 600"
"""
LOGIN = """\
[Service]
Environment=WHO=somebody
Environment=SECRET=%d/word
LoadCredential=word:/etc/tideline/secrets/word
"""


def sh(text: str) -> Block:
    return Block("sh", text)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, list[str]]]:
    """One host, and what became of its Kafka."""
    page = {
        "export": sh("export AT=kafka-1:9092\ncd /etc/tideline\n"),
        "look": sh("echo $AT $PWD\nprintf open\n"),
        "fail": sh("echo before\nfalse\necho after\n"),
        "start": sh("systemctl daemon-reload\nsystemctl enable --now some\n"),
        "stop": sh("systemctl disable --now some\n"),
        "kafka": sh("systemctl restart kafka\n"),
        "unknown": sh("systemctl mask some\n"),
        "env": sh("WHERE=kafka-1:9092\n"),
    }
    done: list[str] = []
    kafka = {
        "stop": lambda node: done.append(f"stop {node}"),
        "start": lambda node: done.append(f"start {node}"),
    }
    with tempfile.TemporaryDirectory() as short:
        systemd = Systemd(Path(short), kafka)
        made = Site(page, tmp_path, systemd)
        made.add(2, {"kafka-2:9092": "127.0.0.1:1"})
        yield made, done
        made.close()
        systemd.close()


def test_what_a_block_leaves_behind_the_next_one_finds(site: tuple[Site, list[str]]) -> None:
    here, _ = site
    assert here.run("export", 2) == ""
    assert here.run("look", 2) == f"127.0.0.1:1 {here.etc(2)}\nopen"
    assert here.used == {"export", "look"}


def test_the_first_command_that_fails_ends_it_with_what_was_said(
    site: tuple[Site, list[str]],
) -> None:
    with pytest.raises(AssertionError, match=r"fail failed:\nbefore\n$"):
        site[0].run("fail", 2)


def test_a_unit_runs_with_its_drop_ins_its_files_and_its_credentials(
    site: tuple[Site, list[str]],
) -> None:
    here, _ = site
    units = here.etc(2).parent / "systemd"
    (units / "some.service.d").mkdir()
    (units / "some.service").write_text(UNIT.replace("$$", "$"))
    (units / "some.service.d/login.conf").write_text(LOGIN)
    (here.etc(2) / "secrets/word").write_text("open")
    here.write("env", "some.env", 2)
    here.run("start", 2)
    said = here.etc(2).parent / "said"
    until("the unit to run", lambda: said.is_file() and said.read_text())
    assert said.read_text() == "somebody 127.0.0.1:1 open\n"
    here.run("stop", 2)
    assert here.running(2) == []


def test_kafka_of_a_host_is_the_stacks_and_what_is_not_stood_in_for_fails(
    site: tuple[Site, list[str]],
) -> None:
    here, done = site
    here.run("kafka", 2)
    assert done == ["stop 2", "start 2"]
    with pytest.raises(AssertionError, match="mask is not stood in for"):
        here.run("unknown", 2)
