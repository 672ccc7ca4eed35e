"""Calls between roles and from users: gRPC with mutual TLS, bytes in and bytes out.

A message is read by the event loop, not by a worker, so a slow client holds a socket and nothing
else, and only until its connection's time is up. Messages longer than the service's largest are
refused before they are read. Who calls comes from the certificate, never from the message.
Import this module late: it loads gRPC.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once, when the library is loaded

import grpc
import grpc.aio

from tacit.errors import SessionError, TacitError
from tacit.multiparty.certificates import Credentials, Identity, called
from tacit.multiparty.refusals import CAUSES, Counts, RefusedError

Handler = Callable[[Identity | None, bytes], bytes]
"""Answers a call: who calls (None where no certificate is asked for) and the message."""

SERVICE = "tacit.multiparty"
CONNECTION_SECONDS = 600
HANDSHAKE_MS = 5000
_WORKERS = 32


class UnreachableError(SessionError):
    """A role cannot be reached now; it may be later."""


class CallServer:
    """Answers calls until it is stopped.

    Args:
        address: ``host:port``; port 0 takes a free one, see :attr:`address`.
        credentials: This role's.
        handlers: What answers each method.
        most: Longest message in bytes.
        counts: Where refusals are counted that no handler sees.
        mutual: Whether callers must show a certificate. Only enrolment does without.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        handlers: Mapping[str, Handler],
        *,
        most: int,
        counts: Counts,
        mutual: bool = True,
    ) -> None:
        self.address = address
        self._credentials, self._handlers = credentials, dict(handlers)
        self._most, self._counts, self._mutual = most, counts, mutual
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="calls")
        self._ready, self._failed = Event(), list[BaseException]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = Thread(target=self._run, name="calls", daemon=True)
        self._thread.start()
        self._ready.wait(30)
        if self._failed:
            raise SessionError(
                f"no calls can be taken at {address}",
                why=str(self._failed[0]),
                remedy="is the port in use?",
            )

    def stop(self) -> None:
        """Stop answering; calls under way have a second to end."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._most),
                ("grpc.so_reuseport", 0),
                ("grpc.max_connection_age_ms", 1000 * CONNECTION_SECONDS),
                ("grpc.max_connection_age_grace_ms", 30_000),
            ],
            maximum_concurrent_rpcs=4096,
        )
        server.add_generic_rpc_handlers((_Router(self),))
        held = self._credentials
        secure = grpc.ssl_server_credentials(
            [(held.key, held.certificate)],
            held.authority if self._mutual else None,
            self._mutual,
        )
        port = server.add_secure_port(self.address, secure)
        await server.start()
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        self._ready.set()
        await self._stop.wait()
        await server.stop(1)

    async def answer(self, method: str, message: bytes, context: Any) -> bytes:
        """One call, off the event loop."""
        try:
            caller = self._caller(context)
            work = self._handlers[method]
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, work, caller, message)
        except RefusedError as refusal:
            detail = json.dumps({"cause": refusal.cause, "what": refusal.what})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        except TacitError as error:
            await context.abort(grpc.StatusCode.ABORTED, json.dumps({"what": str(error)}))
        raise AssertionError("abort returned")

    def _caller(self, context: Any) -> Identity | None:
        if not self._mutual:
            return None
        try:
            names = context.auth_context().get("x509_subject_alternative_name", [])
            return Identity.parse(names[0].decode())
        except (IndexError, UnicodeDecodeError, SessionError) as error:
            self._counts.refused("certificate")
            raise RefusedError("certificate", "a certificate that names no role") from error

    def knows(self, method: str) -> bool:
        """Whether there is a handler."""
        return method in self._handlers


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, server: CallServer) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        _, _, method = details.method.rpartition("/")
        if not self._server.knows(method):
            return None

        async def answer(message: bytes, context: Any) -> bytes:
            return await self._server.answer(method, message, context)

        return grpc.unary_unary_rpc_method_handler(answer)


class Calls:
    """Calls one other role.

    Args:
        address: Where it listens.
        credentials: The caller's own; with ``authority`` alone the caller stays anonymous.
        role: Whom the caller means to reach: another role at that address is not spoken to.
        authority: Whom to believe, where there are no credentials yet.
        seconds: How long a call may take.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials | None = None,
        role: str = "registry",
        *,
        authority: bytes | None = None,
        seconds: float = 60.0,
    ) -> None:
        self.address, self._seconds = address, seconds
        session = "" if credentials is None else credentials.identity.session
        if credentials is None:
            secure = grpc.ssl_channel_credentials(authority)
        else:
            secure = grpc.ssl_channel_credentials(
                credentials.authority, credentials.key, credentials.certificate
            )
        options = [
            ("grpc.max_receive_message_length", 1 << 28),
            ("grpc.max_send_message_length", 1 << 28),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # Despite its name this is how long a handshake may take: long on a busy machine.
            ("grpc.min_reconnect_backoff_ms", HANDSHAKE_MS),
            # Two identities in one process must not share a connection.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.ssl_target_name_override", called(role, session)),
        ]
        self._channel = grpc.secure_channel(address, secure, options=options)
        self._methods: dict[str, Any] = {}

    def __call__(self, method: str, message: bytes) -> bytes:
        """Call and wait for the answer.

        Raises:
            RefusedError: The role refused, for the cause it names.
            UnreachableError: It cannot be reached, or not in time.
            SessionError: Anything else it says.
        """
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            return bytes(self._methods[method](message, timeout=self._seconds))
        except grpc.RpcError as error:
            raise _translated(error, f"{method} at {self.address}") from error

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _translated(error: Any, what: str) -> SessionError:
    code, detail = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RefusedError("oversize", f"{what}: {detail}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnreachableError(
            f"{what} cannot be reached",
            why=detail,
            remedy="is it running, and does it trust this certificate?",
        )
    return refusal_from(detail) or SessionError(f"{what} failed", why=detail or code.name)


def refusal_from(detail: str) -> RefusedError | None:
    """A refusal that came back as text, if it is one."""
    try:
        said = json.loads(detail)
        if said["cause"] in CAUSES:
            return RefusedError(said["cause"], str(said["what"]))
    except (ValueError, KeyError, TypeError):
        pass
    return None
