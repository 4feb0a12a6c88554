"""Redis streams as a reader, sorted sets as a sink: what a configuration may say, and what they state."""

from pydantic import Field

from spe.connectors.declaration import CURRENT, STABLE, Guarantees, Reader, SinkDeclaration
from spe.values import Address, Model


class StreamKeys(Model):
    address: Address = Field(description="of the redis server")
    stream: str = Field(description="its key; each entry has a field `json`, an object with the attributes")
    trim: bool = Field(default=False, description="deletes entries that the source has on its disk, but the last one")


class SetKeys(Model):
    address: Address = Field(description="of the redis server")
    key: str = Field(description="a sorted set `KEY:STREAM:PARTITION` has rows as JSON by id, `KEY:state` the position")


class RedisReader(Reader):
    live = True


AWAY = {"redis does not answer, or restarts": "waits, says so, and goes on where it was"}
READER = RedisReader(
    "redis", StreamKeys, "{address: HOST:PORT, stream: KEY}", "entries of a Redis stream", ("timestamps",),
    Guarantees(
        durable="the stream; from the sync of an entry on, the source's log too, and the entry may be trimmed",
        own_crash="goes on behind the last entry of the log: none twice, none missing",
        other_crash="what redis has kept is read; it loses what its own persistence loses",
        failures={**AWAY, "an entry is malformed": "it is counted, kept aside and left out, or stops the source"},
    ),
    opens="redis_streams.reader:StreamReader",
)  # fmt: skip
SINK = SinkDeclaration(
    "redis", SetKeys, "{address: HOST:PORT, key: KEY}", "a sorted set for each channel, of JSON objects by id",
    {STABLE: "final rows, each once", CURRENT: "the newest answer; `_tentative` rows go when they are withdrawn"},
    Guarantees(
        durable="the set; a row is acknowledged when the script that wrote it and the position has returned",
        own_crash="goes on behind the position in redis",
        other_crash="rows and position are of one moment; redis loses what its own persistence loses",
        failures={**AWAY, "another client writes to the key": "the older one ends"},
    ),
    opens="redis_streams.sink:SortedSetSink",
)  # fmt: skip
