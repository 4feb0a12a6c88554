"""``spe archive``: copies a finished run to object storage, or to another place from which it can be proved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replicas.cli.report import ReportProgress, start_spark


def archive(run_dir: Path, where: str, master: str | None, conf: Mapping[str, str]) -> int:
    """Copies a run.

    Raises:
      SpeError: it cannot be copied, with the reason.
    """
    from consistency.proof.recorded.run import Run
    from consistency.proof.session.errors import explained
    from consistency.proof.storage.archive import DiskFolder
    from consistency.proof.storage.archive import archive as copied
    from consistency.proof.storage.folder import is_object, is_remote, local_path
    from consistency.proof.storage.remote import folder_of

    tell = ReportProgress(silent=False)
    run = Run.open(run_dir)
    if not is_remote(where):
        files, size = copied(run, DiskFolder(str(local_path(where))), tell)
    elif is_object(where):
        from consistency.proof.storage.objects import ObjectFolder, ObjectPlace

        files, size = copied(run, ObjectFolder(None, ObjectPlace.of(where)), tell)
    else:
        spark = start_spark(tell, master, conf)
        with explained():
            try:
                files, size = copied(run, folder_of(spark, where), tell)
            finally:
                spark.stop()
    print(f"\narchived  {files} files, {size:,} bytes: {where}")
    return 0
