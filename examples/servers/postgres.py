"""A PostgreSQL server of one's own, on loopback, in a temporary folder; it can be killed, restarted and stopped."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

USER, PASSWORD, DATABASE = "spe", "only for trying", "shop"
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
max_connections = 40
shared_buffers = 16MB
min_wal_size = 32MB
max_wal_size = 128MB
max_replication_slots = 50
max_wal_senders = 12
logging_collector = off
"""


def programs() -> Path | None:
    """The folder with initdb and postgres; None: no server is installed."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return folders[-1].parent if folders else None


def missing() -> str:
    """Why no server can be started here; "" where one can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    if programs() is None:
        return "initdb is neither on PATH nor in /usr/lib/postgresql/*/bin"
    if os.geteuid() == 0 and _nobody() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return ""


def _nobody() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class PostgresServer:
    """Attributes:
    environment: what libpq needs to find it, with the password.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        bin_ = programs()
        assert bin_ is not None
        self._bin = bin_
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            who = _nobody()
            assert who is not None
            self._user = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
            os.chown(folder, who.pw_uid, who.pw_gid)
        self._data = folder / "data"
        self._log = folder / "log"
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [bin_ / "initdb", "-D", self._data, "-U", USER, "--pwfile", secret, "-A", "scram-sha-256"]
        subprocess.run(
            [*map(str, command), "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd=folder, **self._user,
        )  # fmt: skip
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        with open(self._data / "postgresql.conf", "a") as file:
            file.write(_SETTINGS + settings)
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGPASSWORD": PASSWORD,
            "PGDATABASE": DATABASE,
        }
        self.start()
        with self.connect(dbname="postgres") as connection:
            connection.execute(f"create database {DATABASE}")

    def start(self) -> None:
        """Does nothing where it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._spawn()
        self.wait()

    def _spawn(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-p", str(self.port)],
                stdout=log, stderr=log, cwd=self._data, start_new_session=True, **self._user,
            )  # fmt: skip

    def wait(self, seconds: float = 60.0) -> None:
        import psycopg

        until = time.monotonic() + seconds
        while True:
            try:
                with self.connect(dbname="postgres"):
                    return
            except psycopg.OperationalError:
                assert time.monotonic() < until, self._log.read_text()[-2000:]
                if self._process is not None and self._process.poll() is not None:
                    self._spawn()  # it ends where memory of a server that was killed is still in use
                time.sleep(0.05)

    def connect(self, **more: Any) -> Any:
        import psycopg

        given = {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD, "dbname": DATABASE}
        return psycopg.connect(**{**given, "connect_timeout": 5, **more}, autocommit=True)

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """As a power failure, but for the disk: the server and all that it runs."""
        if self._process is not None:
            for pid in [*_children(self._process.pid), self._process.pid]:
                _signal(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def down(self) -> Iterator[None]:
        """It is killed, and started again at the end of the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It does not answer, and keeps its connections."""
        assert self._process is not None
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def running_server(settings: str = "") -> Iterator[PostgresServer]:
    """A server in a folder of its own, until the end of the block.

    Raises:
      RuntimeError: none can be started here.
    """
    if why := missing():
        raise RuntimeError(f"no PostgreSQL server: {why}")
    folder = Path(mkdtemp(prefix="spe-postgres-"))
    folder.chmod(0o755)
    try:
        server = PostgresServer(folder, settings)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
