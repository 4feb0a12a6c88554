"""Fetches Avro schemas from a schema registry, by id; a schema never changes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import Any, Final

import trio

from replicas.connectors.http.client import HttpClient
from replicas.connectors.secret import secret
from replicas.connectors.server_sink import GONE
from spe.connectors.server import Url
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env

#: Longest time for an answer, and its largest size.
ANSWER_S: Final = 15.0
_BODY_BYTES: Final = 4 << 20
#: A missing id is asked for again after so long.
_AGAIN_US: Final = 30_000_000
#: Error code of the registry for an unknown id, besides status 404.
_NO_SCHEMA: Final = 40403
#: Largest number of schemas of one source's messages.
SCHEMAS_MAX: Final = 10_000


class SchemaRegistry:
    """A client of a schema registry.

    Args:
      options: options of ``spe.connectors.avro.RegistryKeys``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._url = Url.parse(str(options["url"]).rstrip("/"))
        self.name = f"schema registry {self._url}"
        self._options = options
        self._answered = False
        #: Schemas by id; and reasons why there is none, with their times.
        self._schemas: dict[int, Any] = {}
        self._refused: dict[int, tuple[str, int]] = {}

    def missing(self, id_: int, now_us: int) -> bool:
        """Returns whether a schema was never asked for, or last refused long enough ago.

        Args:
          now_us: time of ``Clock.monotonic_us``.
        """
        if id_ in self._schemas:
            return False
        refused = self._refused.get(id_)
        return refused is None or now_us - refused[1] >= _AGAIN_US

    def schema(self, id_: int) -> Any:
        """Returns the schema of a fetched id.  Raises SpeError: the registry does not have it, or not as Avro."""
        if id_ not in self._schemas:
            raise SpeError(self._refused[id_][0] if id_ in self._refused else f"{self.name} has no schema {id_}")
        return self._schemas[id_]

    async def fetch(self, env: Env, ids: Collection[int]) -> None:
        """Fetches schemas.

        Raises:
          ServerAway: the registry does not answer.
          SpeError: it is not a registry, or refuses access; or there are too many schemas.
        """
        refused: dict[int, str] = {}
        try:
            for id_ in sorted(ids):
                await self._fetch(env, id_, refused)
        finally:
            # All refusals get one time: otherwise a message that waits for many would wait again for those refused
            # first.
            now_us = env.clock.monotonic_us()
            self._refused = {n: known for n, known in self._refused.items() if now_us - known[1] < _AGAIN_US}
            self._refused |= {n: (why, now_us) for n, why in refused.items()}

    async def _fetch(self, env: Env, id_: int, refused: dict[int, str]) -> None:
        if len(self._schemas) >= SCHEMAS_MAX:
            raise SpeError(f"{self.name}: messages have more than {SCHEMAS_MAX:,} schemas")
        try:
            with trio.fail_after(ANSWER_S):
                answer = await self._ask(env, id_)
        except GONE as error:
            why = str(error) or f"no answer within {ANSWER_S:g} s"
            raise ServerAway(f"{self.name} does not answer: {why}") from error
        self._answered = True
        if isinstance(answer, str):
            refused[id_] = answer
        else:
            self._schemas[id_] = answer[0]

    async def _ask(self, env: Env, id_: int) -> tuple[Any] | str:
        """Returns the schema, or the reason why there is none."""
        options = self._options
        token = secret("registry.token", options["token"]) if "token" in options else None
        url = self._url._replace(target=f"{self._url.target.rstrip('/')}/schemas/ids/{id_}")
        client = HttpClient(self.name, url, token=token, ca=options.get("ca"))
        headers = [(b"Accept", b"application/vnd.schemaregistry.v1+json, application/json")]
        if "user" in options:
            credentials = (
                f"{secret('registry.user', options['user'])}:{secret('registry.password', options['password'])}"
            )
            headers.append((b"Authorization", b"Basic " + b64encode(credentials.encode())))
        try:
            await client.connect(env)
            response = await client.ask("GET", headers)
            if response.status_code not in (200, 404):
                error = await client.failure(response, "to give schemas")
                raise ServerAway(str(error)) if self._answered else error
            body = b""
            while len(body) <= _BODY_BYTES and (data := await client.data()):
                body += data
        finally:
            await client.close()
        return self._read(id_, response.status_code, body)

    def _read(self, id_: int, status: int, body: bytes) -> tuple[Any] | str:
        try:
            document = json.loads(body)
            if status == 404 and document["error_code"] == _NO_SCHEMA:
                return f"{self.name} has no schema {id_}"
            if (kind := document.get("schemaType", "AVRO")) != "AVRO":
                return f"schema {id_} is of {kind}; expected AVRO"
            if document.get("references"):
                return f"schema {id_} refers to other schemas; expected one that has all of its types"
            return (json.loads(document["schema"]),)
        except (ValueError, KeyError, TypeError, AttributeError):
            shown = body[:100].decode("utf-8", "replace")
            raise SpeError(f"{self.name}: expected a schema in JSON, got status {status}: {shown!r}") from None
