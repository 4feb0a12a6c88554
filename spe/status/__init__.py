"""Status of a process, for ``spe status``, the live view, and readers of their JSON.

There is a class for each kind of process, distinguished by ``kind``, and a module for each.  On the wire and as JSON a
status is a map with the names of the fields; docs/reference/status.md is generated from the docstrings here.

A received status is checked field by field.  A missing field, or one of another type, is an error.  An undeclared field
is ignored: a later version may add fields without a new version of the protocol.
"""

from spe.status.client_status import *  # noqa: F403
from spe.status.cluster_status import *  # noqa: F403
from spe.status.coordinator_status import *  # noqa: F403
from spe.status.node_status import *  # noqa: F403
from spe.status.process_status import *  # noqa: F403
from spe.status.source_status import *  # noqa: F403
