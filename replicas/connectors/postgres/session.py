"""A connection to PostgreSQL: blocking calls in threads that end when they are cancelled, and errors told apart."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, TypeVar

import trio

from spe.errors import ConfigError, ServerAway, SpeError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(["PostgreSQL needs psycopg: pip install '.[postgres]'"]) from error

T = TypeVar("T")
Connection = psycopg.Connection[Any]

#: What a connection string need not say; a peer that vanished is noticed within half a minute.
_DEFAULTS: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "fallback_application_name": "tentative-spe",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
#: Of each session: texts that we can read, and an end to what a process that was stopped holds locked.
_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
#: Classes of SQLSTATE that pass: connection, transaction rollback, no resources, operator intervention, system error.
_PASSING: Final = ("08", "40", "53", "57", "58")
#: And states: a standby, a transaction that was idle for too long, a lock, an object in use.
_PASSING_STATES: Final = ("25006", "25P03", "25P04", "55P03", "55006")
#: What the server says where a connection will not come about by trying again; libpq gives no state then.
_REFUSALS: Final = (
    ("password authentication failed", "set PGPASSWORD, or a password file, for this user"),
    ("no password supplied", "set PGPASSWORD, or a password file"),
    ("no pg_hba.conf entry", "let this user and host in, in pg_hba.conf of the server"),
    ("authentication failed", "see pg_hba.conf of the server"),
    ("does not exist", "create it, or correct the connection"),
    ("permission denied", "grant it"),
    ("definition of service", "correct the service file (PGSERVICEFILE)"),
    ("invalid connection option", "correct the connection"),
    ("root certificate", "correct sslrootcert"),
    ("certificate verify failed", "correct sslrootcert, or the certificate of the server"),
)


class Session:
    """One connection, outside of a transaction between calls.

    Args:
      name: of what is connected, for messages.
    """

    def __init__(self, name: str, connection: str, timeout_s: float, *, replication: bool = False) -> None:
        self._name = name
        self._string = connection
        self._timeout_ms = str(round(timeout_s * 1000))
        self._replication = replication
        self._connection: Connection | None = None
        #: Held by the thread that uses the connection.
        self._in_use = Lock()
        self._abandoned = False

    @classmethod
    async def connect(
        cls, name: str, connection: str, *, timeout_s: float = 30.0, replication: bool = False
    ) -> Session:
        """
        Args:
          connection: as libpq takes it; the environment has the rest.
          timeout_s: longest time of a statement, and of a transaction in which nothing happens.
          replication: for commands such as CREATE_REPLICATION_SLOT.

        Raises:
          ServerAway: there is no connection now.
          SpeError: there will be none: wrong password, no such database.
        """
        session = cls(name, connection, timeout_s, replication=replication)
        await session._in_thread(session._open)
        return session

    async def run(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` returns, which runs in a thread.  When we are cancelled, the connection is cut.

        Raises:
          ServerAway: the connection is lost, or the server cannot do it now.
          SpeError: the server refuses it for good.
        """
        return await self._in_thread(lambda: work(self._there()))

    async def close(self) -> None:
        """Says goodbye; does not wait for a thread that is still there."""
        self.abandon()
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()

    def abandon(self) -> None:
        """Cuts a connection that is in use; else closes it."""
        self._abandoned = True
        if self._in_use.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._connection.close()
            finally:
                self._in_use.release()
        elif self._connection is not None:
            # The thread that waits for an answer gets an end of file, and closes.
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as cut:
                cut.shutdown(socket.SHUT_RDWR)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(self._work, work, abandon_on_cancel=True)
        except trio.Cancelled:
            self.abandon()
            raise

    def _work(self, work: Callable[[], T]) -> T:
        with self._in_use:
            try:
                with errors_told_apart(self._name):
                    return work()
            finally:
                if self._abandoned and self._connection is not None:
                    self._connection.close()

    def _there(self) -> Connection:
        if self._connection is None or self._connection.closed:
            raise ServerAway("the connection is lost")
        return self._connection

    def _open(self) -> None:
        try:
            given = conninfo_to_dict(self._string)
            more: dict[str, Any] = {k: v for k, v in _DEFAULTS.items() if k not in given}
            if self._replication:
                more["replication"] = "database"
            # No statement is prepared: a pool between us and the server need not know them.
            connection = psycopg.connect(make_conninfo(self._string, **more), autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise _not_connected(error, self._name) from None
        self._connection = connection
        if not self._replication:
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()  # nobody else has it
                raise

    def _set_up(self, connection: Connection) -> None:
        settings = {
            **_SETTINGS,
            "statement_timeout": self._timeout_ms,
            "idle_in_transaction_session_timeout": self._timeout_ms,
        }
        names, values = list(settings), list(settings.values())
        connection.execute(
            "select set_config(n, v, false) from unnest(%s::text[], %s::text[]) as s(n, v)", [names, values]
        )
        # What is acknowledged is forgotten upstream, so a crash of the server must not take it back.
        connection.execute(
            "select set_config('synchronous_commit', 'on', false) "
            "where current_setting('synchronous_commit') in ('off', 'local')"
        )


@contextmanager
def errors_told_apart(name: str) -> Iterator[None]:
    """Errors of psycopg become a ServerAway, where trying again may help, or an SpeError."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate
        if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise ServerAway(first_line(error)) from error
        if state is not None and (state.startswith(_PASSING) or state in _PASSING_STATES):
            raise ServerAway(first_line(error)) from error
        raise SpeError(f"{name}: {_whole(error)}") from error


def first_line(error: psycopg.Error) -> str:
    """What the server, or the library, said."""
    return (error.diag.message_primary or str(error) or type(error).__name__).splitlines()[0]


def _whole(error: psycopg.Error) -> str:
    parts = (first_line(error), error.diag.message_detail, error.diag.message_hint)
    return "; ".join(" ".join(part.split()) for part in parts if part)


def _not_connected(error: psycopg.Error, name: str) -> SpeError:
    said = " ".join(str(error).split())
    for refusal, remedy in _REFUSALS:
        if refusal in said:
            return SpeError(f"{name}: {said}; {remedy}")
    if isinstance(error, psycopg.ProgrammingError):  # the connection string is none
        return SpeError(f"{name}: connection: {said}")
    return ServerAway(said)
