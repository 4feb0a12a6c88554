"""The common part of readers of a running cluster: the cluster, as driver and executors see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from consistency.proof.recorded.records import Table
from replicas.link.connection import secured
from replicas.local.run_dir import load_target
from replicas.on_spark.addresses import placed
from replicas.spark.offsets import Offset
from replicas.spark.options import ReadOptions, token
from spe.errors import SpeError
from spe.plan.deploy import check_all_addressed, with_default_client
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.results import results_fingerprint
from spe.problems import check_known
from spe.runtime.env import Env
from spe.runtime.production import production_env
from spe.stream.ids import Channel
from spe.stream.names import StreamId


@dataclass(frozen=True)
class LiveOutput:
    """An output of a running cluster.  Spark carries it to executors, so it holds no token.

    Attributes:
      what: options of the user.
      directory: with the addresses that were valid when it was made.
    """

    what: ReadOptions
    plan: Plan
    directory: Directory

    @classmethod
    def of(cls, what: ReadOptions) -> LiveOutput:
        """Raises SpeError, ConfigError: the configuration is wrong, or lacks a named part."""
        target = load_target(what.cluster)
        plan, directory = target.plan, with_default_client(target.plan, target.directory)
        check_known("output", what.output, plan.query.outputs)
        check_known("client", what.client, directory.clients)
        reads = directory.clients[what.client].reads
        if what.output not in reads:
            raise SpeError(f"client {what.client!r} does not read {what.output!r}; it reads {', '.join(reads)}")
        output = cls(what, plan, directory)
        peers = (directory.producer_addresses(plan, channel) for channel in output.channels)
        check_all_addressed(str(what.cluster), {n: a for some in peers for n, a in some.items()})
        return output

    @property
    def stream(self) -> StreamId:
        return StreamId(self.what.output)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Channels by partition."""
        return tuple(Channel(self.stream, p) for p in range(self.plan.partitions_of(self.stream)))

    @property
    def table(self) -> Table:
        """The output as a table."""
        return Table(False, self.plan.query.schema_of(self.stream), (), self.what.mode)

    def nowhere(self) -> Offset:
        """Returns the offset before the first tuple."""
        ids = {channel.partition: 0 for channel in self.channels}
        return Offset(self.what.output, self.what.mode, results_fingerprint(self.plan, self.stream), ids)

    def env(self) -> Env:
        """Returns this machine's environment, with the client's certificate.  Raises ConfigError if that is invalid."""
        return secured(placed(production_env(Path()), self.what.cluster), self.plan, f"client:{self.what.client}")

    def token(self) -> str:
        """Returns the token, looked up on this machine.  Raises SpeError."""
        return token(self.what.token_file, self.what.cluster)

    def by(self, directory: Directory) -> LiveOutput:
        """Returns the same output with another directory."""
        return replace(self, directory=directory)
