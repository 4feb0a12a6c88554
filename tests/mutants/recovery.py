"""Mistakes in the order of recovery (rules O1-O6).

One that the design names cannot be made: that a partition's number of queries is not reduced as queries are chosen.
While a partition is not chosen, no query that needs it is, so the number stays.
"""

from __future__ import annotations

from replicas.checkpoint.taker import CheckpointTaker
from replicas.node.recovery import ReplicaRecovery
from replicas.placement.deciders.install import InstallDecider
from replicas.placement.deciders.lending import Lending
from replicas.placement.deciders.needs import PartitionNeeds
from replicas.placement.deciders.recovery_order import RecoveryOrder
from replicas.placement.deciders.replay import ReplayDecider
from replicas.placement.deciders.room import RestoringRoom
from replicas.planning.recovery import choosing, ordering, placing
from replicas.planning.recovery.goals import CompleteQueries
from replicas.planning.recovery.placing import _Placing
from replicas.planning.recovery.schedule import RecoverySchedule
from spe.plan.revision import Revision
from tests.mutants.patching import Edit, edited

edited(
    "intersection-for-union",
    "of what several queries need only that is recovered which all of them need, as the paper prints it (O3)",
    Edit(choosing.Unions, "members", "any(axis=0)", "all(axis=0)"),
)
edited(
    "shared-cost-counted-twice",
    "what a chosen query needs as well is paid for again (O3)",
    Edit(choosing, "densest", "extra = lacking @", "extra = np.ones(lacking.shape) @"),
)
edited(
    "sharing-ignored",
    "density does not know that other queries need a partition too (O3)",
    Edit(choosing, "densest", "needs * short.shares", "needs * short.cost"),
)
edited(
    "only-the-densest-start",
    "of single queries only the densest is a start, as in the paper (O3)",
    Edit(choosing, "_starts", "singles, pairs])", "singles[:1], pairs])"),
)
edited(
    "priority-ignored",
    "all queries count the same (O2)",
    Edit(CompleteQueries, "shortage", "self.priority[feasible]", "np.ones(feasible.sum())"),
)
edited(
    "most-value-first-however-long-it-takes",
    "the order does not know how long a partition takes (O4)",
    Edit(ordering, "best_order", "unions @ work", "unions.sum(axis=1)"),
)
edited(
    "room-averaged-over-nodes",
    "what fits into the mean room is put on a node that has less (O5)",
    Edit(
        _Placing,
        "_place",
        "if self._room[n] >= cost",
        "if sum(self._room.values()) / len(self._room) >= cost",
    ),
)
edited(
    "room-that-completes-nothing-stays-empty",
    "nothing is begun that does not complete a query at once (O4)",
    Edit(_Placing, "begin_next", "rest = ~self._alive", "rest = np.zeros(len(self._alive), np.bool_)"),
)
edited(
    "shadows-not-counted",
    "what runs without results of its own takes no room (O1)",
    Edit(RecoverySchedule, "room", "self._running[node] | self._shadows[node] |", "self._running[node] |"),
)
edited(
    "no-plan-on-arrival",
    "a node that comes is filled by the old plan (O6)",
    Edit(RecoverySchedule, "came", "self._stale = True", "self._stale |= False"),
)
edited(
    "running-ones-ordered-again",
    "what is being installed counts as missing (O6)",
    Edit(RecoverySchedule, "problem", "self.running | self._mask(self.ordered)", "self.running"),
)
edited(
    "orders-of-a-dead-node-stay",
    "what was to run on a node that went is waited for (O6)",
    Edit(RecoverySchedule, "_forget", "if where != node", "if where"),
)
edited(
    "silence-is-load-0",
    "a partition that was not measured has no load (O1)",
    Edit(
        RecoverySchedule,
        "measured",
        "in loads.items()",
        "in {**dict.fromkeys(range(len(self._load)), 0.0), **loads}.items()",
    ),
)
edited(
    "an-old-checkpoint-fetched",
    "a partition starts from an older checkpoint than the newest (O5)",
    Edit(RecoverySchedule, "_newest", "max(held.values())", "min(held.values())"),
)
edited(
    "who-waits-for-input-holds-up-its-node",
    "a node begins nothing while what it restored last waits for a lost input (O6)",
    Edit(RecoverySchedule, "dispatch", "if not (self._reads[partition] & ~running).any()", ""),
)
edited(
    "several-restored-at-once",
    "a node is told at once to restore all that the plan has for it (O6)",
    Edit(RecoverySchedule, "dispatch", "if install.node not in busy:", "if True:"),
)
edited(
    "half-a-tree-first-however-soon-the-rest-comes",
    "a partition is restored before what it reads, though it goes on without that only after αX (O4)",
    Edit(placing, "_fed_first", "> problem.partial_after", ">= 0"),
)

# --- in the coordinator ---

edited(
    "shortage-is-not-seen",
    "all that is lost is restored at once, whatever room there is (O1)",
    Edit(RestoringRoom, "fits", "return all(", "return True or all("),
)
edited(
    "what-is-not-measured-now-needs-nothing",
    "a partition that was measured before, and is silent now, has no load (O1)",
    Edit(PartitionNeeds, "measured", "self.load |= loads", "self.load = {**dict.fromkeys(self.load, 0.0), **loads}"),
)
edited(
    "the-next-coordinator-knows-no-loads",
    "a coordinator that begins restores at once what its predecessor knew to need much (O1)",
    Edit(PartitionNeeds, "__init__", "self.measured(self._kept)", "pass"),
)
edited(
    "second-replica-takes-the-room",
    "a standby that is to run beside others begins while nobody serves what waits for room (O6)",
    Edit(InstallDecider, "_orders", "wanted = wanted & partition.running.keys()", "pass"),
)
edited(
    "who-lacks-a-state-waits-for-room",
    "a replica that lacks its state is not helped by the standby that has it (O6, H8)",
    Edit(RecoveryOrder, "look", " and not partition.lacking", ""),
)
edited(
    "who-refuses-is-waited-for",
    "a node that refused an order counts as if it carried it out (O6)",
    Edit(RecoveryOrder, "refused", "del self._room.pending[replica.of]", "pass"),
)
edited(
    "who-restores-in-vain-is-waited-for",
    "a node that never comes to an end with what it restores keeps it for ever (O6)",
    Edit(RecoveryOrder, "_given_up", "return left if", "return one if"),
)
edited(
    "what-nobody-can-restore-spreads",
    "what no node comes to an end with is given to one after the other, and fills them all (O6)",
    Edit(RecoveryOrder, "_given_up", "len(partition.recovering) < 2 and ", ""),
)
edited(
    "lost-input-is-held-against-who-restores",
    "what waits for lost input is restored on one node after the other (O6)",
    Edit(RecoveryOrder, "_note_restoring", "not self._reads[id] <= served or ", ""),
)
edited(
    "lost-source-is-held-against-who-restores",
    "what waits for a source that is away is restored on a second node, and takes room twice (O6)",
    Edit(RecoveryOrder, "_note_restoring", " or not all(map(self._view.answers, self._needs.sources[id]))", ""),
)
edited(
    "progress-of-who-restores-does-not-count",
    "a slow replica that gets further is given up (O6)",
    Edit(RecoveryOrder, "_note_restoring", "waits or frontier > furthest", "waits"),
)
edited(
    "only-standbys-restore",
    "what standbys have no room for waits, though another node has (O5)",
    Edit(RestoringRoom, "may_run", "*(n for n in others if", "*(n for n in () if"),
)
edited(
    "x-of-who-restores-is-not-asked",
    "a node restores what its X is too short for (O5)",
    Edit(RestoringRoom, "_may_have", "is None", "is None or True"),
)
edited(
    "memory-of-who-restores-is-not-asked",
    "a node restores what it has no memory for (O5)",
    Edit(RestoringRoom, "_has_memory", "return self", "return True or self"),
)
edited(
    "what-no-node-has-memory-for-is-installed",
    "a partition that no node has memory for runs on its first standby all the same (O5)",
    Edit(RecoveryOrder, "look", "if (partition.able or may[id]) and", "if may[id] and"),
    Edit(RecoveryOrder, "_hold", "elif partition.able or may[id]:", "elif may[id]:"),
)
edited(
    "lent-role-used-before-it-is-known",
    "a node restores what producers do not know that it reads (O5, D3)",
    Edit(RecoveryOrder, "_hold", " and not self._view.know(id, replica.node)", " and False"),
)
edited(
    "lent-role-stays",
    "a node stays a standby of what it restored for a while (O5)",
    Edit(Lending, "step", "and spared(replica)", "and False"),
)
edited(
    "who-is-silent-runs-nothing",
    "a node that is cut off from the coordinator only ends the one replica that lacks nothing (O5)",
    Edit(InstallDecider, "spared", "NodeState.STABLE in others", "bool(others)"),
)
edited(
    "who-was-not-heard-is-silent",
    "a coordinator that begins takes back the role of a node that it has not heard yet (O5)",
    Edit(InstallDecider, "spared", "self._view.is_gone(node, now)", "True"),
)
edited(
    "the-next-coordinator-does-not-know-what-was-lent",
    "a role that a coordinator lent stays when the coordinator dies (O5)",
    Edit(Revision, "over", "lent=lent,", ""),
)
edited(
    "what-a-standby-holds-counts-as-new",
    "a standby takes what another one holds for a checkpoint of what runs (O5, H2)",
    Edit(CheckpointTaker, "_take", "if is_held(snapshot):", "if False:"),
)
edited(
    "what-is-lost-needs-what-it-needed",
    "a source that gives more changes nothing of what lost partitions are thought to need (O6)",
    Edit(PartitionNeeds, "fed", "self.load |= loads", "pass"),
)
edited(
    "no-plan-when-a-source-changes",
    "the order stays as it was under the rates of before (O6)",
    Edit(RecoverySchedule, "revalue", "self._stale = True", "pass"),
)
edited(
    "who-is-stranded-says-nothing",
    "a replica that can go on from nothing waits without a word (A3)",
    Edit(ReplicaRecovery, "stranded", "else self.missing()", "else []"),
)
edited(
    "said-before-anybody-could-help",
    "a replica says at once that nobody can help it (A3)",
    Edit(ReplicaRecovery, "stranded", "waited < self._node.x_us or", "False or"),
)
edited(
    "replays-from-another-log",
    "everything replays though a source has another log than the one that it was made from (H8, S6)",
    Edit(ReplayDecider, "replays", ' if outputs.origin in ("", origin)', ""),
)
edited(
    "who-is-cut-off-replays",
    "a replica without its input is told to begin anew, though another one has it (H8)",
    Edit(ReplayDecider, "_to_replay", "(_CAN_REPLAY.index(made[n].state), n)", "n"),
)
edited(
    "two-replay",
    "another replica is told to begin anew before the first one has (H8)",
    Edit(ReplayDecider, "_to_replay", "[n for n in ordered if n not in in_vain] or ", ""),
)
edited(
    "who-stands-still-is-waited-for",
    "a replica that was to begin anew, and makes nothing, is waited for without an end (H8)",
    Edit(ReplayDecider, "_replays_in_vain", "return now - since >= REPLAYS_IN_VAIN_US", "return False"),
)
edited(
    "who-waits-for-a-replay-stands-still",
    "what waits for a replay upstream is taken for useless (H8)",
    Edit(ReplayDecider, "_replays_in_vain", " or waits", ""),
)
