"""A connection to PostgreSQL: blocking calls in threads that end on cancellation, and errors by kind."""

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

#: Defaults of connection strings; a vanished peer is noticed within half a minute.
_DEFAULTS: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "fallback_application_name": "tentative-spe",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
#: Settings of each session: a readable text format, and an end to the locks of a stopped process.
_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
#: Temporary classes of SQLSTATE: connection, transaction rollback, no resources, operator intervention, system error.
_PASSING: Final = ("08", "40", "53", "57", "58")
#: Temporary states: a standby, a transaction that was idle for too long, a lock, an object in use.
_PASSING_STATES: Final = ("25006", "25P03", "25P04", "55P03", "55006")
#: Messages of the server for which a retry will not help; libpq has no state then.
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
      name: name of the user of the connection, for messages.
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
        """Connects.

        Args:
          connection: connection string of libpq; the environment completes it.
          timeout_s: longest time of a statement, and of an idle transaction.
          replication: for commands such as CREATE_REPLICATION_SLOT.

        Raises:
          ServerAway: there is no connection now.
          SpeError: a retry will not help: wrong password, no such database.
        """
        session = cls(name, connection, timeout_s, replication=replication)
        await session._in_thread(session._open)
        return session

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` in a thread, and returns its result.  Cancellation cuts the connection.

        Raises:
          ServerAway: the connection is lost, or the server is unable now.
          SpeError: the server refuses permanently.
        """
        return await self._in_thread(lambda: work(self._there()))

    async def close(self) -> None:
        """Closes the connection; does not wait for a thread that still uses it."""
        self.abandon()
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()

    def abandon(self) -> None:
        """Cuts a connection in use; otherwise closes it."""
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
            options = conninfo_to_dict(self._string)
            more: dict[str, Any] = {k: v for k, v in _DEFAULTS.items() if k not in options}
            if self._replication:
                more["replication"] = "database"
            # No statement is prepared: a pool in front of the server need not know them.
            connection = psycopg.connect(make_conninfo(self._string, **more), autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise _not_connected(error, self._name) from None
        self._connection = connection
        if not self._replication:
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()  # no other object has it
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
        # Upstream forgets acknowledged data, so a crash of the server must not lose it.
        connection.execute(
            "select set_config('synchronous_commit', 'on', false) "
            "where current_setting('synchronous_commit') in ('off', 'local')"
        )


@contextmanager
def errors_told_apart(name: str) -> Iterator[None]:
    """Converts errors of psycopg to ServerAway, where a retry may help, or SpeError."""
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
    """Returns the first line of an error of the server or the library."""
    return (error.diag.message_primary or str(error) or type(error).__name__).splitlines()[0]


def _whole(error: psycopg.Error) -> str:
    parts = (first_line(error), error.diag.message_detail, error.diag.message_hint)
    return "; ".join(" ".join(part.split()) for part in parts if part)


def _not_connected(error: psycopg.Error, name: str) -> SpeError:
    reason = " ".join(str(error).split())
    for refusal, remedy in _REFUSALS:
        if refusal in reason:
            return SpeError(f"{name}: {reason}; {remedy}")
    if isinstance(error, psycopg.ProgrammingError):  # an invalid connection string
        return SpeError(f"{name}: connection: {reason}")
    return ServerAway(reason)
