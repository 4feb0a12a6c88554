"""A recording is judged only by the source logs that it comes from (S6: rows have an origin)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from consistency.proof.recorded.run import Run
from replicas.source.proxy import SourceProxy
from spe.errors import SpeError
from spe.log.marks import Mark, Marks
from spe.log.origin import combined, signature_of
from spe.log.provenance import PROVENANCE, Provenance, encode_provenance
from spe.log.recording import client_folder
from spe.log.source_log import source_folder
from spe.runtime.storage import DiskStorage
from spe.stream.names import StreamId
from tests.support.plans import chain, pass_on, source
from tests.support.source_env import source_env

A = StreamId("a")
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
async def test_recording_of_these_or_earlier_logs_is_judged(tmp_path: Path, identity: str, recorded: str) -> None:
    (await run_of(tmp_path, identity, recorded))._check_origins()


async def test_settings_changed_since_log_began_are_noticed(tmp_path: Path) -> None:
    """X was changed in the copy of the configuration, and in every announcement alike: the log remembers it."""
    run = await run_of(tmp_path, "", "")
    signature = run.directory.signature
    env = replace(source_env(), storage=DiskStorage(tmp_path / "signed"))
    proxy = await SourceProxy.open(env, run.plan.sources[A], signature=signature)
    assert signature_of(proxy.identity) == signature
    signed = replace(run, path=tmp_path / "signed")
    assert signed.signature_flaws(A) == []
    nodes = {name: replace(node, x_us=node.x_us * 2) for name, node in run.directory.nodes.items()}
    edited = replace(signed, directory=replace(run.directory, nodes=nodes))
    assert edited.signature_flaws(A) == [
        "its log began with other settings of nodes (X, α, policies) than config.yaml has: that was changed since"
    ]
    assert run.signature_flaws(A) == []  # a log without a signature says nothing


async def test_a_signature_cannot_be_changed_alone(tmp_path: Path) -> None:
    run = await run_of(tmp_path, f"{ONE}-{OTHER}", f"{ONE}-{ONE}")
    with pytest.raises(SpeError, match="comes from other source logs"):
        run._check_origins()
