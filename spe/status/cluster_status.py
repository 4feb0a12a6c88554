"""Status of the supervisor of a run, and of all processes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from spe.status.client_status import ClientStatus
from spe.status.coordinator_status import CoordinatorStatus
from spe.status.field_types import Integer, Many, Text
from spe.status.node_status import NodeStatus
from spe.status.process_status import CommonStatus
from spe.status.source_status import SourceStatus

#: Version of ``spe status --json``.
STATUS_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStatus:
    """A planned or injected fault.  Times are wall time.

    Attributes:
      fault: its description.
      planned_us: planned time; null: injected on request.
      began_us: actual begin; null: not yet.
      ended_us: end; null: not yet, or it does not last.
      for_us: duration; null: until it is healed.
      errors: parts that failed.
    """

    fault: Text
    planned_us: Integer | None
    began_us: Integer | None
    ended_us: Integer | None
    for_us: Integer | None
    errors: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus(CommonStatus):
    """The supervisor of a run; `spe top` requests it, `spe status` does not.

    Attributes:
      faults: planned and injected faults, in the order of planning.
      phases: phase of each process of the run: `starting`, `running`, `frozen`, `killed`, `stopped`, `ended` or
        `died`.
      begun_us: wall time at which the sources started; null: not yet.
    """

    kind: Literal["supervisor"] = "supervisor"
    faults: Many[FaultStatus]
    phases: Mapping[Text, Text]
    begun_us: Integer | None


ProcessStatus: TypeAlias = NodeStatus | SourceStatus | ClientStatus | CoordinatorStatus | SupervisorStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Output of `spe status --json`.

    Attributes:
      processes: status of each process that answered, by name.
      errors: reasons why the others did not, by name.
      metrics: known addresses of processes' metrics and health, by name.
      version: version of this format; more fields do not change it.
    """

    processes: Mapping[str, Annotated[ProcessStatus, Field(discriminator="kind")]]
    errors: Mapping[str, str]
    metrics: Mapping[str, str] = field(default_factory=dict)
    version: Integer = STATUS_VERSION


_PROCESS: Final = TypeAdapter[ProcessStatus](Annotated[ProcessStatus, Field(discriminator="kind")])


def status_of(data: object) -> ProcessStatus:
    """Makes a status from a map; returns an existing status unchanged.

    Raises:
      ValueError: the map is no status; the error names the field and the expected value.
    """
    try:
        return _PROCESS.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def plain(status: object) -> dict[str, Any]:
    """Converts a status to a map of values for JSON and msgpack.

    Raises:
      ValueError: a field is not of the declared type.
    """
    data: dict[str, Any] = _PROCESS.dump_python(status, mode="json", warnings="error")  # type: ignore[arg-type]
    return data
