"""Reads secrets of connectors when they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spe.errors import SpeError


def secret(key: str, place: Mapping[str, str]) -> str:
    """Returns an environment variable, or the first line of a file.

    Args:
      key: key in the configuration, for messages.
      place: ``env`` or ``file``, as in ``spe.connectors.secret.Secret``.

    Raises:
      SpeError: it is missing; says where it was looked for.
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
