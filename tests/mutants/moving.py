"""Mistakes in measuring loads, placing checkpoints and moving partitions (L, M); a unit test finds each."""

from __future__ import annotations

from replicas.node.load_meter import NodeMeter, ReplicaMeter
from replicas.node.orders import OrderFollower
from replicas.node.recovery import ReplicaRecovery
from replicas.node.replica import Replica
from replicas.placement.deciders.activation import Activation
from replicas.placement.deciders.balance import Balance
from replicas.placement.deciders.install import InstallDecider
from replicas.placement.deciders.move_orders import MoveOrders
from replicas.placement.deciders.moves import Moves
from replicas.placement.mover import Mover
from replicas.planning import placement, placement_problem, prediction, relief
from replicas.planning.balancing.balancer import Balancer
from replicas.planning.balancing.cluster import BalancedCluster
from replicas.planning.load import LoadHistory
from replicas.planning.relief import ReliefProblem
from replicas.planning.shares import SharesOfX
from tests.mutants.patching import Edit, edited

# --- loads ---

edited(
    "silence-is-no-load",
    "a partition that is silent counts with a load of 0 (L1)",
    Edit(LoadHistory, "mean", "samples = samples[~np.isnan(samples[:, 0])]", "samples = np.nan_to_num(samples)"),
)
edited(
    "silent-partition-lessens-its-node",
    "on its node a silent partition counts with 0 (L1)",
    Edit(
        LoadHistory,
        "together",
        "np.where(silent, np.nanmean(known, axis=1, keepdims=True), known)",
        "np.nan_to_num(known)",
    ),
)
edited(
    "what-does-not-vary-is-correlated",
    "a load that does not vary has a correlation (L2)",
    Edit(
        placement_problem,
        "correlations",
        "(variance_a > little_a) & (variance_b > little_b) & (many >= _LEAST)",
        "many >= _LEAST",
    ),
)
edited(
    "load-while-it-corrects",
    "a time in which a replica was not STABLE for a moment gives a sample (L1)",
    Edit(ReplicaMeter, "became", "self._was_stable and self._stable", "self._was_stable"),
)
edited(
    "rows-in-two-samples",
    "what has come counts in the next sample once more (L1)",
    Edit(ReplicaMeter, "take", "self._step_ns = self._rows = self._nbytes = self._memory", "self._memory"),
)
edited(
    "sample-with-every-heartbeat",
    "a replica that measures nothing goes on telling of its last sample (L1)",
    Edit(ReplicaMeter, "news", "self._told = True", "pass"),
)
edited(
    "time-is-load",
    "what others do to a machine counts as load, and what no step does is nobody's (L1)",
    Edit(NodeMeter, "look", "meter.step_ns() * share", "meter.step_ns() / (1_000 * span_us)"),
)

# --- checkpoints ---

edited(
    "checkpoint-beside-who-runs-it",
    "a node keeps the checkpoints of a partition that it runs (L2)",
    Edit(placement_problem, "_may", "[n for n in nodes if n not in hosts]", "list(nodes)"),
)
edited(
    "two-copies-on-a-node",
    "a node keeps two checkpoints of one partition (L2)",
    Edit(placement_problem, "checkpoint_problem", "~np.eye(len(checkpoints), dtype=np.bool_)", "False"),
)
edited(
    "standbys-divide-x",
    "two standbys of units in sequence lie on one node, where their shares of X would be too short (L2, M5)",
    Edit(placement_problem, "_divide", "conflicting.append(other)", "pass"),
)
edited(
    "standby-ignores-x",
    "a standby lies where its share of X would be too short (L2, M5)",
    Edit(placement_problem, "_may", "shares is not None", "False"),
)
edited(
    "domains-do-not-matter",
    "a checkpoint fails together with who runs its partition (L2)",
    Edit(placement_problem, "_may", "shared.get(n) == least", "n in shared"),
)
edited(
    "full-nodes-are-not-passed-over",
    "a node gets more checkpoint load than δ above the mean (L2)",
    Edit(placement._Regret, "_fits", "self._problem.most + _LITTLE", "np.inf"),
)
edited(
    "what-fits-nowhere-goes-where-it-costs-least",
    "what fits nowhere makes the fullest node fuller (L2)",
    Edit(
        placement._Regret,
        "_emptiest",
        "(self._loads[n], self._problem.cost[checkpoint, n])",
        "self._problem.cost[checkpoint, n]",
    ),
)
edited(
    "unmeasured-all-on-one-node",
    "before anything is measured one node gets all checkpoints (L2)",
    Edit(placement._Regret, "run", "self._counts[n], ", ""),
)
edited(
    "worst-gain-first",
    "the checkpoint moves first that gains least (L2)",
    Edit(placement, "relocations", "np.argmax", "np.argmin"),
)

edited(
    "nobody-makes-room-first",
    "only what could begin now is planned, so a node stays full that others could make room for (L5)",
    Edit(BalancedCluster, "solved", "leaving is None and state.full", "False"),
)

# --- moves ---

edited(
    "moves-that-never-catch-up",
    "a partition moves to where rows come in faster than they are taken in (L4)",
    Edit(prediction, "predict", "free <= load.cpu", "False"),
)
edited(
    "rows-that-come-meanwhile-are-free",
    "what comes in while a checkpoint is read need not be taken in (L4)",
    Edit(prediction, "predict", "checkpoint_age_s + read_s", "checkpoint_age_s"),
)
edited(
    "checkpoint-taken-however-old",
    "a checkpoint is read though a partner would be sooner (L4)",
    Edit(prediction, "predict", "return min(ways, key=lambda way: way.seconds)", "return ways[-1]"),
)
edited(
    "memory-has-no-cap",
    "memory has no cap (L5)",
    Edit(relief._Program, "_caps", "enumerate(problem.cap)", "enumerate(problem.cap[:1])"),
)
edited(
    "caps-hold-on-average",
    "the mean over nodes counts, and no node by itself (L5)",
    Edit(
        ReliefProblem, "load", "np.bincount(where, need, self.cap.shape[1])", "np.full(self.cap.shape[1], need.mean())"
    ),
)
edited(
    "fewest-moves",
    "the number of moves counts in the place of their seconds (L5)",
    Edit(relief._Program, "run", "self._problem.costs[pair]", "float(self._problem.costs[pair] > 0)"),
)
edited(
    "replicas-meet-on-a-node",
    "a partition moves to a node that runs it (L5)",
    Edit(relief._Program, "_apart", "(*moving_to.values(), *moving.values())", "moving.values()"),
)
edited(
    "refused-together-and-made",
    "moves are made together that are refused together (M5)",
    Edit(relief._Program, "_apart", "len(moves) - 1.0", "len(moves)"),
)
edited(
    "share-of-x-ignored",
    "a partition moves to where its share of X is too short (M5)",
    Edit(SharesOfX, "refused", "roles_of([*hosts.get(partition, ()), target])", "roles_of(hosts[partition])"),
)

# --- when, and who ---

edited(
    "one-period-is-enough",
    "a peak of one period moves partitions (L5)",
    Edit(Balancer, "_full", ">= PATIENCE", ">= 1"),
)
edited(
    "periods-need-not-follow",
    "two periods beyond a cap count though the one between them was within it (L5)",
    Edit(Balancer, "_end_period", "if id in beyond and known else 0", "if id in beyond else self._full_for.get(id, 0)"),
)
edited(
    "silent-node-is-empty",
    "a node that was silent for a period counts as empty (L1)",
    Edit(
        BalancedCluster,
        "load",
        "self.history.mean(partition, now) if latest is None",
        "LoadSample(0.0) if latest is None",
    ),
)
edited(
    "silent-cluster-is-idle",
    "a node drains while nobody knows what others need (L8)",
    Edit(Balancer, "_end_period", "len(heard) == len(self._cluster.running) and ", ""),
)
edited(
    "moved-partition-does-not-rest",
    "a partition goes to and fro (L5)",
    Edit(BalancedCluster, "rested", "moved_at is None or", "True or"),
)
edited(
    "two-moves-at-a-time",
    "a move begins while another one is under way (L5)",
    Edit(Balancer, "tick", "self._order is not None or not self._due", "not self._due"),
)
edited(
    "memory-of-nodes-ignored",
    "what memory a node has is not looked at (L5)",
    Edit(BalancedCluster, "_problem", "[r.memory for r in rooms]", "[inf for _ in rooms]"),
)
edited(
    "balance-ignores-x",
    "the balancer does not ask whether a target keeps its X (M5)",
    Edit(
        BalancedCluster,
        "predicted",
        "(reason := self._refused(self.running, partition, target)) is not None",
        "False",
    ),
)
edited(
    "drained-node-keeps-what-needs-nothing",
    "a node is drained while it runs a partition (L8)",
    Edit(BalancedCluster, "_problem", "np.ones(len(replicas))", "np.zeros(len(replicas))"),
)
edited(
    "dead-spare-joins",
    "a spare joins that does not answer (L8)",
    Edit(Balancer, "spares", " and node.alive", ""),
)
edited(
    "failed-move-is-tried-again",
    "a move that was dropped is ordered again at once (L5)",
    Edit(Balancer, "failed", "self._cluster.failed_at[order.partition, order.target] = now", "pass"),
)

# --- moves ---

edited(
    "installed-before-producers-know",
    "a target runs before its producers keep input for it (D3)",
    Edit(
        Moves,
        "_join",
        "if behind := self._view.behind({*self._view.producers(move.partition), move.target}):",
        'if behind := "":',
    ),
)
edited(
    "snapshot-restores-frontiers",
    "what an input has sent beyond a snapshot counts as here where that is installed, and its tuples are lost (A3)",
    Edit(
        Replica,
        "snapshot",
        '"positions": positions,',
        '"positions": positions, "frontiers": [one.frontier for one in self.sunion.inputs],',
    ),
    Edit(
        Replica,
        "install",
        "self._follows(origins_of(snapshot), now)",
        "self._follows(origins_of(snapshot), now)\n"
        '    for one, far in zip(self.sunion.inputs, snapshot["frontiers"]):\n'
        "        one.frontier = one.tentative_frontier = far",
    ),
)
edited(
    "whose-disk-it-is-does-not-matter",
    "what a node that joins has on its disk counts though it follows from other source logs (D4, S6)",
    Edit(ReplicaRecovery, "is_further", "list(stored.origins) == origins_of(snapshot)", "True"),
)
edited(
    "left-before-the-mark",
    "the source leaves before the target is as far as the others were (M3)",
    Edit(Moves, "_follow", "elif self._view.frontier(move.partition, move.target) < move.mark:", "elif False:"),
)
edited(
    "left-before-consumers-know",
    "the source leaves before all nodes know where its partition is now (M3)",
    Edit(Moves, "_follow", "elif behind := self._view.behind(self._view.directory.nodes):", 'elif behind := "":'),
)
edited(
    "begun-while-tentative",
    "a move begins though a replica is not STABLE (M1)",
    Edit(Moves, "_wait", "if unsteady or not states:", "if not states:"),
)
edited(
    "one-checkpoint-is-enough",
    "a standby leaves when its successor holds a single checkpoint (M4)",
    Edit(Moves, "_hold", "< _HELD", "< 1"),
)
edited(
    "who-runs-must-hold-checkpoints",
    "a standby that runs in the place of the dead must hold checkpoints, which it does not get (M4)",
    Edit(Moves, "_hold", "if move.target in states:", "if False:"),
)
edited(
    "a-dropped-target-keeps-its-role",
    "what was done for a move that is dropped is not taken back (M6)",
    Edit(Moves, "_drop", "if joined and self._role(move, move.target) is not None:", "if False:"),
)
edited(
    "the-last-replica-ends-with-its-move",
    "a move that ends, or is taken back, takes the replica of a node where nobody else is STABLE (M6)",
    Edit(Moves, "_without", "if runs_nothing or any(", "if True or any("),
)
edited(
    "taken-back-from-the-last-replica",
    "a move that is taken back as the source leaves takes the replica of the target where nobody else is STABLE (M6)",
    Edit(Moves, "_drop", " or self._without(move, move.target).lent", ""),
)
edited(
    "a-target-is-no-helper",
    "a target is retired as if it had only helped out (H5)",
    Edit(InstallDecider, "_orders", "wanted = wanted | coming", "pass"),
)

edited(
    "moves-onto-the-chosen-standby-never-end",
    "the source, now the standby that runs by choice, is waited for to retire (M4, H7)",
    Edit(Moves, "_leave", "move.was_standby and move.source in", "move.was_standby and None in"),
)
edited(
    "moves-of-the-chosen-standby-never-end",
    "the standby that runs by choice is still the chosen one when it is to leave (M4, H7)",
    Edit(Activation, "follow", "if ReplicaId(*id, node) not in passing", ""),
)
edited(
    "helpers-never-leave",
    "a standby that helped out runs for ever (H5)",
    Edit(InstallDecider, "_retire", 'return [Decision("retire", ReplicaId(*id, helping[-1]))]', "return []"),
)
edited(
    "who-recovers-for-ever-keeps-all-helpers",
    "no standby that helped out leaves while another one recovers (H5)",
    Edit(InstallDecider, "_retire", ".difference(recovering)", ""),
)
edited(
    "who-replays-is-retired",
    "a standby that replays for what nobody serves is told to stand by (H5, H8)",
    Edit(InstallDecider, "_retire", "bool(recovering) and self._is_waited_for(id)", "False"),
)
edited(
    "a-source-in-failure-never-leaves",
    "the source of a move that is not STABLE, and may never be, does not retire (M6)",
    Edit(InstallDecider, "_retire", "waited_for.discard(source)", "pass"),
)
edited(
    "a-source-leaves-nobody",
    "a source retires though the one that takes its place does not run (M4)",
    Edit(InstallDecider, "_retire", "{*meant, successor}", "meant"),
)
edited(
    "a-source-that-replays-leaves",
    "the source of a move retires while it replays for what nobody serves (H8)",
    Edit(
        InstallDecider,
        "_retire",
        "if not (replaying and partition.running[source] is NodeState.RECOVERING):",
        "if True:",
    ),
)
edited(
    "a-dead-target-is-waited-for",
    "a target that died as the source was to leave is waited for, with all other moves (M6)",
    Edit(Moves, "_leave", "if move.target not in self._view.alive:", "if False:"),
)
edited(
    "a-target-that-cannot-recover-is-waited-for",
    "a target that restarts as the source is to leave is waited for, with all other moves, however long it takes (M6)",
    Edit(Moves, "_leave", "if self._unready_us >= _in_vain_us(move):", "if False:"),
)
edited(
    "cancelled-while-the-source-retires",
    "a move is taken back though its source may have been told to retire a moment ago (M6)",
    Edit(Moves, "cancel", "self._unready_us < self._patience_us", "self._unready_since is None"),
)
edited(
    "cancelled-as-the-target-is-ready",
    "a move is taken back though its source may be told to retire just now (M6)",
    Edit(Moves, "look", "self._unready_since = None", "pass"),
)
edited(
    "retires-while-its-move-is-taken-back",
    "a source retires though its move is about to be taken back (M6)",
    Edit(Moves, "wanted", "runs = move.source", "runs = move.target"),
)
edited(
    "a-dead-replica-keeps-who-moves",
    "a source does not retire while another replica of its partition is dead (M1)",
    Edit(InstallDecider, "_retire", "if n in self._view.alive or n == successor", ""),
)
edited(
    "who-stands-in-never-moves",
    "a standby that runs in the place of a dead replica has no successor that runs, and does not leave (M4)",
    Edit(Moves, "wanted", "else self._stands_in(move)", "else False"),
)
edited(
    "standbys-for-a-while-are-chosen",
    "the target of a move is chosen to run by the budget (H7)",
    Edit(Moves, "passing", "standbys.add(ReplicaId(*move.partition, move.target))", "pass"),
)

# --- moves that follow from loads ---

edited(
    "a-drained-node-gets-load-back",
    "a node that people have drained is a target as any other (L8)",
    Edit(Balance, "_nodes", "self._balancer.stands_aside(node, spare)", "pass"),
)
edited(
    "what-people-moved-does-not-rest",
    "a partition that people have moved is moved again at once (L5)",
    Edit(Balance, "_ended", "self._balancer.rests(move.partition, ended_us)", "pass"),
)
edited(
    "a-helper-is-moved",
    "a partition that runs on a standby in the place of another is moved (M1)",
    Edit(Balance, "_refused", "if (nodes := self._elsewhere.get(partition)) is not None:", "if nodes := ():"),
)
edited(
    "a-full-node-is-a-target",
    "the partition that is to come is not counted (M5)",
    Edit(Balance, "full", "hosted = {partition, *(", "hosted = {*("),
)
edited(
    "the-partner-is-asked-all-the-same",
    "a target begins from a partner's snapshot though its own checkpoint would be sooner (L4)",
    Edit(OrderFollower, "_install", "made.replica.recovery.prefers_own = prefers_own", "pass"),
)
edited(
    "checkpoints-of-targets-are-not-known",
    "the balancer does not hear who holds checkpoints (L4)",
    Edit(Balance, "_checkpoints", "for partition, node in held | self._held:", "for partition, node in ():"),
)
edited(
    "standbys-move-while-one-stands-in",
    "standbys are placed by load while one of them runs in the place of another (M1)",
    Edit(Balance, "relocation", " or self._elsewhere", ""),
)
edited(
    "a-joined-node-has-any-room",
    "a node that has joined is taken for one of a single core (D4)",
    Edit(Balance, "_nodes", "self._balancer.knows(node, _room(settings))", "self._balancer.knows(node, NodeRoom())"),
)
edited(
    "something-moves-to-a-node-that-is-drained",
    "an order brings something to a node that another order empties (M1)",
    Edit(Mover, "_drain_of", "move.drain == node", "False"),
)
edited(
    "how-long-states-took-is-not-learned",
    "a move is expected to take what its state should, however slow links are (L4)",
    Edit(MoveOrders, "expected_us", "max(0.0, median(slopes)) if slopes else 1.0", "1.0"),
)
edited(
    "small-differences-count-for-large-states",
    "what a large state will take follows from chance (L4)",
    Edit(MoveOrders, "expected_us", "least = max([state_us / 2, 1.0,", "least = max([1.0,"),
)
