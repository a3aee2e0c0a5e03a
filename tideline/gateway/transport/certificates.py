"""The certificate that a gateway shows to its clients, and its being replaced while it runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

import structlog

from tideline.errors import UsageError
from tideline.gateway.metrics import CERTIFICATE_RELOADS
from tideline.kafka.tls import Reloaded, TlsFiles
from tideline.settings import GatewaySettings

LOOK_S = 2.0
"""How often the files are looked at."""

log = structlog.get_logger()


class ListenerCertificate:
    """Reads the files of ``TIDELINE_GATEWAY_SSL_…``, and again when they change."""

    def __init__(self, reloaded: Reloaded, use: Callable[[ssl.SSLContext], None]) -> None:
        """``use`` is given each new context, for the connections from then on."""
        self._reloaded, self._use = reloaded, use

    async def watch(self) -> None:
        """Look, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Take what has changed. A pair that cannot be used is refused: what was read before goes
        on, and the log and a metric say so. Connections that are open stay."""
        changed = self._reloaded.look()
        if isinstance(changed, UsageError):
            CERTIFICATE_RELOADS.labels("refused").inc()
            log.error("certificate refused, the old one stays in use", reason=str(changed))
        elif changed:
            self._use(self._reloaded.context)
            CERTIFICATE_RELOADS.labels("taken").inc()
            log.info("certificate replaced; connections from now on are shown it")


def listener_tls(settings: GatewaySettings) -> Reloaded | None:
    """What the listener's connections are encrypted by; ``None``: nothing. Raises
    :class:`UsageError`."""
    if not settings.gateway_security_protocol.is_tls:
        return None
    files = TlsFiles(
        settings.gateway_ssl_ca_file,
        settings.gateway_ssl_certificate_file,
        settings.gateway_ssl_key_file,
    )
    return Reloaded(files, partial(files.server_context, settings.gateway_ssl_client_auth))
