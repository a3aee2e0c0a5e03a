"""TLS of the native pass path, by the OpenSSL that :mod:`ssl` has loaded
(docs/security.md).

The rules are those of an :class:`ssl.SSLContext`: what is set there is read from it, and set again.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
from collections.abc import Iterable
from pathlib import Path

from tideline.kafka.tls import TlsFiles

_NO_PARTIAL_WILDCARDS, _NEVER_CHECK_SUBJECT = 0x4, 0x20
"""``X509_CHECK_FLAG_…``: the first is set by every :class:`ssl.SSLContext`."""


class TlsRules(ctypes.Structure):
    """``Rules`` of ``wire/src/tls.rs``."""

    _fields_ = (
        ("is_server", ctypes.c_int),
        ("verify", ctypes.c_int),
        ("options", ctypes.c_uint64),
        ("verify_flags", ctypes.c_uint64),
        ("host_flags", ctypes.c_uint32),
        ("lowest", ctypes.c_int),
        ("highest", ctypes.c_int),
        ("ciphers", ctypes.c_char_p),
        ("suites", ctypes.c_char_p),
        ("certificate", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("authorities", ctypes.c_char_p),
        ("system_authorities", ctypes.c_int),
    )


def rules_of(context: ssl.SSLContext, files: TlsFiles) -> TlsRules:
    """What ``context``, which was made of ``files``, has set; and nobody may begin a handshake anew
    (renegotiation, of TLS 1.2)."""
    is_server = context.protocol is ssl.PROTOCOL_TLS_SERVER
    names = [str(cipher["name"]) for cipher in context.get_ciphers()]
    older = [name for name in names if not name.startswith("TLS_")]
    newer = [name for name in names if name.startswith("TLS_")]
    common_name = 0 if context.hostname_checks_common_name else _NEVER_CHECK_SUBJECT
    verifies = context.verify_mode is not ssl.CERT_NONE
    return TlsRules(
        is_server=is_server,
        verify=context.verify_mode,
        options=int(context.options | ssl.OP_NO_RENEGOTIATION),
        verify_flags=context.verify_flags,
        host_flags=_NO_PARTIAL_WILDCARDS | common_name,
        lowest=context.minimum_version,
        highest=context.maximum_version,
        ciphers=_colons([f"@SECLEVEL={context.security_level}", *older]),
        suites=_colons(newer),
        certificate=_path(files.certificate),
        key=_path(files.key or files.certificate),
        authorities=_path(files.ca) if verifies else None,
        system_authorities=not is_server,
    )


def _colons(names: Iterable[str]) -> bytes:
    return ":".join(names).encode()


def _path(path: Path | None) -> bytes | None:
    return None if path is None else str(path).encode()


def linked_to_openssl() -> bytes | None:
    """The path of Python's module that is linked to OpenSSL; ``None``: it is built into Python."""
    found = getattr(_ssl, "__file__", None)
    return None if found is None else str(found).encode()
