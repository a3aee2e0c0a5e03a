"""What the connections to Temporal and S3 are protected by, where the settings say so."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tideline.domain.security import ClientAuth
from tideline.errors import UsageError
from tideline.kafka.tls import TlsFiles
from tideline.object_store.client import CallBounds, ObjectStoreClient, ObjectStoreUnavailable
from tideline.settings import ObjectStoreSettings, TemporalSettings
from tideline.stack.certificates import Authority
from tideline.temporal import connect_options


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))


def test_temporal_takes_tls_and_key_from_the_sdks_own_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "key")
    ours = TemporalSettings(temporal_address="cloud:7233", temporal_namespace="ours")
    options = connect_options(ours)
    assert options["target_host"] == "cloud:7233"
    assert options["namespace"] == "ours"
    assert options["api_key"] == "key"
    assert options["tls"] is True


def test_temporals_own_address_and_namespace_hold_where_ours_are_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "theirs:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "theirs")
    options = connect_options(TemporalSettings())
    assert (options["target_host"], options["namespace"]) == ("theirs:7233", "theirs")


def test_a_key_for_another_temporal_is_not_shown_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cloud:7233")
    monkeypatch.setenv("TEMPORAL_API_KEY", "key")
    options = connect_options(TemporalSettings(temporal_address="127.0.0.1:17233"))
    assert options == {"target_host": "127.0.0.1:17233", "namespace": "default"}


def test_a_configuration_of_temporal_that_cannot_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "none.toml").write_text("[profile")
    with pytest.raises(UsageError, match="TEMPORAL_"):
        connect_options(TemporalSettings())


class _NoBucket(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def https(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server that answers 200 to HEAD, and the authority that signed its certificate."""
    authority = Authority.load_or_create(tmp_path / "ca")
    pair = authority.issue("s3")
    context = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoBucket)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", authority.certificate
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_s3_is_verified_by_the_authorities_that_the_settings_name(
    https: tuple[str, Path],
) -> None:
    url, ca = https

    def client(**given: object) -> ObjectStoreClient:
        settings = ObjectStoreSettings.model_validate(
            {"s3_endpoint": url, "s3_access_key": "a", "s3_secret_key": "b", **given}
        )
        return ObjectStoreClient(settings, bounds=CallBounds(read_timeout_s=60, attempts=1))

    client(s3_ca_file=ca).check("bucket")
    with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
        client().check("bucket")


def test_no_version_of_tls_before_1_2_is_spoken(tmp_path: Path) -> None:
    pair = Authority.load_or_create(tmp_path).issue("one")
    files = TlsFiles(tmp_path / "ca.pem", pair.certificate, pair.key)
    for context in (files.client_context(), files.server_context(ClientAuth.REQUIRED)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED
    assert files.client_context().check_hostname
