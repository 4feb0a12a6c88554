"""Secrets of connectors, read where they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spe.errors import SpeError


def secret(key: str, place: Mapping[str, str]) -> str:
    """What an environment variable, or the first line of a file, says.

    Args:
      key: of the configuration, for messages.
      place: ``env`` or ``file``, as ``spe.connectors.secret.Secret`` has it.

    Raises:
      SpeError: it is not there; says where it was looked for.
    """
    if (variable := place.get("env")) is not None:
        value = os.environ.get(variable)
        if value is None:
            raise SpeError(f"{key}: the process has no environment variable {variable}")
        return value
    path = place["file"]
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, ValueError) as error:
        raise SpeError(f"{key}: {path} cannot be read: {error}") from error
