"""Revisions: a coordinator's changes of roles, nodes and settings, applied to the configuration of the reading process.

Pure.  docs/internals/directory.md says how they are made, stored and passed on.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from pydantic import StrictInt as Integer

from spe.errors import OtherConfiguration, other_version
from spe.plan.directory import CONFIGURED, Directory, Role, Version
from spe.plan.nodes import Node
from spe.plan.settings import NodeSettings
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId
from spe.wire.fields import REVISION_BYTES

REVISION_VERSION: Final = 1
#: Largest revision before compression.
_TEXT_BYTES: Final = 8 << 20

_Name: TypeAlias = Annotated[str, Field(strict=True, min_length=1, max_length=512)]
_Id: TypeAlias = Annotated[Integer, Field(ge=0, lt=2**63)]
_Roles: TypeAlias = Annotated[dict[_Name, Role], Field(min_length=1)]


@dataclass(frozen=True)
class _Data:
    """A revision in its JSON form."""

    version: tuple[_Id, _Id]
    configured: _Name
    roles: list[tuple[_Name, _Id, _Roles]]
    nodes: list[Node]
    settings: dict[_Name, NodeSettings]
    lent: list[tuple[_Name, _Id, _Name]]


_DATA: Final = TypeAdapter(_Data)
_AS_CONFIGURED: Final = NodeSettings()
_NODE: Final = TypeAdapter(Node)


@dataclass(frozen=True)
class Revision:
    """One version of the directory.

    Attributes:
      configured: fingerprint of the roles in the configuration that it is based on (:func:`roles_fingerprint`).
      roles: role of each node of every partition.
      nodes: nodes that the configuration does not name, as they joined.
      settings: changes of nodes made while they run; the configuration gives the rest.
      lent: standbys made temporarily by a recovery.
    """

    version: Version
    configured: str
    roles: Mapping[PartitionId, Mapping[NodeId, Role]]
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    settings: Mapping[NodeId, NodeSettings] = field(default_factory=dict)
    lent: frozenset[ReplicaId] = frozenset()

    def over(self, configuration: Directory) -> Directory:
        """Returns the directory that results from this revision and a configuration.

        Raises:
          OtherConfiguration: the configuration gives other roles than the one that this revision is based on, or lacks
            a node; the error names it.
        """
        if self.configured != (current := roles_fingerprint(configuration)):
            raise OtherConfiguration(
                f"version {self.version} of the directory began with other roles ({self.configured}) than the"
                f" configuration has ({current}): who runs what is not changed in the file while a directory is in use"
            )
        nodes = {**configuration.nodes, **self.nodes}
        missing = sorted({n for roles in self.roles.values() for n in roles} - nodes.keys())
        if missing or self.roles.keys() != configuration.roles.keys():
            what = f"no node {', '.join(missing)}" if missing else "other partitions"
            raise OtherConfiguration(f"for version {self.version} of the directory the configuration has {what}")
        settings = {id: node_settings for id, node_settings in self.settings.items() if id in nodes}
        nodes |= {id: node_settings.over(nodes[id]) for id, node_settings in settings.items()}
        joined = {id: node for id, node in self.nodes.items() if id not in configuration.nodes}
        lent = frozenset(
            node_settings
            for node_settings in self.lent
            if self.roles[node_settings.of].get(node_settings.node) is Role.STANDBY
        )
        return replace(
            configuration,
            nodes=nodes,
            roles=self.roles,
            settings=settings,
            joined=joined,
            lent=lent,
            version=self.version,
        )

    def encode(self) -> bytes:
        """Returns the bytes to send and store.  Raises ValueError if they are too many."""
        roles = [
            (str(id.unit), id.partition, {str(n): r for n, r in nodes.items()}) for id, nodes in self.roles.items()
        ]
        settings = {str(id): replica for id, replica in self.settings.items()}
        lent = [(str(replica.unit), replica.partition, str(replica.node)) for replica in sorted(self.lent)]
        text = _DATA.dump_json(_Data(self.version, self.configured, roles, list(self.nodes.values()), settings, lent))
        data = bytes([REVISION_VERSION]) + zlib.compress(text)
        if len(data) > REVISION_BYTES or len(text) > _TEXT_BYTES:
            raise ValueError(f"a directory of {len(data)} bytes; at most {REVISION_BYTES}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Revision:
        """Decodes a revision.  Raises ValueError for other or damaged bytes, and for another version."""
        if data and (why := other_version("the directory", data[0], REVISION_VERSION)):
            raise ValueError(why)
        reader = zlib.decompressobj()
        try:
            text = reader.decompress(data[1:], _TEXT_BYTES)
            if not reader.eof or reader.unused_data:
                raise ValueError("a directory is cut, too large, or followed by something else")
            decoded = _DATA.validate_json(text)
        except (zlib.error, ValidationError) as error:
            raise ValueError(f"no directory: {str(error).splitlines()[0]}") from None
        roles = {PartitionId(unit, p): by_node for unit, p, by_node in decoded.roles}  # type: ignore[arg-type]
        version = Version(*decoded.version)
        if version <= CONFIGURED or len(roles) != len(decoded.roles):
            raise ValueError("a directory without a version, or with a partition twice")
        lent = frozenset(ReplicaId(*replica) for replica in decoded.lent)  # type: ignore[arg-type]
        if not {replica.of for replica in lent} <= roles.keys():
            raise ValueError("a directory that lends a role for a partition which it does not have")
        nodes = {node.id: node for node in decoded.nodes}
        return cls(version, decoded.configured, roles, nodes, decoded.settings, lent)  # type: ignore[arg-type]


def encode_node(node: Node) -> bytes:
    """Encodes a node's description of itself, for joining."""
    return _NODE.dump_json(node)


def decode_node(data: bytes) -> Node:
    """Decodes a node's description.  Raises ValueError for other bytes."""
    try:
        return _NODE.validate_json(data)
    except ValidationError as error:
        raise ValueError(f"no node: {str(error).splitlines()[0]}") from None


def revised(configuration: Directory, version: Version, changed: Directory) -> Revision:
    """Returns the revision that turns a configuration into the changed directory."""

    def is_new(node: Node) -> bool:
        known = configuration.nodes.get(node.id)
        return known is None or changed.settings.get(node.id, _AS_CONFIGURED).over(known) != node

    nodes = {id: changed.joined.get(id, node) for id, node in changed.nodes.items() if is_new(node)}
    return Revision(version, roles_fingerprint(configuration), changed.roles, nodes, changed.settings, changed.lent)


def roles_fingerprint(configuration: Directory) -> str:
    """Digest of the roles of all nodes; addresses, X and clients are not included."""
    roles: list[Any] = sorted((str(id), sorted(roles.items())) for id, roles in configuration.roles.items())
    return hashlib.blake2b(json.dumps(roles).encode(), digest_size=8).hexdigest()
