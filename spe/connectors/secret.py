"""References to secrets: a configuration is displayed and stored, so it must not contain secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from spe.values import Model


class Secret(Model):
    """The place of a secret."""

    env: str | None = Field(default=None, description="an environment variable of the process")
    file: str | None = Field(default=None, description="a file, whose first line it is")

    @model_validator(mode="after")
    def _one(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("expected {env: NAME} or {file: PATH}")
        return self


def _secret(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("a secret does not belong into a configuration; expected {env: NAME} or {file: PATH}")
    return value


SecretKeys = Annotated[Secret, BeforeValidator(_secret)]


def placed(options: Mapping[str, Any], data: Path | None, *files: str) -> dict[str, Any]:
    """Returns options with the paths of ``files`` and of secrets relative to ``data``; None: unchanged."""
    changed = dict(options)
    for name, value in options.items():
        if name in files:
            changed[name] = _below(value, data)
        elif isinstance(value, dict) and isinstance(value.get("file"), str):
            changed[name] = {**value, "file": _below(value["file"], data)}
    return changed


def _below(path: str, data: Path | None) -> str:
    return path if data is None else str((data / Path(path).expanduser()).absolute())
