"""The border between Python and the native library: both sides mean the same by it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S
from tideline import __version__
from tideline.errors import ExitCode
from tideline.kafka import wire
from tideline.kafka.wire import ABI, LIBRARY, LibraryMissing, library
from tideline.migration.doctor import Verdict, gateways_library

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "wire/src"
SEEN = (3, "67a997a43fea61f1")
"""The number of the border, and what it was made of."""


@pytest.fixture
def loaded_anew() -> Iterator[None]:
    library.cache_clear()
    yield
    library.cache_clear()


def border() -> str:
    """Of the library: its calls with their arguments, the structures that are handed over, the
    numbers of messages and why connections end; without comments and blanks."""
    calls = re.findall(r"extern \"C\" fn (wire_.*?) \{", _code("abi.rs"), re.DOTALL)
    parts = [
        *calls,
        _between(_code("told.rs"), r"pub mod kind \{(.*?)\n\}"),
        _between(_code("told.rs"), r"(fn head\(.*?\n    \})"),
        _between(_code("engine.rs"), r"pub enum Cause \{(.*?)\n\}"),
        _between(_code("engine.rs"), r"(fn of\(told.*?\n    \})"),
        _between(_code("tls.rs"), r"pub struct Rules \{(.*?)\n\}"),
        _between(_code("look.rs"), r"(pub fn columns.*?\n    \})"),
        _between(_code("look.rs"), r"rows\.get_mut\(found\)\? =(.*?);"),
    ]
    assert len(calls) > 25
    return hashlib.sha256(
        "|".join(re.sub(r"[\s,]", "", part) for part in parts).encode()
    ).hexdigest()


def _code(name: str) -> str:
    return re.sub(r"^\s*//.*\n", "", (SOURCES / name).read_text(), flags=re.MULTILINE)


def _between(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None, pattern
    return found[1]


def test_who_changes_the_border_counts_its_number_on() -> None:
    assert (ABI, border()[:16]) == SEEN, "count ABI on in both languages, and note it here"


def test_the_library_is_of_the_version_of_the_python_beside_it() -> None:
    crate = tomllib.loads((ROOT / "wire/Cargo.toml").read_text())["package"]["version"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert crate == project == __version__
    found = library()
    assert (found.wire_version(), found.wire_abi()) == (__version__.encode(), ABI)


@pytest.mark.usefixtures("loaded_anew")
@pytest.mark.parametrize(("name", "value"), [("ABI", ABI + 1), ("__version__", "0.0.9")])
def test_a_library_of_another_version_is_refused_with_both_versions(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, name, value)
    told = rf"{LIBRARY} is version {__version__} with border {ABI}: .*{value}.* is needed"
    with pytest.raises(LibraryMissing, match=told):
        library()


@pytest.mark.usefixtures("loaded_anew")
def test_a_library_without_a_version_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LIBRARY", "libc.so.6")
    with pytest.raises(LibraryMissing, match=r"libc.* is one without a version: .*`make setup`"):
        library()


GATEWAY = {
    "TIDELINE_POSTGRES_DSN": "host=/nowhere dbname=tideline",
    "TIDELINE_GATEWAY_ID": "1",
    "TIDELINE_GATEWAY_BROKER_ID": "1",
    "TIDELINE_GATEWAY_LISTEN": "127.0.0.1:19192",
    "TIDELINE_GATEWAY_ADVERTISED": "127.0.0.1:19192",
    "TIDELINE_GATEWAY_BROKER": "127.0.0.1:19092",
    "TIDELINE_GATEWAY_PEERS": "1=127.0.0.1:19192",
}


def test_a_gateway_does_not_start_without_the_library(
    tmp_path: Path,
) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tideline.kafka import wire\n"
        f"wire.LIBRARY = Path({str(tmp_path)!r}) / 'none.so'\n"
        "from tideline.gateway.__main__ import main\n"
        "sys.exit(main())"
    )
    state = tmp_path / "state"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**GATEWAY, "TIDELINE_GATEWAY_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    told = ran.stdout + ran.stderr
    assert ran.returncode == ExitCode.USAGE, told
    assert "gateways need the native library" in told
    assert "none.so" in told
    assert "make setup" in told
    assert not state.exists(), "refused before anything else begins"


@pytest.mark.usefixtures("loaded_anew")
def test_the_doctor_says_why_a_gateway_would_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gateways_library()
    assert found.verdict is Verdict.OK
    assert f"{__version__} (border {ABI}), TLS by OpenSSL" in found.found
    monkeypatch.setattr(wire, "linked_to_openssl", lambda: None)
    without_tls = gateways_library()
    assert without_tls.verdict is Verdict.WARNING
    assert "a gateway with TLS would not start" in without_tls.found
    monkeypatch.setattr(wire, "LIBRARY", tmp_path / "none.so")
    library.cache_clear()
    without = gateways_library()
    assert without.verdict is Verdict.WARNING
    assert "make setup" in without.remedy
