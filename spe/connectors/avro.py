"""Options for Avro messages: the place of their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from spe.connectors.declaration import shorthand
from spe.connectors.secret import SecretKeys, placed
from spe.connectors.server import ServerKeys
from spe.values import Model


class RegistryKeys(ServerKeys):
    """A schema registry, such as Confluent's."""

    user: SecretKeys | None = Field(default=None, description="of HTTP's basic authentication: `{env: NAME}` or …")
    password: SecretKeys | None = Field(default=None, description="in the same way")

    @model_validator(mode="after")
    def _one_way(self) -> RegistryKeys:
        if (self.user is None) != (self.password is None):
            raise ValueError("expected both user and password, or none")
        if self.user is not None and self.token is not None:
            raise ValueError("expected user and password, or a token")
        return self


class AvroKeys(Model):
    """The place of the schemas of messages."""

    registry: Annotated[RegistryKeys, shorthand("url")] | None = Field(
        default=None, description="a schema registry; a message begins with the id of its schema, as Confluent's do"
    )
    file: str | None = Field(
        default=None, description="a schema, `.avsc`; a message is a record of it and nothing else"
    )

    @model_validator(mode="after")
    def _one(self) -> AvroKeys:
        if (self.registry is None) == (self.file is None):
            raise ValueError("expected {registry: URL} or {file: PATH}")
        return self


def placed_avro(options: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """Returns the options of a reader, with the paths of ``avro`` relative to ``data``."""
    if (avro := options.get("avro")) is None:
        return dict(options)
    avro = placed(avro, data, "file")
    if "registry" in avro:
        avro["registry"] = placed(avro["registry"], data, "ca")
    return {**options, "avro": avro}
