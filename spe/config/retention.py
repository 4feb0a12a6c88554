"""``retain`` of a source or a client: how long its log or its recording is kept."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from spe.plan.plan import Retain
from spe.values import S3, Model, PositiveDuration, Size, split_open

#: Smallest limit of a log, bytes: two segments of the smallest size.
SIZE_MIN: Final = 16 << 10


def _archive(value: Any) -> str:
    if isinstance(value, str) and value:
        parts = split_open(value) if value.startswith(S3) else urlsplit(value)
        if "://" not in value or (parts.scheme and (parts.path or parts.netloc)):
            return value
    raise ValueError(f"expected a folder, or a URL such as s3://bucket/logs, got {value!r}")


class RetainModel(Model):
    """How long a log is kept. Nothing is deleted that is still needed.

    Attributes:
      for: what lies this far behind the newest tuple is deleted; of a recording, what was received so long ago.
        Default: age does not matter.
      size: the oldest part is deleted while the log is larger. Default: size does not matter.
      archive: a folder, or a URL such as `s3://bucket/logs`, to which a copy goes before. Default: none.
      unproved: `delete`: also what `spe report --follow` has not proved is deleted; no matter with `archive`.
        Default: `keep`.
    """

    for_: PositiveDuration | None = Field(default=None, alias="for")
    size: Size | None = None
    archive: Annotated[str, BeforeValidator(_archive)] = ""
    unproved: Literal["keep", "delete"] = "keep"

    @model_validator(mode="after")
    def _bounded(self) -> RetainModel:
        if self.for_ is None and self.size is None:
            raise ValueError("expected for, size, or both: {for: 7d, size: 200GB}")
        if self.size is not None and self.size < SIZE_MIN:
            raise ValueError(f"size: expected at least {SIZE_MIN >> 10}KiB, got {self.size} bytes")
        return self

    def retain(self, data: FilePath) -> Retain:
        """Returns the settings.

        Args:
          data: folder for a relative path of an archive.
        """
        archive = self.archive
        if archive and "://" not in archive:
            archive = str((data / archive).absolute())
        return Retain(self.for_, self.size, archive, self.unproved == "delete")
