"""A certificate authority for one cluster, and a certificate for each of its processes.  Needs the extra ``tls``."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spe.errors import SpeError
from spe.runtime.revocation_list import REVOKED
from spe.runtime.tls import file_stem, holder_of, identity

#: Clocks of machines differ: certificates are valid from this much earlier on.
_EARLIER: Final = datetime.timedelta(hours=1)
#: Times in certificates are whole seconds: a certificate made this much later is not affected by a revocation.
_AFTER_REVOKING: Final = datetime.timedelta(seconds=1)
#: Lifetime of the CA, as a multiple of that of the certificates that it signs.
_CA_FACTOR: Final = 10


class Issued(NamedTuple):
    """A certificate in the folder.

    Attributes:
      new: made by this call.
      renewed: made by this call in place of another.
    """

    name: str
    path: Path
    expires: datetime.datetime
    new: bool
    renewed: bool = False


def issue(
    folder: Path, cluster: str, names: Iterable[str], days: int, now: datetime.datetime, *, renew: bool = False
) -> list[Issued]:
    """Issues certificates for all of ``names`` that have none yet, and makes the CA if there is none.

    The CA is never replaced.  No certificate is valid for longer than the CA.

    Args:
      renew: replace existing certificates by new ones, with new keys.

    Raises:
      SpeError: the folder cannot be used, or its CA has expired or lacks its key.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = not (folder / "ca.pem").exists()
        ca, key = _authority(folder, cluster, days, now)
        if ca.not_valid_after_utc <= now:
            raise SpeError(f"{folder / 'ca.pem'} expired on {ca.not_valid_after_utc:%Y-%m-%d}; expected another CA")
        issued = [Issued("CA", folder / "ca.pem", ca.not_valid_after_utc, new)]
        for name in dict.fromkeys(holder_of(n) for n in names):
            path = folder / f"{file_stem(name)}.pem"
            if (there := path.exists()) and not renew:
                old = x509.load_pem_x509_certificate(path.read_bytes())
                issued.append(Issued(name, path, old.not_valid_after_utc, False))
                continue
            made = _sign(folder, cluster, name, ca, key, days, now)
            issued.append(Issued(name, path, made.not_valid_after_utc, True, there))
    except (OSError, ValueError, TypeError) as error:
        raise SpeError(f"{folder}: {error}") from error
    return issued


def revoke(folder: Path, names: Iterable[str], now: datetime.datetime) -> datetime.datetime:
    """Revokes all certificates that these holders have so far.

    Returns:
      the time from which new certificates may be made; later than ``now`` if an old one was made by a fast clock.

    Raises:
      SpeError: a holder has no certificate in the folder, or the list cannot be written.
    """
    path, after = folder / REVOKED, now
    try:
        text = path.read_text("utf-8") if path.exists() else "# holder, and since when its certificates must be valid\n"
        for name in names:
            if not (certificate := folder / f"{file_stem(name)}.pem").exists():
                raise SpeError(f"{certificate}: there is no such file; expected the name of a process, such as n1")
            begins = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_before_utc
            moment = max(now - _EARLIER, begins).replace(microsecond=0, tzinfo=None) + _AFTER_REVOKING
            text += f"{holder_of(name)} {moment.isoformat()}\n"
            after = max(after, moment.replace(tzinfo=datetime.UTC) + _EARLIER)
        _write(path, text.encode(), 0o644)
    except (OSError, ValueError) as error:
        raise SpeError(f"{path}: {error}") from error
    return after


def _authority(
    folder: Path, cluster: str, days: int, now: datetime.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if path.exists():
        if not key_path.exists():
            raise SpeError(f"{key_path}: there is no such file, so nothing can be signed with {path.name}")
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SpeError(f"{key_path}: expected an elliptic curve key")
        return x509.load_pem_x509_certificate(path.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{cluster} CA")])
    made = (
        _builder(name, name, key, now + datetime.timedelta(days=days * _CA_FACTOR), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(path, made.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(key_path, _private(key), 0o600)
    return made, key


def _sign(
    folder: Path,
    cluster: str,
    name: str,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime.datetime,
) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    made = (
        _builder(subject, ca.subject, key, min(now + datetime.timedelta(days=days), ca.not_valid_after_utc), now)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity(cluster, name))]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write(folder / f"{file_stem(name)}.key", _private(key), 0o600)
    _write(folder / f"{file_stem(name)}.pem", made.public_bytes(serialization.Encoding.PEM), 0o644)
    return made


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    until: datetime.datetime,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(until)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replaces a file as a whole: readers see the old content or the new one."""
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
