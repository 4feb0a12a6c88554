"""Mutual TLS between the processes of a cluster: each process proves its name with a certificate.

A folder holds ``ca.pem`` and, per process, ``NAME.pem`` and ``NAME.key`` (``spe certs`` makes them).  A certificate
names its holder in a URI, ``spe://CLUSTER/NAME``; that name must be the one in the hello, on both ends.  TLS 1.3 only.

New files are used without a restart, by new connections; open connections continue, unless the peer's certificate is
revoked.  Bad files are refused, and the old certificate stays in use.
"""

from __future__ import annotations

import ssl
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import trio

from spe.errors import ConfigError, NoTls
from spe.runtime.env import Network, Trace
from spe.runtime.network import CONNECT_S, Handler
from spe.runtime.rate_limited_trace import RateLimitedTrace
from spe.runtime.revocation_list import RevokedCertificates
from spe.runtime.watched_files import LOOK_S, WatchedFiles
from spe.status import CertificateStatus
from spe.stream.times import SECOND, format_timestamp

#: A read returns one TLS record at most, so a larger buffer would be wasted.
_RECORD_BYTES: Final = 16 << 10
#: Longest time for a handshake.
HANDSHAKE_S: Final = 2.0
#: Name of processes that request states and inject faults.
CONTROL: Final = "control"
#: Name of the process that serves a whole run.
SUPERVISOR: Final = "supervisor"


def holder_of(name: str) -> str:
    """Returns the holder of the certificate that a process of this name shows."""
    return CONTROL if name == SUPERVISOR else name


def file_stem(name: str) -> str:
    """Returns a name such as ``source:a`` as a file name."""
    return quote(holder_of(name), safe="").replace("%3A", "-")


def identity(cluster: str, name: str) -> str:
    """Returns the URI in the certificate of a process."""
    return f"spe://{quote(cluster, safe='')}/{quote(holder_of(name), safe='')}"


class _Loaded(NamedTuple):
    """Contents of the files.

    Attributes:
      authorities: certificates of the CA, in DER.
      expires_us, ca_expires_us: expiry of our certificate, and the first expiry of the CA's, microseconds since 1970.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    authorities: frozenset[bytes]
    expires_us: int
    ca_expires_us: int


class Tls:
    """Certificates of a process: proves its name, and checks the names of its peers.

    Args:
      folder: folder of the cluster's certificates.
      cluster, name: names of the cluster and of this process.
      now: returns seconds of a clock that only advances.

    Attributes:
      refused: the reason why new files are not used; "" if there are no such files.
      revoked: certificates that are not accepted.

    Raises:
      ConfigError: a file is missing, unreadable, expired, revoked, of another holder, or not of this CA.
    """

    def __init__(self, folder: Path, cluster: str, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.cluster = cluster
        self.refused = ""
        self._ca = folder / "ca.pem"
        self._certificate, self._key = (folder / f"{file_stem(name)}{end}" for end in (".pem", ".key"))
        self._files = WatchedFiles((self._ca, self._certificate, self._key), now)
        self.revoked = RevokedCertificates(folder, now)
        self._loaded = self._load()

    @property
    def server(self) -> ssl.SSLContext:
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        return self._loaded.client

    def status(self) -> CertificateStatus:
        loaded = self._loaded
        refused = self.refused or self.revoked.refused
        return CertificateStatus(expires_us=loaded.expires_us, ca_expires_us=loaded.ca_expires_us, refused=refused)

    def renewed(self) -> bool | None:
        """Checks the files, every few seconds at most; uses new ones.

        Returns:
          True: new files are used.  None: there are no new files.  False: they are refused.
        """
        if not self._files.changed():
            return None
        try:
            loaded = self._load()
            if not loaded.authorities & self._loaded.authorities:
                what = "has no CA in common with the one in use; expected both for the time of the change"
                raise ConfigError([f"{self._ca} {what}"])
        except ConfigError as error:
            self.refused = "; ".join(error.problems)
            return False
        self._loaded, self.refused = loaded, ""
        return True

    def _load(self) -> _Loaded:
        for path, what in ((self._ca, "the CA's"), (self._certificate, "its"), (self._key, "its key's")):
            if not path.is_file():
                raise ConfigError([f"{path}: there is no such file; {self.name} needs {what} certificate (spe certs)"])
        if sys.platform != "win32" and (mode := stat.S_IMODE(self._key.stat().st_mode)) & 0o037:
            what = f"others can use it (mode {mode:o}); expected mode 600, or 640 where its group needs it"
            raise ConfigError([f"{self._key}: {what}"])
        server, client = self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)
        ends = [
            ssl.cert_time_to_seconds(str(certificate["notAfter"])) * SECOND for certificate in client.get_ca_certs()
        ]
        expires_us = self._check_ourselves(server, client)
        return _Loaded(server, client, frozenset(client.get_ca_certs(binary_form=True)), expires_us, min(ends))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # we compare process names instead: processes change hosts, not names
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self._ca)
            if not context.get_ca_certs():
                raise ssl.SSLError("no CA in it")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError([f"{self._ca}: expected the certificate of the CA: {_reason(error)}"]) from error
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                [f"{self._certificate} and {self._key.name}: expected a certificate and its key: {_reason(error)}"]
            ) from error
        return context

    def _check_ourselves(self, to_serve: ssl.SSLContext, to_connect: ssl.SSLContext) -> int:
        """Makes a handshake with ourselves, in memory, to find errors that peers would find.

        Returns:
          Expiry of our certificate, microseconds since 1970.
        """
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = to_serve.wrap_bio(to_server, to_client, server_side=True)
        client = to_connect.wrap_bio(to_client, to_server)
        try:
            for _ in range(4):
                for end in (client, server):
                    try:
                        end.do_handshake()
                    except ssl.SSLWantReadError:
                        continue
            certificate = client.getpeercert()
        except ssl.SSLError as error:
            raise ConfigError([f"{self._certificate}: {_reason(error)}"]) from error
        assert certificate is not None
        if (holder := self.name_in(certificate)) != holder_of(self.name):
            expected = identity(self.cluster, self.name)
            raise ConfigError([f"{self._certificate} is the certificate of {holder!r}; expected that of {expected}"])
        if (holder, _valid_from_us(certificate)) in self.revoked:
            raise ConfigError([f"{self._certificate} is revoked in {self.revoked.path}; expected a newer certificate"])
        return ssl.cert_time_to_seconds(str(certificate["notAfter"])) * SECOND

    def name_in(self, certificate: object) -> str:
        """Returns the holder's name in our cluster; "" if it has none."""
        names = certificate.get("subjectAltName", ()) if isinstance(certificate, dict) else ()
        prefix = identity(self.cluster, "")
        for kind, value in names:
            if kind == "URI" and value.startswith(prefix):
                return unquote(value.removeprefix(prefix))
        return ""


class TlsStream(trio.abc.Stream):
    """A stream whose peer has shown a certificate.

    Args:
      revoked: returns whether the certificate is revoked; then nothing more is sent or received.

    Attributes:
      certified: the name in the certificate.
    """

    def __init__(
        self,
        inner: trio.abc.Stream,
        outer: trio.SSLStream[trio.abc.Stream],
        certified: str,
        revoked: Callable[[], bool],
    ) -> None:
        self._inner = inner
        self._outer = outer
        self._revoked = revoked
        self.certified = certified

    @property
    def peer_name(self) -> str | None:
        """Peer name of the inner stream."""
        name: str | None = getattr(self._inner, "peer_name", None)
        return name

    @peer_name.setter
    def peer_name(self, name: str) -> None:
        if hasattr(self._inner, "peer_name"):
            self._inner.peer_name = name

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        await self._outer.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._outer.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._outer.receive_some(None if max_bytes is None else min(max_bytes, _RECORD_BYTES))
        self._check()
        return data

    def _check(self) -> None:
        """Raises BrokenResourceError if the certificate is revoked."""
        if self._revoked():
            raise trio.BrokenResourceError(f"the certificate of {self.certified!r} is revoked")

    async def aclose(self) -> None:
        await self._outer.aclose()


class TlsNetwork:
    """A network whose connections have certificates on both ends.

    Args:
      inner: network below TLS.
      trace: gets an event for each failed handshake.
    """

    def __init__(self, inner: Network, tls: Tls, trace: Trace) -> None:
        self._inner = inner
        self._tls = tls
        self._trace = trace
        self._limited = RateLimitedTrace(trace)

    @property
    def plain(self) -> Network:
        """The network below TLS."""
        return self._inner

    def certificate(self) -> CertificateStatus:
        """Returns the status of the certificate that new connections use."""
        self.look()
        return self._tls.status()

    def look(self) -> None:
        """Uses new files, if there are any."""
        if (listed := self._tls.revoked.renewed()) is not None:
            event = "revoked_certificates" if listed else "revoked_refused"
            self._trace.event(event, file=str(self._tls.revoked.path), why=self._tls.revoked.refused)
        if (renewed := self._tls.renewed()) is None:
            return
        until = format_timestamp(self._tls.status().expires_us)
        if renewed:
            self._trace.event("certificate_renewed", until=until)
        else:
            self._trace.event("certificate_refused", why=self._tls.refused, until=until)

    async def watch(self) -> None:
        """Checks for new files from time to time, even without connections, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    async def connect(self, address: str, seconds: float = CONNECT_S) -> TlsStream:
        """Connects as the inner network does.  Raises LinkBroken also if the peer's certificate is bad."""
        self.look()
        stream = await self._inner.connect(address, seconds)
        try:
            return await self._secure(stream, self._tls.client, server_side=False)
        except (trio.BrokenResourceError, trio.TooSlowError, OSError) as error:
            await trio.aclose_forcefully(stream)
            raise NoTls(f"{address}: no TLS: {_reason(error)}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def serve(
        self, address: str, handler: Handler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def accept(stream: trio.abc.Stream) -> None:
            self.look()
            try:
                secured = await self._secure(stream, self._tls.server, server_side=True)
            except (trio.BrokenResourceError, trio.TooSlowError, OSError) as error:
                self._limited.event("no_tls", why=_reason(error))
                return
            await handler(secured)

        await self._inner.serve(address, accept, task_status=task_status)

    async def _secure(self, stream: trio.abc.Stream, context: ssl.SSLContext, *, server_side: bool) -> TlsStream:
        outer = trio.SSLStream(stream, context, server_side=server_side, https_compatible=True)
        with trio.fail_after(HANDSHAKE_S):
            await outer.do_handshake()
        certificate = outer.getpeercert()
        if not (name := self._tls.name_in(certificate)):
            await trio.aclose_forcefully(stream)
            raise OSError(f"the certificate names nobody of cluster {self._tls.cluster!r}")
        valid_from_us = _valid_from_us(certificate)
        if (name, valid_from_us) in self._tls.revoked:
            await trio.aclose_forcefully(stream)
            raise OSError(f"the certificate of {name!r} is revoked")
        return TlsStream(stream, outer, name, lambda: (name, valid_from_us) in self._tls.revoked)


def _valid_from_us(certificate: Mapping[str, Any]) -> int:
    return ssl.cert_time_to_seconds(str(certificate["notBefore"])) * SECOND


def _reason(error: BaseException) -> str:
    """The library's error message, from within wrapping exceptions."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLCertVerificationError):
            return inner.verify_message
        if isinstance(inner, ssl.SSLError) and inner.reason:
            return inner.reason.lower().replace("_", " ")
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__
    return str(error) or type(error).__name__
