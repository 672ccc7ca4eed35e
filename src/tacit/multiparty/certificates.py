"""Who is who: a session's own authority, the certificates it signs, and what a peer's says.

Every certificate names one role of one session in a URI, ``tacit://SESSION/ROLE/FIRST-LAST``, where
the numbers are a party's or the range of users an agent acts for, and bears a host name made of the
same, which callers insist on (:func:`called`). A party's certificate also
carries the X25519 key that slots are sealed to, so that whoever trusts the authority needs no other
directory. Both ends of every connection show a certificate (TLS 1.3, P-256); the one exception is
enrolment itself, where the caller has a token instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import SessionError

ROLES = ("registry", "coordinator", "shuffler", "party", "server", "user")
SEALING_KEY = x509.ObjectIdentifier("1.3.6.1.4.1.59999.1.1")
"""Of the extension that holds a party's X25519 public key."""

_URI = re.compile(r"tacit://([0-9a-f]{32})/([a-z]+)/(\d{1,10})-(\d{1,10})")
_DAYS = 30


@dataclass(frozen=True)
class Identity:
    """What a certificate says of its holder.

    Attributes:
        session: Name of the session, 32 hexadecimal digits.
        role: One of :data:`ROLES`.
        first: The party's number, or the first user an agent acts for; 0 for other roles.
        last: The same number, or the last user.
    """

    session: str
    role: str
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        good = re.fullmatch("[0-9a-f]{32}", self.session) and self.role in ROLES
        if not good or not 0 <= self.first <= self.last < 2**32:
            raise SessionError(f"{self.uri} names no role of a session")

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"tacit://{self.session}/{self.role}/{self.first}-{self.last}"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """The identity a URI names.

        Raises:
            SessionError: It names none.
        """
        found = _URI.fullmatch(uri)
        if found is None:
            raise SessionError(
                f"a certificate names {uri!r}, not a role of a session",
                remedy="enrol at the session's registry",
            )
        return cls(found[1], found[2], int(found[3]), int(found[4]))

    def acts_for(self, user: int) -> bool:
        """Whether the holder may speak for a user."""
        return self.role == "user" and self.first <= user <= self.last


@dataclass(frozen=True)
class Credentials:
    """What one end of a connection needs: its key, its certificate, and whom it believes (PEM)."""

    key: bytes
    certificate: bytes
    authority: bytes

    def save(self, folder: Path) -> None:
        """Write the three files, the certificate last; its owner alone may read the key."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("key", "authority", "certificate"):
            path = folder / f"{name}.pem"
            part = path.with_name(f"{path.name}.part")
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(getattr(self, name))
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read them back.

        Raises:
            SessionError: A file is missing.
        """
        try:
            return cls(
                *(
                    (folder / f"{name}.pem").read_bytes()
                    for name in ("key", "certificate", "authority")
                )
            )
        except OSError as error:
            raise SessionError(
                f"{folder} holds no certificate", why=str(error), remedy="enrol first"
            ) from error

    @property
    def identity(self) -> Identity:
        """Whom they belong to."""
        return identity_of(self.certificate)


class Authority:
    """Signs certificates for one session. Whoever holds it can play any role.

    Args:
        key: PEM of its private key.
        certificate: PEM of its own certificate.
    """

    def __init__(self, key: bytes, certificate: bytes) -> None:
        loaded = serialization.load_pem_private_key(key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise SessionError("the authority's key is of another kind", remedy="make a new one")
        self._key, self.key_pem, self.certificate = loaded, key, certificate
        self._name = x509.load_pem_x509_certificate(certificate).subject

    @classmethod
    def create(cls) -> Authority:
        """A new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit session authority")])
        signed = (
            _dated(x509.CertificateBuilder(), _DAYS)
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(_key_pem(key), signed.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        request: bytes,
        identity: Identity,
        *,
        sealing_key: bytes | None = None,
        days: float = _DAYS,
    ) -> bytes:
        """A certificate for the key in a signing request; what else it asks for is ignored.

        Args:
            request: PEM of the request, signed by the key it holds.
            identity: What the certificate will say; the registry decides, not the request.
            sealing_key: A party's X25519 public key.
            days: How long it is valid; negative makes one that has expired, for tests.

        Raises:
            SessionError: The request is damaged or not signed by its key.
        """
        try:
            wanted = x509.load_pem_x509_csr(request)
            sound = wanted.is_signature_valid
        except ValueError as error:
            raise SessionError("a signing request cannot be read", why=str(error)) from error
        if not sound or not isinstance(wanted.public_key(), ec.EllipticCurvePublicKey):
            raise SessionError("a signing request is not signed by the key it holds")
        # The URI comes first: it is what a Flight server is told of its peer.
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        names.append(x509.DNSName(called(identity.role, identity.session, identity.first)))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.role)])
        usages = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        builder = (
            _dated(x509.CertificateBuilder(), days)
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(wanted.public_key())
            .serial_number(x509.random_serial_number())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(usages, critical=False)
        )
        if sealing_key is not None:
            extra = x509.UnrecognizedExtension(SEALING_KEY, sealing_key)
            builder = builder.add_extension(extra, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def enrol(self, identity: Identity) -> Credentials:
        """A key and its certificate in one step, where holder and authority are one process."""
        key, request = signing_request()
        return Credentials(key, self.sign(request, identity), self.certificate)


def called(role: str, session: str = "", number: int = 0) -> str:
    """The host name that a role's certificate bears and its callers insist on.

    Not the address: whoever takes over an address, another role of the session among them, cannot
    show this name. The registry is called before the session's name is known.
    """
    return "registry.tacit" if role == "registry" else f"{role}-{number}.{session}.tacit"


def signing_request() -> tuple[bytes, bytes]:
    """A new private key and a request for its certificate, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return _key_pem(key), request.public_bytes(serialization.Encoding.PEM)


def identity_of(certificate: bytes) -> Identity:
    """Whom a certificate (PEM) names. Says nothing of who signed it."""
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError) as error:
        raise SessionError("a certificate names no role", remedy="enrol first") from error
    return Identity.parse(uri)


def sealing_key_of(certificate: bytes, authority: bytes) -> bytes:
    """A party's X25519 key, from a certificate that was handed over by somebody else.

    Raises:
        SessionError: The authority did not sign it, it is out of date, or it holds no key.
    """
    loaded, root = (x509.load_pem_x509_certificate(pem) for pem in (certificate, authority))
    try:
        loaded.verify_directly_issued_by(root)
        held = loaded.extensions.get_extension_for_oid(SEALING_KEY).value
    except Exception as error:  # the library raises InvalidSignature, TypeError or ValueError
        raise SessionError(
            "a party's certificate was not signed by this session's authority, or holds no key",
            why=str(error),
            remedy="fetch the directory from the session's registry",
        ) from error
    if not loaded.not_valid_before_utc <= datetime.now(UTC) <= loaded.not_valid_after_utc:
        raise SessionError("a party's certificate is out of date", remedy="the party must enrol")
    if not isinstance(held, x509.UnrecognizedExtension) or len(held.value) != 32:
        raise SessionError("a party's certificate holds no X25519 key")
    return held.value


def _dated(builder: x509.CertificateBuilder, days: float) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ
    end = datetime.now(UTC) + timedelta(days=days)
    return builder.not_valid_before(min(start, end - timedelta(days=1))).not_valid_after(end)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
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


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
