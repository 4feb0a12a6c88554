"""Mistakes where X, α and policies change while a cluster runs (X)."""

from __future__ import annotations

from consistency.dpc.up_failure import UpFailure
from consistency.dpc.waits import WaitMeter
from replicas.node.replica import Replica
from replicas.placement.deciders.moves import Moves
from replicas.placement.settings_change import SettingsChange
from replicas.simulation.world.cluster import SimCluster
from spe.plan.bound_changes import SharesInForce
from spe.plan.revision import Revision
from tests.mutants.patching import Edit, edited

edited(
    "another-x-at-the-next-start",
    "a node goes by another X, α or policy from its next start on (X1)",
    Edit(Replica, "redirect", "if not same_waits(node :=", "if not (node :="),
)
edited(
    "share-of-x-stays",
    "a unit keeps the whole X of its node when another one comes before or behind it (X1)",
    Edit(
        Replica, "redirect", "directory.share(self.plan, self.id.unit, self.id.node)", "directory.nodes[self.id.node]"
    ),
)
edited(
    "what-was-set-does-not-count",
    "who takes a version of the directory goes by the roles only (X1)",
    Edit(Revision, "over", "node_settings.over(nodes[id])", "nodes[id]"),
)
edited(
    "waits-for-a-longer-x-count",
    "what waited for the X before is measured against a shorter one (T8)",
    Edit(WaitMeter, "set_x", "if x_us < self._x_us:", "if False:"),
)
edited(
    "who-suspends-goes-on-so",
    "a replica that suspended gives nothing under another policy either (X3)",
    Edit(UpFailure, "_advance_suspended", "return self._resume_if_due(now)", "return False"),
)
edited(
    "refused-and-set",
    "a share of X that spe check would refuse is set all the same (X4)",
    Edit(SettingsChange, "__call__", "if why := self._refused(changed):", 'if why := "":'),
)
edited(
    "moves-to-a-node-do-not-count",
    "X is set though it will be too short when a move has ended (X4)",
    Edit(SettingsChange, "_refused", "for move in [None, *self.moves()]:", "for move in [None]:"),
)
edited(
    "a-move-is-checked-when-ordered-only",
    "a partition moves to a node that has had its X set, or got another one, since the order (X4)",
    Edit(Moves, "_wait", "if why := self.orders.why_not(", "if why := None and self.orders.why_not("),
)
edited(
    "judged-by-the-file",
    "results are judged by the X of the configuration (X5)",
    Edit(SimCluster, "in_force", "self.over_time, self.versions", "self.directory, {}"),
)
edited(
    "judged-by-the-x-of-its-beginning",
    "a result is judged by what was in force when it began, and not until it came (X5)",
    Edit(SharesInForce, "_grown", "while (us", "while False and (us"),
)
