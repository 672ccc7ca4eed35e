"""Matrices between enrolled roles: Arrow Flight with mutual TLS.

A party answers two questions and takes one kind of delivery. What is received is checked before
it is believed, and who sends it comes from the certificate. Import this module late: it loads
pyarrow's Flight and with it a second copy of gRPC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from tacit.errors import SessionError, TacitError
from tacit.multiparty import batches
from tacit.multiparty.calls import HANDSHAKE_MS, UnreachableError, refusal_from
from tacit.multiparty.certificates import Credentials, Identity, called
from tacit.multiparty.party import MOST_ROWS, Party
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.sealing import ID_BYTES
from tacit.multiparty.slots import Bytes

_PIECE = 1 << 22  # bytes of one message of an answer
_HELD, _SHARE = "held", "share"


class PartyServer(flight.FlightServerBase):  # type: ignore[misc]
    """A party's endpoint for other roles.

    Args:
        party: The party.
        address: ``host:port``; port 0 takes a free one.
        credentials: The party's.
    """

    def __init__(self, party: Party, address: str, credentials: Credentials) -> None:
        self._party = party
        try:
            super().__init__(
                f"grpc+tls://{address}",
                tls_certificates=[(credentials.certificate, credentials.key)],
                verify_client=True,
                root_certificates=credentials.authority,
            )
        except pa.ArrowException as error:
            raise SessionError(
                f"nothing can be delivered at {address}",
                why=str(error),
                remedy="is the port in use?",
            ) from error

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A batch from the shuffler; the receipt is sent once it is on disk."""
        with _told(self._party):
            self._only(context, "shuffler")
            number, name, session = _command(descriptor.command, "round", "name", "session")
            self._check_round(number)
            names, rows = self._read(reader, number)
            receipt = self._party.deliver(bytes.fromhex(session), number, name, names, rows)
        writer.write(json.dumps(receipt).encode())

    def do_get(self, context: Any, ticket: Any) -> Any:
        """What this party holds in common with another, or a share for the server."""
        with _told(self._party):
            what, number, session = _command(ticket.ticket, "what", "round", "session")
            if bytes.fromhex(session) != self._party.agreement.digest:
                raise RefusedError("session", "a question about another session")
            self._check_round(number)
            if what == _HELD:
                raw = self._party.held(number, self._only(context, "party").first)
            elif what == _SHARE:
                self._only(context, "server")
                raw = self._party.share(number)
            else:
                raise RefusedError("garbage", "a question of no known kind")
        schema = pa.schema([("bytes", pa.binary())])
        pieces = [raw[start : start + _PIECE] for start in range(0, len(raw), _PIECE)]
        made = (pa.RecordBatch.from_arrays([pa.array([p], pa.binary())], ["bytes"]) for p in pieces)
        return flight.GeneratorStream(schema, made)

    def _only(self, context: Any, role: str) -> Identity:
        try:
            caller = Identity.parse(context.peer_identity().decode())
        except (SessionError, UnicodeDecodeError) as error:
            raise RefusedError("certificate", "a certificate that names no role") from error
        if caller.session != self._party.agreement.session or caller.role != role:
            raise RefusedError("certificate", f"a {caller.role} asks for what a {role} may")
        return caller

    def _check_round(self, number: int) -> None:
        if not 0 <= number <= len(self._party.agreement.plan.rounds):
            raise RefusedError("round", f"round {number} does not exist")

    def _read(self, reader: Any, number: int) -> tuple[Bytes, Bytes]:
        widths = {"name": ID_BYTES, "row": self._party.agreement.row_bytes(number)}
        if not reader.schema.equals(batches.schema_of(widths)):
            raise RefusedError("length", f"a batch with the columns {reader.schema.names}")
        found, rows = [], 0
        for chunk in reader:
            if chunk.data is None:
                continue
            rows += chunk.data.num_rows
            if rows > MOST_ROWS:
                raise RefusedError("oversize", f"a batch of more than {MOST_ROWS:,} rows")
            found.append(batches.columns_of(chunk.data, widths, MOST_ROWS))
        if len(found) == 1:
            return found[0]["name"], found[0]["row"]
        parts = found or [{n: np.zeros((0, w), np.uint8) for n, w in widths.items()}]
        return (
            np.concatenate([part["name"] for part in parts]),
            np.concatenate([part["row"] for part in parts]),
        )


class PartyClient:
    """Speaks to a party.

    Args:
        address: Where it listens.
        credentials: The caller's.
        session: Digest of the agreement.
        number: The party's: another role at that address is not spoken to.
        seconds: How long a delivery or answer may take.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        session: bytes,
        number: int,
        seconds: float = 120.0,
    ) -> None:
        self._address, self._session = address, session.hex()
        self._options = flight.FlightCallOptions(timeout=seconds)
        self._client = flight.FlightClient(
            f"grpc+tls://{address}",
            tls_root_certs=credentials.authority,
            cert_chain=credentials.certificate,
            private_key=credentials.key,
            override_hostname=called("party", credentials.identity.session, number),
            generic_options=[
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", HANDSHAKE_MS),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def deliver(self, number: int, name: str, names: Bytes, rows: Bytes) -> dict[str, int]:
        """Send a batch; the party's receipt, which says that it is on disk."""
        batch = batches.make({"name": names, "row": rows})
        what = {"round": number, "name": name, "session": self._session}

        def put() -> dict[str, int]:
            descriptor = flight.FlightDescriptor.for_command(json.dumps(what).encode())
            writer, reader = self._client.do_put(descriptor, batch.schema, self._options)
            try:
                writer.write_batch(batch)
                writer.done_writing()
                receipt = reader.read()
            finally:
                writer.close()
            if receipt is None:
                raise UnreachableError(f"{self._address} sent no receipt")
            return dict(json.loads(receipt.to_pybytes()))

        return self._asked(put)

    def held(self, number: int) -> bytes:
        """What the party holds in common with the caller, a party too."""
        return self._get(_HELD, number)

    def share(self, number: int) -> bytes:
        """The party's noisy share."""
        return self._get(_SHARE, number)

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _get(self, what: str, number: int) -> bytes:
        asked = {"what": what, "round": number, "session": self._session}

        def get() -> bytes:
            ticket = flight.Ticket(json.dumps(asked).encode())
            table = self._client.do_get(ticket, self._options).read_all()
            return b"".join(table.column("bytes").to_pylist()) if table.num_rows else b""

        return self._asked(get)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
            raise UnreachableError(
                f"{self._address} cannot be reached",
                why=str(error)[:300],
                remedy="is it running, and does it trust this certificate?",
            ) from error
        except pa.ArrowException as error:
            start = str(error).find('{"cause"')
            text = str(error)[start:] if start >= 0 else ""
            refusal = refusal_from(text[: text.find("}") + 1])
            raise refusal or SessionError(
                f"{self._address} failed", why=str(error)[:300]
            ) from error


@contextmanager
def _told(party: Party) -> Iterator[None]:
    """Turns what a party refuses into an answer that the other side can read."""
    try:
        yield
    except RefusedError as refusal:
        if refusal.cause in ("certificate", "garbage", "length", "oversize"):
            party.counts.refused(refusal.cause)
        detail = json.dumps({"cause": refusal.cause, "what": refusal.what.replace("}", ")")})
        raise flight.FlightServerError(detail) from refusal
    except TacitError as error:
        raise flight.FlightServerError(str(error)) from error


def _command(raw: bytes, *names: str) -> list[Any]:
    """The fields of a command.

    Raises:
        RefusedError: It is not one.
    """
    kinds = {"round": int}
    try:
        said = json.loads(raw)
        found = [said[name] for name in names]
        good = all(
            type(value) is kinds.get(name, str) for name, value in zip(names, found, strict=True)
        )
        bytes.fromhex(said["session"])
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError("garbage", "a command that cannot be read") from error
    if not good:
        raise RefusedError("garbage", "a command with fields of other types")
    return found
