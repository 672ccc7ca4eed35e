"""Enrolment: who may play which role, and where the parties' keys are found.

A caller shows a token that names its role and gets a certificate for its own key. A token used
again with the same request gets the same certificate; with another request it is refused. The
registry keeps hashes of tokens only.
"""

from __future__ import annotations

import json
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.certificates import Authority, Identity
from tacit.multiparty.disk import Disk
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.store import Store


class Registry:
    """Signs certificates for one session.

    Args:
        agreement: The session.
        authority: What signs.
        folder: Where it remembers whom it enrolled.
        disk: How files are written.
    """

    def __init__(
        self, agreement: Agreement, authority: Authority, folder: Path, disk: Disk | None = None
    ) -> None:
        self.agreement, self.counts = agreement, Counts()
        self._authority = authority
        self.store = Store(folder, f"registry {agreement.digest.hex()}", disk)

    def invite(self, identity: Identity) -> str:
        """A token for a role; hand it over in secret."""
        token = secrets.token_urlsafe(24)
        self.admit(token, identity)
        return token

    def admit(self, token: str, identity: Identity) -> None:
        """Let a token that was made elsewhere stand for a role."""
        if identity.session != self.agreement.session:
            raise SessionError("a token is for a role of this session")
        self.store.put({f"token {_hash(token)}": identity.uri})

    def enrol(
        self, token: str, request: bytes, sealing_key: bytes | None, first: int, last: int
    ) -> bytes:
        """A certificate.

        Args:
            token: What the caller was given.
            request: PEM of its signing request.
            sealing_key: A party's X25519 public key; nobody else has one.
            first: First user it will act for, within what the token allows; or a party's number.
            last: The last one.

        Raises:
            RefusedError: Unknown token, a token used for another request, or a role it is not for.
        """
        try:
            return self._enrol(token, request, sealing_key, first, last)
        except RefusedError as refusal:
            self.counts.refused(refusal.cause)
            raise

    def _enrol(
        self, token: str, request: bytes, sealing_key: bytes | None, first: int, last: int
    ) -> bytes:
        known = self.store.get(f"token {_hash(token)}")
        if known is None:
            raise RefusedError("certificate", "an unknown token")
        allowed = Identity.parse(known)
        if not allowed.first <= first <= last <= allowed.last:
            raise RefusedError("role", "a token for other users or another party")
        if (allowed.role == "party") != (sealing_key is not None) or (
            sealing_key is not None and len(sealing_key) != 32
        ):
            raise RefusedError("role", "parties enrol with an X25519 key, and nobody else does")
        asked = sha256(request + (sealing_key or b"")).hexdigest()
        place = f"enrolled {allowed.role} {first}-{last}"
        before = self.store.get(place)
        if before is not None:
            if before["asked"] != asked:
                raise RefusedError("conflict", f"{allowed.role} {first} has enrolled with a key")
            return str(before["certificate"]).encode()
        identity = Identity(allowed.session, allowed.role, first, last)
        signed = self._authority.sign(request, identity, sealing_key=sealing_key)
        self.store.put({place: {"asked": asked, "certificate": signed.decode()}})
        self.counts.add(f"enrolled {allowed.role}")
        return signed

    def directory(self) -> dict[str, Any]:
        """The agreement and the certificates of the parties that have enrolled."""
        found = {
            str(Identity.parse(_uri(self.agreement, name)).first): entry["certificate"]
            for name, entry in self.store.facts("enrolled party ").items()
        }
        return {"agreement": json.loads(self.agreement.to_json()), "parties": found}

    def status(self) -> dict[str, Any]:
        """For the status page."""
        return self.counts.to_dict()

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()


def _uri(agreement: Agreement, name: str) -> str:
    _, role, numbers = name.split(" ")
    return f"tacit://{agreement.session}/{role}/{numbers}"


def _hash(token: str) -> str:
    return sha256(f"tacit token {token}".encode()).hexdigest()
