"""Files, log and errors of a Delta table.  All functions block."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.disk_trouble import sync_failed
from spe.runtime.s3 import NO_BUCKET, S3Service, is_final, reason
from spe.runtime.storage import sync_folder
from spe.values import S3

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(["Delta tables need deltalake and pyarrow: pip install '.[delta]'"]) from error

LOG: Final = "_delta_log"
_CHECKPOINT: Final = "_last_checkpoint"
#: Longest time to connect to S3, for an answer, and for all attempts of one request.
S3_OPTIONS: Final = {
    "connect_timeout": "5s",
    "timeout": "10s",
    "max_retries": "2",
    "retry_timeout": "15s",
}
#: Errors of a folder that a retry does not mend.
_FINAL: Final = {
    1: "not permitted", 13: "permission denied", 20: "a part of the path is no folder", 30: "it may only be read",
}  # fmt: skip
_DENIED: Final = re.compile(r"\b40[13] |lacked the necessary privileges")
_COLOURS: Final = re.compile(r"\x1b\[\d*m|↳")
_MESSAGE_CHARS: Final = 300


class DeltaPlace:
    """The location of a Delta table; see the module.

    Args:
      path: path of the table: absolute, or ``s3://BUCKET/PREFIX``.
      endpoint, region: settings of S3; "": from the environment.

    Attributes:
      name: name in messages.
    """

    def __init__(self, path: str, *, endpoint: str = "", region: str = "") -> None:
        self.name = f"delta {path}"
        self._path = path
        self._endpoint, self._region = endpoint, region
        self._folder = None if path.startswith(S3) else Path(path)
        self._service: S3Service | None = None

    def open(self) -> DeltaTable | None:
        """Returns the current table; None: there is none.

        Raises:
          ServerAway: it cannot be reached now.
          SpeError: a retry will not help.
        """
        with self.errors_told_apart():
            if self._folder is None:
                self._ask_service()
            else:
                self._remove_torn(self._folder / LOG)
            try:
                return DeltaTable(self._path, storage_options=self._options())
            except TableNotFoundError:
                return None

    def make(self, columns: pa.Schema, partition_by: list[str]) -> DeltaTable:
        """Makes a table without rows, or opens one that another process has just made.  Raises as :meth:`open`."""
        with self.errors_told_apart():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                sync_folder(self._folder.parent)
            with suppress(CommitFailedError):
                DeltaTable.create(
                    self._path, columns, mode="ignore", partition_by=partition_by, storage_options=self._options()
                )
        table = self.open()
        if table is None:
            raise ServerAway("a table that was made is not there")
        return table

    def write(self, name: str, rows: pa.Table) -> int:
        """Writes a file below the table, and syncs it.  Returns its size in bytes.  Raises as :meth:`open`."""
        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer, compression="snappy")
        data = buffer.getvalue()
        with self.errors_told_apart():
            if self._folder is not None:
                self._write_file(self._folder / name, data)
            else:
                with self._system().open_output_stream(self._object(name)) as stream:
                    stream.write(data)
        return len(data)

    def commit_info(self, version: int) -> Mapping[str, Any] | None:
        """Returns the information of a commit; None: it is no longer in the log.  Raises as :meth:`open`.

        ``DeltaTable.history`` would block other threads until the store has answered.
        """
        name = f"{LOG}/{version:020}.json"
        with self.errors_told_apart():
            try:
                if self._folder is not None:
                    text = (self._folder / name).read_bytes()
                else:
                    with self._system().open_input_stream(self._object(name)) as stream:
                        text = stream.read()
            except FileNotFoundError:
                return None
        for line in text.splitlines():
            if (information := json.loads(line).get("commitInfo")) is not None:
                return dict(information)
        return {}

    def read(self, name: str, columns: pa.Schema) -> pa.Table:
        """Reads a file below the table.  Raises as :meth:`open`; ServerAway also if it is gone."""
        with self.errors_told_apart():
            if self._folder is not None:
                return pq.read_table(str(self._folder / unquote(name)), partitioning=None, schema=columns)
            path = self._object(unquote(name))
            return pq.read_table(path, filesystem=self._system(), partitioning=None, schema=columns)

    def sync(self, versions: range) -> None:
        """Syncs commits and their checkpoints.  Raises SpeError: the disk fails."""
        if self._folder is None:
            return
        log = self._folder / LOG
        with self.errors_told_apart():
            for version in versions:
                _sync_if_there(log / f"{version:020}.json")
                if _sync_if_there(log / f"{version:020}.checkpoint.parquet"):
                    _sync_if_there(log / _CHECKPOINT)
            sync_folder(log)

    @contextmanager
    def errors_told_apart(self) -> Iterator[None]:
        """Converts errors of disks, S3 and delta-rs to ServerAway, where a retry may help, or SpeError.

        A CommitFailedError passes: another commit was faster.
        """
        try:
            yield
        except CommitFailedError:
            raise
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> SpeError:
        text = " ".join(_COLOURS.sub("", str(error)).split())
        if self._folder is None:
            if "NoSuchBucket" in text:
                return SpeError(f"{self.name}: {NO_BUCKET}")
            if is_final(error) or _DENIED.search(text):
                denied = "AWS Error ACCESS_DENIED" if _DENIED.search(text) else error
                return SpeError(f"{self.name}: {reason(denied)}")
            if isinstance(error, OSError):
                return ServerAway(reason(text)[:_MESSAGE_CHARS])
        match = re.search(r"os error (\d+)", text)
        number = getattr(error, "errno", None) or (int(match[1]) if match else None)
        if number in _FINAL:
            return SpeError(f"{self.name}: {_FINAL[number]}; expected a folder that this user may write")
        if isinstance(error, OSError) and number is not None:
            return ServerAway(os.strerror(number))
        if "Generic S3 error" in text or "Generic LocalFileSystem error" in text or isinstance(error, OSError):
            return ServerAway(text[:_MESSAGE_CHARS])
        return SpeError(f"{self.name}: {text[:_MESSAGE_CHARS]}")

    # --- a folder ---

    def _write_file(self, path: Path, data: Any) -> None:
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            sync_folder(path.parent.parent)
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                _sync(file.fileno(), path)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        sync_folder(path.parent)

    def _remove_torn(self, log: Path) -> None:
        """Removes the newest commit or checkpoint if a power failure has torn it: delta-rs does not sync them.

        An unsynced commit was not acknowledged.
        """
        names = sorted(os.listdir(log)) if log.is_dir() else []
        commits = [name for name in names if re.fullmatch(r"\d{20}\.json", name)]
        if commits and not _is_whole(log / commits[-1]):
            (log / commits[-1]).unlink()
            sync_folder(log)
        checkpoints = [name for name in names if re.fullmatch(r"\d{20}\.checkpoint\.parquet", name)]
        if checkpoints and not _is_parquet(log / checkpoints[-1]):
            (log / _CHECKPOINT).unlink(missing_ok=True)
            (log / checkpoints[-1]).unlink()
            sync_folder(log)
        elif (log / _CHECKPOINT).exists() and not _is_whole(log / _CHECKPOINT):
            (log / _CHECKPOINT).unlink()
            sync_folder(log)

    # --- S3 ---

    def _ask_service(self) -> None:
        """Checks whether the bucket can be reached: Arrow explains a failure more clearly."""
        parts = urlsplit(self._path)
        self._service = S3Service.of(parts.netloc, endpoint=self._endpoint, region=self._region)
        self._system().get_file_info(self._object(f"{LOG}/{_CHECKPOINT}"))

    def _system(self) -> Any:
        assert self._service is not None
        return self._service.system

    def _object(self, name: str) -> str:
        return f"{self._path.removeprefix(S3)}/{name}"

    def _options(self) -> dict[str, str] | None:
        """Returns the options of delta-rs; it finds credentials where the AWS SDK looks for them."""
        if self._service is None:
            return None
        options = {**S3_OPTIONS, "AWS_REGION": self._service.region}
        if self._service.endpoint:
            options["AWS_ENDPOINT_URL"] = self._service.endpoint
            if self._service.endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        return options


def _sync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SpeError(str(sync_failed(error, path))) from error


def _sync_if_there(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        _sync(descriptor, path)
    finally:
        os.close(descriptor)
    return True


def _is_whole(path: Path) -> bool:
    """Returns whether a file consists of whole lines of JSON."""
    try:
        lines = path.read_bytes().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines if line)
    except ValueError:
        return False


def _is_parquet(path: Path) -> bool:
    try:
        pq.read_metadata(str(path))
    except (pa.ArrowException, OSError):
        return False
    return True
