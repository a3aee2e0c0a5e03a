"""An authority and certificates for a stack on loopback: made once, in PEM, for nothing else."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tideline.stack.home import write_private
from tideline.stack.ports import LOOPBACK

VALID = datetime.timedelta(days=3650)
BACKDATED = datetime.timedelta(hours=1)
"""Clocks of one machine agree; a test may look at it from elsewhere."""
_SERVER_AND_CLIENT = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of one owner."""

    certificate: Path
    key: Path
    """PKCS 8, not encrypted, readable by its owner only."""

    @property
    def both(self) -> Path:
        """Key and certificate in one file, as Kafka wants its PEM key stores."""
        return self.certificate.with_name(f"{self.certificate.stem}.keystore.pem")


@dataclass(frozen=True, slots=True)
class Authority:
    """What signs, in ``directory``; its certificate is what everybody trusts."""

    directory: Path

    @property
    def _own(self) -> Pair:
        return self._pair("ca")

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    @classmethod
    def load_or_create(cls, directory: Path, name: str = "the embedded stack") -> Self:
        """The directory's authority; made at the first call."""
        authority = cls(directory)
        if authority.certificate.exists():
            return authority
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(f"Tideline, {name}")
        certificate = (
            _dated(subject, subject, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority._write(authority._own, certificate, key)
        return authority

    def issue(self, name: str, host: str = "localhost", *, anew: bool = False) -> Pair:
        """A certificate for ``name``, good for loopback and ``host``, as server and client; the one
        that is there unless ``anew``."""
        pair = self._pair(name)
        if pair.certificate.exists() and not anew:
            return pair
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self._own.key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
        certificate = (
            _dated(_named(name), issuer.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_SERVER_AND_CLIENT), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(signer, hashes.SHA256())
        )
        self._write(pair, certificate, key)
        return pair

    def _pair(self, name: str) -> Pair:
        return Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key")

    def _write(
        self, pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        """The certificate last: what is there is whole."""
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        public = certificate.public_bytes(serialization.Encoding.PEM).decode()
        write_private(pair.key, secret)
        write_private(pair.both, secret + public)
        write_private(pair.certificate, public)
        pair.certificate.chmod(0o644)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
