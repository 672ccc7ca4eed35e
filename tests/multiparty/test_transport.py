"""Real connections on the loopback: who may call, and what is refused before it is read."""

from __future__ import annotations

import socket
import ssl
import time

import numpy as np
import pytest
from local_session import SESSION, Local, agreement, lists

from tacit.errors import SessionError
from tacit.multiparty.bulk import PartyClient, PartyServer
from tacit.multiparty.calls import Calls, CallServer, UnreachableError
from tacit.multiparty.certificates import (
    Authority,
    Credentials,
    Identity,
    called,
    identity_of,
    sealing_key_of,
    signing_request,
)
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.registry import Registry


@pytest.fixture(scope="module")
def authority():
    return Authority.create()


def credentials(authority, role, number=0, days=1.0, session=SESSION) -> Credentials:
    key, request = signing_request()
    identity = Identity(session, role, number, number)
    return Credentials(key, authority.sign(request, identity, days=days), authority.certificate)


@pytest.fixture
def echo(authority):
    """A service that answers who called and how much was sent."""

    def answer(caller, message):
        if message == b"refuse":
            raise RefusedError("late", "an upload")
        if message == b"fail":
            raise SessionError("the disk is full")
        return f"{caller.uri} {len(message)}".encode()

    counts = Counts()
    held = credentials(authority, "shuffler")
    server = CallServer("127.0.0.1:0", held, {"echo": answer}, most=10_000, counts=counts)
    yield server
    server.stop()


def test_the_caller_is_known_by_its_certificate(authority, echo):
    with Calls(echo.address, credentials(authority, "user", 4), "shuffler") as calls:
        assert calls("echo", b"abc") == f"tacit://{SESSION}/user/4-4 3".encode()
        with pytest.raises(RefusedError, match="an upload") as refusal:
            calls("echo", b"refuse")
        assert refusal.value.cause == "late"
        with pytest.raises(SessionError, match="the disk is full"):
            calls("echo", b"fail")
        with pytest.raises(RefusedError) as refusal:
            calls("echo", bytes(20_000))
        assert refusal.value.cause == "oversize"
        with pytest.raises(SessionError, match="failed"):
            calls("nothing", b"")
        assert calls("echo", b"still there").endswith(b"11")


@pytest.mark.parametrize("who", ["nobody", "stranger", "expired"])
def test_unknown_missing_and_expired_certificates_do_not_get_in(authority, echo, who):
    held = {
        "nobody": lambda: None,
        "stranger": lambda: Credentials(
            *(lambda c: (c.key, c.certificate, authority.certificate))(
                credentials(Authority.create(), "user")
            )
        ),
        "expired": lambda: credentials(authority, "user", days=-0.5),
    }[who]()
    with (
        Calls(
            echo.address, held, "shuffler", authority=authority.certificate, seconds=1.0
        ) as calls,
        pytest.raises(UnreachableError),
    ):
        calls("echo", b"abc")


def test_a_caller_does_not_speak_to_a_stranger(echo):
    other = Authority.create()
    with (
        Calls(echo.address, credentials(other, "user"), "shuffler", seconds=1.0) as calls,
        pytest.raises(UnreachableError),
    ):
        calls("echo", b"abc")


def test_a_role_at_another_roles_address_is_not_spoken_to(authority, echo, tmp_path):
    with (
        Calls(echo.address, credentials(authority, "user"), "server", seconds=1.0) as calls,
        pytest.raises(UnreachableError),
    ):
        calls("echo", b"abc")
    session = Local(agreement(), tmp_path, lists(6, 3))
    server = PartyServer(session.get("party-1"), "127.0.0.1:0", credentials(authority, "party", 1))
    try:
        held = credentials(authority, "server")
        client = PartyClient(f"127.0.0.1:{server.port}", held, bytes(32), 2, seconds=1.0)
        with pytest.raises(UnreachableError):
            client.share(1)
    finally:
        server.shutdown()
        session.close()


def test_slow_and_senseless_clients_hold_up_nobody(authority, echo, tmp_path):
    host, _, port = echo.address.rpartition(":")
    held = credentials(authority, "user")
    held.save(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    context.set_alpn_protocols(["h2"])
    sockets = []
    for j in range(40):  # more than there are workers
        one = socket.create_connection((host, int(port)), timeout=5)
        sockets.append(one)
        if j % 2:
            one.send(b"\x16\x03\x01")  # a handshake that is never finished
        else:
            sockets[-1] = context.wrap_socket(one, server_hostname=called("shuffler", SESSION))
            sockets[-1].send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(5))
    garbage = socket.create_connection((host, int(port)), timeout=5)
    garbage.send(b"GET / HTTP/1.1\r\n\r\n" * 100)
    started = time.monotonic()
    with Calls(echo.address, held, "shuffler") as calls:
        assert calls("echo", b"abc").endswith(b" 3")
    assert time.monotonic() - started < 5
    for one in [*sockets, garbage]:
        one.close()


def test_a_party_takes_batches_from_the_shuffler_alone(authority, tmp_path):
    session = Local(agreement(), tmp_path, lists(6, 3))
    party, facts = session.get("party-1"), session.agreement
    server = PartyServer(party, "127.0.0.1:0", credentials(authority, "party", 1))
    address = f"127.0.0.1:{server.port}"

    def client(role, number=0, digest=facts.digest, name=SESSION):
        held = credentials(authority, role, number, session=name)
        return PartyClient(address, held, digest, 1, seconds=5.0)

    names, rows = np.zeros((2, 16), np.uint8), np.zeros((2, facts.row_bytes(0)), np.uint8)
    good = client("shuffler")
    try:
        receipt = good.deliver(0, "0-1-0", names, rows)
        assert receipt == {"kept": 0, "repeated": 0, "refused garbage": 2}
        assert good.deliver(0, "0-1-0", names, rows) == receipt
        cases = [
            (lambda: client("user").deliver(0, "x", names, rows), "certificate"),
            (lambda: client("party", 2).deliver(0, "x", names, rows), "certificate"),
            (lambda: client("shuffler", digest=bytes(32)).deliver(0, "x", names, rows), "session"),
            (lambda: good.deliver(0, "x", names, rows[:, 1:].copy()), "length"),
            (lambda: good.deliver(9, "x", names, rows), "round"),
            (lambda: good.deliver(1, "x", names, np.zeros((2, 24), np.uint8)), "round"),
            (lambda: good.deliver(0, "../x", names, rows), "round"),
            (lambda: good.held(0), "certificate"),
            (lambda: client("party", 0).held(0), "state"),
            (lambda: client("party", 0).share(1), "certificate"),
            (lambda: client("server").share(1), "state"),
        ]
        for ask, cause in cases:
            with pytest.raises(RefusedError) as refusal:
                ask()
            assert refusal.value.cause == cause, refusal.value
        with pytest.raises(UnreachableError):  # a session of another name, of the same authority
            client("shuffler", name="00" * 16).deliver(0, "x", names, rows)
        assert party.counts.to_dict()["refused garbage"] == 2
        with pytest.raises(RefusedError) as refusal:
            good.deliver(0, "0-1-0", names + 1, rows)
        assert refusal.value.cause == "conflict"
        assert "other contents" in party.aborted
    finally:
        server.shutdown()
        session.close()


def test_a_party_is_not_reached_without_a_certificate_of_the_session(authority, tmp_path):
    session = Local(agreement(), tmp_path, lists(6, 3))
    held = credentials(authority, "party", 1)
    server = PartyServer(session.get("party-1"), "127.0.0.1:0", held)
    stranger = credentials(Authority.create(), "server")
    try:
        client = PartyClient(f"127.0.0.1:{server.port}", stranger, bytes(32), 1, seconds=1.0)
        with pytest.raises(UnreachableError):
            client.share(1)
    finally:
        server.shutdown()
        session.close()


def test_enrolment_gives_what_the_token_says_and_once(authority, tmp_path):
    registry = Registry(agreement(), authority, tmp_path / "r")
    token = registry.invite(Identity(SESSION, "user", 3, 5))
    _, request = signing_request()
    signed = registry.enrol(token, request, None, 3, 3)
    assert identity_of(signed) == Identity(SESSION, "user", 3, 3)
    assert registry.enrol(token, request, None, 3, 3) == signed
    party = registry.invite(Identity(SESSION, "party", 1, 1))
    certificate = registry.enrol(party, request, b"k" * 32, 1, 1)
    assert sealing_key_of(certificate, authority.certificate) == b"k" * 32
    assert set(registry.directory()["parties"]) == {"1"}
    cases = [
        (("unknown", request, None, 3, 3), "certificate"),
        ((token, request, None, 2, 3), "role"),
        ((token, request, None, 3, 6), "role"),
        ((token, request, b"k" * 32, 4, 4), "role"),
        ((party, request, None, 1, 1), "role"),
        ((token, signing_request()[1], None, 3, 3), "conflict"),
    ]
    for asked, cause in cases:
        with pytest.raises(RefusedError) as refusal:
            registry.enrol(*asked)
        assert refusal.value.cause == cause
    with pytest.raises(SessionError, match="signing request"):
        registry.enrol(token, b"nonsense", None, 4, 4)
    with pytest.raises(SessionError, match="not signed by this session"):
        sealing_key_of(certificate, Authority.create().certificate)
    registry.close()
