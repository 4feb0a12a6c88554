"""The reader of a growing directory: files of one format, on a disk or in object storage, each read once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.declaration import CELLS, KEPT_ASIDE, Guarantees, Reader, check_numbered, shorthand
from spe.values import S3, Model, Names, PositiveDuration, split_open

_FILE: Final = "file://"


def _path(value: Any) -> str:
    expected = "expected a folder, file:///… or s3://BUCKET/PREFIX"
    if not isinstance(value, str) or not value:
        raise ValueError(f"{expected}, got {value!r}")
    if not re.match(r"[a-z][a-z0-9+.-]*://", value):
        return value
    parts = split_open(value)
    if not (parts.scheme == "s3" and parts.netloc) and not (parts.scheme == "file" and not parts.netloc and parts.path):
        raise ValueError(f"{expected}, got {value!r}")
    return value


def _name(value: Any) -> str:
    if isinstance(value, str) and value and "/" not in value:
        return value
    raise ValueError(f"expected the name of a file, without a folder, got {value!r}")


def _suffix(value: Any) -> str:
    if isinstance(value, str) and value.startswith(".") and len(value) > 1 and "/" not in value:
        return value
    raise ValueError(f"expected what is added to the name of a file, such as .done, got {value!r}")


def endpoint_url(value: Any) -> str:
    """Checks the URL of a server with the S3 protocol.  Raises ValueError."""
    parts = urlsplit(value) if isinstance(value, str) else urlsplit("")
    if parts.scheme in ("http", "https") and parts.netloc and "@" not in parts.netloc and not parts.path.strip("/"):
        return str(value).rstrip("/")
    raise ValueError("expected http://HOST[:PORT] or https://HOST[:PORT], without credentials")


class DirectoryKeys(Model):
    """A folder, and the selection and order of its files."""

    path: Annotated[str, BeforeValidator(_path)] = Field(
        description="a folder, `file:///…` or `s3://BUCKET/PREFIX`; files of its subfolders are read, too"
    )
    pattern: Annotated[str, BeforeValidator(_name)] | None = Field(
        default=None,
        description="of file names, such as `*.csv`; none: all. Files and folders whose names begin with `.` or `_` "
        "are always left out",
    )
    settle: PositiveDuration | None = Field(
        default=None, description="a file is complete when its size and time have not changed for so long"
    )
    marker: Annotated[str, BeforeValidator(_suffix)] | None = Field(
        default=None,
        description="a file is complete when there is one of its name with this behind it, such as `.done`",
    )
    order: Literal["name", "modified"] = Field(
        default="name",
        description="of files that are new at the same look: by path, or by time of change and then by path",
    )
    partitions: Names | None = Field(
        default=None, description="columns that are in the names of folders, as `day=2026-01-01`, and not in the files"
    )
    until: Annotated[str, BeforeValidator(_name)] | None = Field(
        default=None,
        description="a file directly in the folder, such as `_SUCCESS`: once it is there, the stream ends behind the "
        "files that are there",
    )
    follow: bool = Field(default=True, description="`false`: the stream ends behind the files that are there")
    every: PositiveDuration = Field(default=1_000_000, description="time between two looks")
    bad_files: Literal["stop", "skip"] = Field(
        default="stop",
        description="a file that is torn, of another schema, changed, or gone before it was read: stops the source, or "
        f"is counted, {KEPT_ASIDE} with the reason and left out",
    )
    region: str | None = Field(default=None, description="of S3; none: as the environment and files of AWS say")
    endpoint: Annotated[str, BeforeValidator(endpoint_url)] | None = Field(
        default=None,
        description="of a server that speaks S3, `https://HOST:PORT`; none: `AWS_ENDPOINT_URL`, or that of AWS",
    )
    anonymous: bool = Field(default=False, description="a public bucket of S3: no credentials")

    @model_validator(mode="after")
    def _fits(self) -> DirectoryKeys:
        if self.settle is not None and self.marker is not None:
            raise ValueError("expected settle or marker, not both")
        if self.until is not None and not self.follow:
            raise ValueError("expected until or follow: false, not both")
        of_s3 = [key for key in ("region", "endpoint", "anonymous") if getattr(self, key)]
        if of_s3 and not self.path.startswith(S3):
            raise ValueError(f"{', '.join(of_s3)} goes with s3://")
        return self


@dataclass(frozen=True)
class FilesOfDirectory(Reader):
    """Reads the rows of files, each once: file and position go into the log of the source."""

    formats: tuple[str, ...] = ("jsonl", "csv", "parquet", "arrow", "avro")

    live: ClassVar = True
    batches: ClassVar = True
    defaults: ClassVar = {"format": "jsonl"}

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        form = options.get("format", "jsonl")
        if form == "csv":
            if options.get("header") is False:
                check_numbered(options)
        elif stray := [option for option in ("delimiter", "quote", "header", "null") if option in options]:
            raise ValueError(f"{', '.join(stray)} does not go with format {form}; expected format: csv")
        elif numbered := [a for a, c in options.get("columns", {}).items() if not isinstance(c, str)]:
            raise ValueError(f"columns: expected the name of a column for {', '.join(numbered)}, not a number")

    def reader(self, value: DirectoryKeys, data: Path) -> dict[str, Any]:
        options = value.model_dump(exclude_none=True)
        path = value.path
        if not path.startswith(S3):
            path = unquote(urlsplit(path).path) if path.startswith(_FILE) else path
            path = str((data / Path(path).expanduser()).absolute())
        del options["path"]  # elsewhere ``path`` is a single file that can be read again
        return {k: list(v) if isinstance(v, tuple) else v for k, v in {**options, "folder": path}.items()}

    def stored(self, reader: Mapping[str, Any]) -> bool:
        return True

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"directory {reader['folder']}"


DIRECTORY: Final = FilesOfDirectory(
    "directory",
    Annotated[DirectoryKeys, shorthand("path")],
    "PATH or URL, or {path: …}",
    "files that appear in [a directory](../how-to/directories.md), or under a prefix of S3",
    ("format", *CELLS),
    Guarantees(
        durable="the files, until they are read; and the source's log, from the sync of a row on. A file is read only "
        "after its name is in a list on the source's disk",
        own_crash="goes on behind the last row of the log, also within a file: no row twice, none missing",
        other_crash="the order of files is kept; a file that was read need not be there any more",
        failures={
            "a file is not complete when it appears under its name": "**not noticed** in lines; a file of Parquet or "
            "Arrow is torn. Rename it into place, or use `settle` or `marker`. In S3 a file appears whole",
            "files appear together": "they are read in the order of `order`; files that appear later are read later",
            "a file is empty, of zero bytes": "it has no rows, in every format",
            "a file is torn, of another format or another schema": "the source stops and names file and reason; "
            "nothing of Parquet and Arrow files is taken, of Avro the blocks before the torn one. A repaired file is "
            "read from its beginning if nothing of it was taken. Or it is left out (`bad_files: skip`)",
            "a block of Avro, or a page of Parquet, becomes more than 128 MiB": "the file counts as torn. Compressed "
            "buffers of Arrow have no bound",
            "a row cannot be understood": f"it is counted, {KEPT_ASIDE} with file and row and "
            "left out, or stops the source (`on_malformed`)",
            "a file changes, grows or shrinks before anything of it was read": "it is read as it is then",
            "a file changes, grows or shrinks while it is read, or afterwards": "noticed by size and time of change, "
            "at its end or at the next look: the source stops and names it; what was taken stays, what is new is not "
            "taken. With `bad_files: skip` it says so and goes on",
            "a file vanishes while it is read": "on a disk it is read to its end; from S3, and after a restart, the "
            "source stops and says how many rows were taken, or goes on with the next one (`bad_files: skip`)",
            "a file that was read vanishes": "nothing; if one of its name comes back, that has changed",
            "the disk or the server cannot be read": "the source says so, tries again, and goes on where it was; no "
            "time passes by silence. At the first start a folder that is missing, or may not be read, stops it",
            "the list of known files is lost, or was restored from a backup": "the source stops: files would be read "
            "twice",
            "there are more than a million files": "the source stops; begin another folder, with another source",
        },
    ),
    opens="replicas.connectors.files.directory_source:DirectoryReader",
    example="from: {directory: {path: incoming, until: _SUCCESS}, format: parquet}",
)
