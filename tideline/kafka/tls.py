"""TLS contexts out of PEM files, made anew when the files change.

A context is never changed: who has a connection keeps the one that it was opened with.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from tideline.domain.security import ClientAuth
from tideline.errors import UsageError

Stamp = tuple[tuple[int, int, int] | None, ...]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. The certificate is followed by its chain; the key is not encrypted."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def stamp(self) -> Stamp:
        """Changes when a file is replaced or written to (a symbolic link is followed)."""
        return tuple(_stamp(path) for path in (self.ca, self.certificate, self.key))

    def client_context(self) -> ssl.SSLContext:
        """For connections to a server whose certificate and name are verified. Raises
        :class:`UsageError`."""
        with naming_files(self):
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load_own(context)
        return context

    def server_context(self, client_auth: ClientAuth) -> ssl.SSLContext:
        """For a listener. Raises :class:`UsageError`."""
        with naming_files(self):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.options |= ssl.OP_NO_RENEGOTIATION
            self._load_own(context)
            if client_auth is not ClientAuth.NONE:
                assert self.ca is not None
                context.load_verify_locations(self.ca)
                required = client_auth is ClientAuth.REQUIRED
                context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        if self.certificate is not None:
            # Without the function OpenSSL would ask on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=_no_password)


class Reloaded:
    """The newest context that could be made of some files."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """Raises :class:`UsageError` if the first one cannot be made."""
        self.files, self._make = files, make
        self._stamp = files.stamp
        self.context = make()

    def look(self) -> UsageError | bool:
        """Whether there is a new context; an error, once for each change, if the files have changed
        and none can be made: the old one stays."""
        stamp = self.files.stamp
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.context = self._make()
        except UsageError as error:
            return error
        return True


_CLIENTS: dict[TlsFiles, Reloaded] = {}


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The process's context for connections with ``files``, as they are now. Raises
    :class:`UsageError` at first; files that became wrong are said in the log."""
    known = _CLIENTS.get(files)
    if known is None:
        known = _CLIENTS[files] = Reloaded(files, files.client_context)
    elif isinstance(changed := known.look(), UsageError):
        log.error("tls.files_refused: connections go on with what was read before", reason=changed)
    return known.context


class naming_files:
    """Whatever OpenSSL says becomes an error that says of which files."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (OSError, ValueError)):  # ssl.SSLError is an OSError
            return
        named = [self._files.certificate, self._files.key, self._files.ca]
        files = ", ".join(str(path) for path in named if path is not None)
        raise UsageError(
            f"TLS cannot be set up with {files}: {error}. They have to be PEM: a certificate with "
            "its chain, the key that belongs to it, not encrypted, and authorities"
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino
