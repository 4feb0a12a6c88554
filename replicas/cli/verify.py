"""``spe report --verify``: is a report right about the run that it lies in?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.recorded.run import Run
    from consistency.proof.report.model import Report

#: Exit statuses.  2 also means that a report could not be verified.
AS_IT_SAYS: Final = 0
DIFFERS: Final = 1
NOT_VERIFIED: Final = 2

_REPORT: Final = "report.json"

#: Starts Spark; gives the session, whose settings may be changed.
Start = Callable[[], "SparkSession"]


#: Is told what differs from a report: nothing, if it is right.
Show = Callable[[str | Path, Sequence[str]], None]


def print_found(place: str | Path, found: Sequence[str]) -> None:
    if not found:
        print(f"\nVERIFIED  {place}: everything is as it says", flush=True)
        return
    print(f"\nDIFFERS  {place}")
    print("\n".join(f"  {text}" for text in found), flush=True)


def verify(places: Sequence[str | Path], start: Start, tell: Callable[[str], None], show: Show = print_found) -> int:
    """Verifies reports: first the digests of what each rests on, then, with Spark, what it says.

    Args:
      places: of ``report.json``, each in the directory of its run; on another file system a URI.
      start: is called once at most, and only where all digests are right.

    Returns:
      AS_IT_SAYS or DIFFERS, whatever the verdicts of the reports are.

    Raises:
      SpeError: a report cannot be verified; says why.
    """
    from consistency.proof.session.errors import explained
    from consistency.proof.storage.folder import check_place, is_remote

    for place in places:
        check_place(str(place))
    sessions: list[SparkSession] = []

    def session() -> SparkSession:
        if not sessions:
            sessions.append(start())
        return sessions[0]

    differing = 0
    with explained():
        try:
            local = {p: _digests_of_local(p, tell) for p in places if not is_remote(str(p))}
            for place in places:
                found = local.get(place, []) or _recomputed(place, session(), tell, digests=place not in local)
                differing += bool(found)
                show(place, found)
        finally:
            for one in sessions:
                one.stop()
    return DIFFERS if differing else AS_IT_SAYS


def _digests_of_local(place: str | Path, tell: Callable[[str], None]) -> list[str]:
    """What differs from a report's digests; on this machine that needs no Spark."""
    from consistency.proof.recorded.evidence import differences, digests_below
    from consistency.proof.recorded.run import Run
    from consistency.proof.storage.folder import local_path

    path = local_path(str(place))
    if not path.is_file():
        raise SpeError(f"{path}: there is no such file; expected the {_REPORT} of a run")
    kept = _read(path.read_bytes(), path)
    folder = _run_of(path)
    tell(f"digests of {folder}")
    assert kept.evidence is not None
    # Before the run is opened, which files that differ may make impossible.
    found = [*_configuration_differs(kept, folder), *differences(kept.evidence.files, digests_below(folder))]
    return _with_why(found or _outside(kept, Run.open(folder), tell))


def _run_of(path: Path) -> Path:
    """The directory of the run that a report lies in."""
    folder = path.absolute().parent.parent
    if not (folder / "cluster.json").is_file():
        raise SpeError(f"{path} is not where spe report writes it: {folder} is not the directory of a run")
    return folder


def _read(text: str | bytes, where: str | Path) -> Report:
    from consistency.proof.verification import read_report

    found = read_report(text, where)
    if found.evidence is None:
        raise SpeError(
            f"{where} has no digests: it was made while the run went on, or by an earlier version; make it again"
        )
    return found


def _configuration_differs(kept: Report, folder: Path) -> list[str]:
    """The first line of a run's configuration that is another one than the report has."""
    try:
        text = (folder / "config.yaml").read_text("utf-8", "replace")
    except OSError as error:
        raise SpeError(f"{folder / 'config.yaml'} cannot be read: {error.strerror}") from error
    if text == kept.configuration:
        return []
    said, now = kept.configuration.splitlines(), text.splitlines()
    at = next((n for n, (a, b) in enumerate(zip(said, now)) if a != b), min(len(said), len(now)))
    one, other = (lines[at].strip() if at < len(lines) else "nothing" for lines in (said, now))
    return [f"config.yaml differs from line {at + 1} on: the report has {one!r}, the run {other!r}"]


def _digests_of_remote(kept: Report, run: Run, spark: SparkSession, tell: Callable[[str], None]) -> list[str]:
    from consistency.proof.recorded.evidence import differences, evidence

    assert kept.evidence is not None
    tell(f"digests of {run.where}")
    return _with_why(differences(kept.evidence.files, evidence(run, spark).files) or _outside(kept, run, tell))


def _outside(kept: Report, run: Run, tell: Callable[[str], None]) -> list[str]:
    """What differs of inputs and modules; what is not here is told of, for a run may be verified without it."""
    from consistency.proof.recorded.evidence import differences, digests_outside

    assert kept.evidence is not None
    now = digests_outside(run)
    here = {one.path for one in now}
    for one in kept.evidence.outside:
        if one.path not in here:
            tell(f"{one.path} is not here: it was not compared")
    return differences([one for one in kept.evidence.outside if one.path in here], now)


def _with_why(found: list[str]) -> list[str]:
    return [*found, "the verdict was not computed again: it would be of other data"] if found else []


def _recomputed(place: str | Path, spark: SparkSession, tell: Callable[[str], None], *, digests: bool) -> list[str]:
    """Where a report says something else than Spark finds."""
    from consistency.proof.verification import disagreements
    from replicas.proving import again

    with _opened(place, spark) as (run, kept):
        if digests and (found := _digests_of_remote(kept, run, spark, tell)):
            return found
        made = again(spark, run, kept, tell)
    for name in ("spe", "spark", "java"):
        here, there = made.versions.get(name, ""), kept.versions.get(name, "")
        if here != there:
            tell(f"the report was made with {name} {there}; this is {here}")
    return disagreements(kept, made)


@contextmanager
def _opened(place: str | Path, spark: SparkSession) -> Iterator[tuple[Run, Report]]:
    from consistency.proof.storage.folder import is_remote, local_path
    from consistency.proof.storage.remote import fetched_text, opened

    where = str(place)
    if is_remote(where):
        folder = where.rpartition("/")[0].rpartition("/")[0]
        kept = _read(fetched_text(spark, where), where)
    else:
        path = local_path(where)
        folder, kept = str(_run_of(path)), _read(path.read_bytes(), path)
    with opened(spark, folder) as run:
        yield run, kept
