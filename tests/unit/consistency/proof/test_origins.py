"""A recording is judged only by the source logs that it comes from (S6: rows have an origin)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from consistency.proof.run import Run
from spe.errors import SpeError
from spe.log.marks import Mark, Marks
from spe.log.origin import combined
from spe.log.provenance import PROVENANCE, Provenance, encode_provenance
from spe.log.recording import client_folder
from spe.log.source_log import source_folder
from spe.runtime.storage import DiskStorage
from tests.support.plans import chain, pass_on, source

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


async def run_of(path: Path, identity: str, recorded: str) -> Run:
    """Two units in a chain behind one source."""
    a = source("a", reader={"kind": "generator"})
    plan, directory = chain([a], [("s1", pass_on("a"), a.schema), ("s2", pass_on("s1"), a.schema)])
    storage, folder = DiskStorage(path), source_folder(a.stream)
    marks = Marks(storage, folder)
    await marks.write(Mark(1, 0))
    marks.close()
    if identity:
        await storage.write_atomic(folder / "identity", identity.encode())
    origin = combined([combined([recorded])])
    await storage.write_atomic(
        PurePosixPath(client_folder("c")) / PROVENANCE, encode_provenance({"s2/0": Provenance("f00d", origin)})
    )
    return Run(path, plan, directory)


@pytest.mark.parametrize("identity", [OTHER, ""])
async def test_a_recording_of_other_logs_is_refused(tmp_path: Path, identity: str) -> None:
    run = await run_of(tmp_path, identity, ONE)
    with pytest.raises(SpeError, match=r"client 'c' received of s2/0 comes from other source logs"):
        run._check_origins()


@pytest.mark.parametrize(("identity", "recorded"), [(ONE, ONE), (ONE, ""), ("", "")])
async def test_a_recording_of_these_logs_or_of_an_earlier_version_is_judged(
    tmp_path: Path, identity: str, recorded: str
) -> None:
    (await run_of(tmp_path, identity, recorded))._check_origins()
