"""Copies a finished run to another place where it can be proved: the files that the proof reads, and its report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from consistency.proof.recorded.run import REPORT_FOLDER, Run
from consistency.proof.recorded.run_files import read_of
from consistency.proof.storage.folder import FileFolder
from spe.errors import SpeError

#: Copied last: a directory without it is no run, so a partial copy is none.
_LAST: Final = PurePosixPath("cluster.json")
#: Number of files that are copied at once: the service's latency is often what limits.
_AT_ONCE: Final = 8


@dataclass(frozen=True)
class DiskFolder:
    """A directory of this machine, such as a shared one."""

    uri: str

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        root = Path(self.uri)
        yield from ((PurePosixPath(p.relative_to(root)), p.stat().st_size) for p in root.rglob("*") if p.is_file())

    def put(self, file: Path, name: PurePosixPath) -> None:
        there = Path(self.uri, name)
        try:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)
        except OSError as error:
            raise SpeError(f"{there} cannot be written: {error.strerror}") from error


def files_of(run: Run) -> list[PurePosixPath]:
    """Returns the files to copy, in order."""
    report = [p for p in (run.path / REPORT_FOLDER).rglob("*") if p.is_file()]
    return sorted(PurePosixPath(p.relative_to(run.path)) for p in [*read_of(run.path), *report])


def archive(run: Run, target: FileFolder, tell: Callable[[str], None]) -> tuple[int, int]:
    """Copies a run; returns the number of files and bytes.

    Raises:
      SpeError: it goes on; a run is there already; or a copy has another size.
    """
    if run.going_on:
        raise SpeError(f"{run.path}: the run goes on; expected one that is over")
    if _LAST in dict(target.files()):
        raise SpeError(f"{target.uri} has a run already; expected a place where there is none")
    run.issued()  # opens the database, which completes it after a crash
    names = files_of(run)
    sizes = {name: (run.path / name).stat().st_size for name in names}
    tell(f"copying {len(names)} files, {sum(sizes.values()):,} bytes, to {target.uri}")
    _put(run, target, [name for name in names if name != _LAST])
    arrived = dict(target.files())
    for name in names:
        if name != _LAST and arrived.get(name) != sizes[name]:
            raise SpeError(
                f"{target.uri}/{name} has {arrived.get(name, 'no')} bytes, and {run.path / name} has {sizes[name]}: "
                "it was written meanwhile, or did not arrive; archive it again"
            )
    _put(run, target, [_LAST])
    return len(names), sum(sizes.values())


def _put(run: Run, target: FileFolder, names: Sequence[PurePosixPath]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda name: target.put(run.path / name, name), names):
            pass
