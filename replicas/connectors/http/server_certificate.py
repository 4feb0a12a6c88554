"""The certificate of a server for clients outside of the cluster, renewed without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import trio

from spe.errors import SpeError
from spe.runtime.log_line import Level, say
from spe.runtime.watched_files import WatchedFiles


class ServerCertificate:
    """Loads new files for new connections; reports unusable ones, and continues with the old ones.

    Args:
      name: name for messages.

    Raises:
      SpeError: the files cannot be used.
    """

    def __init__(self, name: str, certificate: str, key: str) -> None:
        self._name = name
        self._certificate, self._key = Path(certificate), Path(key)
        self._files = WatchedFiles((self._certificate, self._key), trio.current_time, settle=False)
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        if self._files.changed():
            try:
                self._context = self._load()
            except SpeError as error:
                say(f"{error}; the old certificate stays in use", Level.WARNING, event="certificate_refused")
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise SpeError(f"{self._name}: {self._certificate} and its key cannot be used: {error}") from error
        return context
