"""Features of random runs are drawn with the stated share, and present where they are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from replicas.faults.model import Fault
from replicas.simulation.features.balancing import SECONDS
from replicas.simulation.features.rejecting_operators import LAGGING
from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_faults import LASTING_LINKS, LASTING_X
from replicas.simulation.scenarios.random_scenario import features_of, random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.query.operators.aggregate import AggregateSpec
from spe.stream.schema import AttributeType

DRAWN = 4000
Drawn = list[tuple[Scenario, Deployed]]


@pytest.fixture(scope="module")
def drawn() -> Callable[[Feature], Drawn]:
    """The first scenarios that have a feature."""
    known: dict[Feature, Drawn] = {}

    def get(feature: Feature) -> Drawn:
        if feature not in known:
            seeds = [seed for seed in range(1000) if feature in features_of(seed)][:60]
            scenarios = [random_scenario(seed) for seed in seeds]
            known[feature] = [(s, load_data(s.config)) for s in scenarios]
        return known[feature]

    return get


@pytest.mark.parametrize("feature", Feature)
def test_a_feature_is_drawn_with_its_share(feature: Feature) -> None:
    met = sum(feature in features_of(seed) for seed in range(DRAWN))
    share = feature.share
    assert abs(met - DRAWN * share) <= 4 * (DRAWN * share * (1 - share)) ** 0.5


def test_most_runs_have_few_features() -> None:
    counts = Counter(len(features_of(seed)) for seed in range(DRAWN))
    assert sum(n for count, n in counts.items() if count <= len(Feature) // 2) > DRAWN / 2
    assert counts[0] > 0


def lasting(scenario: Scenario) -> list[Fault]:
    return [f for f in scenario.faults if f.kind == "cut"]


def test_lasting_cuts_take_ten_x_in_one_or_both_directions(drawn: Callable[[Feature], Drawn]) -> None:
    ways: Counter[bool] = Counter()
    sizes: Counter[int] = Counter()
    for scenario, (_, directory) in drawn(Feature.LASTING_LINKS):
        cuts = lasting(scenario)
        if {f.kind for f in scenario.faults} - {"cut", "kill", "power"}:
            continue  # there are too few links for a set
        assert LASTING_LINKS[0] <= len(cuts) <= LASTING_LINKS[1]
        x_us = max(node.x_us for node in directory.nodes.values())
        assert all(f.for_us is not None and f.for_us >= LASTING_X * x_us for f in cuts)
        assert max(f.at_us for f in cuts) - min(f.at_us for f in cuts) <= 500_000
        sizes[len(cuts)] += 1
        ways.update(f.one_way for f in cuts)
    assert set(sizes) == set(range(LASTING_LINKS[0], LASTING_LINKS[1] + 1))
    assert min(ways[True], ways[False]) > 20


def test_long_failure_has_long_correction_with_varied_faults(
    drawn: Callable[[Feature], Drawn],
) -> None:
    befell: Counter[str] = Counter()
    longest_us = 0
    for scenario, (_, directory) in drawn(Feature.LONG_CORRECTIONS):
        if Feature.LASTING_LINKS in features_of(scenario.seed):
            continue
        first, *rest = sorted(scenario.faults, key=lambda f: f.at_us)
        if first.for_us is None or first.for_us < 5_000_000:
            continue  # a node is left dead before
        assert first.kind == "cut"
        assert all(len(nodes) > 1 for nodes in directory.placement.values())
        assert scenario.options["turn_us"] > 5_000
        longest_us = max(longest_us, scenario.options["turn_us"])
        befell.update(f.kind for f in rest)
        befell["nothing"] += not rest
    assert min(befell["cut"], befell["kill"]) > 5
    assert befell["nothing"] > 0
    assert longest_us > 30_000


def test_mixed_nodes_differ_in_every_setting(drawn: Callable[[Feature], Drawn]) -> None:
    """Bucket and heartbeat are settings of the cluster, so they differ between clusters."""
    met: Counter[str] = Counter()
    buckets, heartbeats = set(), set()
    for _, (plan, directory) in drawn(Feature.MIXED_NODES):
        nodes = directory.nodes.values()
        met["x"] += len({n.x_us for n in nodes}) > 1
        met["policy"] += len({(n.during_failure, n.during_stabilization) for n in nodes}) > 1
        met["reconcile"] += len({n.reconcile for n in nodes}) > 1
        met["checkpoint"] += len({n.checkpoints for n in nodes}) > 1
        buckets.add(plan.bucket_us)
        heartbeats.add(plan.timing.heartbeat_us)
    assert all(met[setting] > 10 for setting in ("x", "policy", "reconcile", "checkpoint")), met
    assert len(buckets) == 5, "with that of long corrections"
    assert len(heartbeats) == 3


def test_long_checkpoints_are_further_apart_than_x(drawn: Callable[[Feature], Drawn]) -> None:
    for scenario, (_, directory) in drawn(Feature.LONG_CHECKPOINTS):
        plain = load_data({**scenario.config, "nodes": list(scenario.config["nodes"])})
        node = next(iter(plain.directory.nodes.values()))
        assert (node.checkpoints.every_us or 0) > node.x_us
        assert len(directory.nodes) == len(plain.directory.nodes)


def test_a_node_left_dead_leaves_each_partition_another_node(drawn: Callable[[Feature], Drawn]) -> None:
    found = 0
    for scenario, (_, directory) in drawn(Feature.LEFT_DEAD):
        left = [f for f in scenario.faults if f.kind in ("kill", "power") and f.for_us is None]
        for fault in left:
            found += 1
            assert all(set(directory.hosts(of)) - set(fault.first) for of in directory.placement)
    assert found > 40


def test_single_source_loses_its_log(drawn: Callable[[Feature], Drawn]) -> None:
    scenarios = drawn(Feature.LOST_LOGS)
    for scenario, (plan, _) in scenarios:
        wiped = [f.first for f in scenario.faults if f.kind == "wipe"]
        assert sum(hosts[0] in {f"source:{s}" for s in plan.sources} for hosts in wiped) == 1
    assert len(scenarios) > 20


def test_costly_state_takes_virtual_time(drawn: Callable[[Feature], Drawn]) -> None:
    assert all(scenario.state_ns() > 0 for scenario, _ in drawn(Feature.COSTLY_STATE))


def test_disks_hold_checkpoints_in_runs_with_faults_of_disks(drawn: Callable[[Feature], Drawn]) -> None:
    met: Counter[str] = Counter()
    for scenario, (_, directory) in drawn(Feature.DISKS):
        kinds = {f.kind for f in scenario.faults}
        met.update(kinds & {"slow-disk", "lie", "wipe"})
        if Feature.LONG_CHECKPOINTS not in features_of(scenario.seed):
            assert scenario.config["defaults"]["checkpoint"]["disk"]
        assert len(directory.nodes) > 0
    assert all(met[kind] >= 5 for kind in ("slow-disk", "lie", "wipe")), met


def test_extremes_reach_every_type_and_operator(drawn: Callable[[Feature], Drawn]) -> None:
    met: Counter[str] = Counter()
    for scenario, (plan, _) in drawn(Feature.EXTREMES):
        for source in plan.sources.values():
            assert source.reader["extremes"] > 0
            assert {str(a.type) for a in source.schema} == {str(t) for t in AttributeType}
        for entry in scenario.config["query"].values():
            ((operator, body),) = entry.items()
            met.update([operator] if "text" in str(body) or "stamp" in str(body) else [])
    assert {"filter", "aggregate"} <= set(met)


def test_clients_have_a_sink_of_each_mode_and_die(drawn: Callable[[Feature], Drawn]) -> None:
    met: Counter[str] = Counter()
    for scenario, (_, directory) in drawn(Feature.CLIENTS):
        assert all({s["mode"] for s in c.sinks} == {"stable", "corrections"} for c in directory.clients.values())
        met.update(f.kind for f in scenario.faults if f.first[:1] and f.first[0].startswith("client:"))
    wanted = ("kill", "power", "restart", "lie", "wipe", "slow-disk")
    assert all(met[kind] >= 3 for kind in wanted), met


def test_other_plans_vary_and_affect_every_role(drawn: Callable[[Feature], Drawn]) -> None:
    changes: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    for scenario, _ in drawn(Feature.OTHER_PLANS):
        for fault in scenario.faults:
            if fault.kind == "replan" and fault.change != "checkpoints":
                changes[fault.change] += 1
                roles[fault.first[0].partition(":")[0] if ":" in fault.first[0] else "node"] += 1
    assert set(changes) == {"query", "bucket", "limits", "timing"}
    assert set(roles) == {"node", "source", "client"}


def test_old_checkpoints_of_running_standbys_are_damaged() -> None:
    times: Counter[bool] = Counter()
    for seed in range(40):
        scenario = random_scenario(seed, frozenset({Feature.OLD_CHECKPOINTS}))
        directory = load_data(scenario.config).directory
        assert directory.coordinator.budget == len(directory.standbys) == len(directory.placement)
        (flip,) = [f for f in scenario.faults if f.kind == "flip"]
        (standby,) = flip.first
        backed = [of for of, standbys in directory.standbys.items() if standby in standbys.nodes]
        primaries = {str(n) for of in backed for n in directory.placement[of]}
        died = {f.first[0]: f for f in scenario.faults if f.kind == "kill" and f.for_us is not None}
        assert set(died) == {standby, *primaries}
        assert all(0 <= f.at_us - flip.at_us <= 150_000 for f in died.values())
        assert all(died[n].for_us > died[standby].for_us for n in primaries)  # type: ignore[operator]
        times[any(died[n].at_us < died[standby].at_us for n in primaries)] += 1
    assert min(times[True], times[False]) > 3


def test_a_feed_changes_as_the_same_input_fails_again_and_again() -> None:
    kinds: Counter[str] = Counter()
    differ = 0
    for seed in range(40):
        scenario = random_scenario(seed, frozenset({Feature.CHANGING_FEEDS}))
        plan, directory = load_data(scenario.config)
        assert any(i.stream not in plan.sources for unit in plan.units for i in unit.inputs)
        assert all(len(nodes) > 1 for nodes in directory.placement.values())
        assert scenario.turn_us() > 5_000
        differ += len({n.x_us for n in directory.nodes.values()}) > 1
        of_source = [f for f in scenario.faults if f.first[0].startswith("source:")]
        assert len({f.first for f in of_source}) == 1
        for one, another in pairwise(of_source):
            assert one.for_us is not None
            assert 0 <= another.at_us - one.at_us - one.for_us <= 0.3 * one.for_us
        kinds.update(f.kind for f in scenario.faults)
    assert differ > 30
    assert all(kinds[kind] > 5 for kind in ("cut", "stall", "freeze", "kill")), kinds


def test_replicas_with_logs_die_together_and_change_checkpoints(drawn: Callable[[Feature], Drawn]) -> None:
    changed: list[int] = []
    together = 0
    for scenario, (_, directory) in drawn(Feature.LOGS):
        changed += [len(f.first) for f in scenario.faults if f.change == "checkpoints"]
        down = [f for f in scenario.faults if f.kind in ("kill", "power")]
        for nodes in {directory.placement[of] for of in directory.logs}:
            times = [{f.at_us for f in down if str(n) in f.first} for n in nodes]
            together += len(nodes) > 1 and bool(set.intersection(*times))
    assert changed.count(1) > 3
    assert max(changed) > 1
    assert together > 3


def test_nodes_join_get_partitions_and_suffer_faults(drawn: Callable[[Feature], Drawn]) -> None:
    done: Counter[str] = Counter()
    befell: Counter[str] = Counter()
    again = 0
    for scenario, (_, directory) in drawn(Feature.JOINING):
        assert directory.coordinated
        joins = scenario.joins()
        begins: dict[str, int] = {}
        for entry in joins:
            done[entry["do"]] += 1
            again += entry["do"] == "join" and entry["node"] in begins
            begins.setdefault(entry["node"], entry["at_us"])
            assert joins[0]["do"] == "join", "nothing is ordered before there is somebody"
        newcomers = scenario.newcomers()
        assert newcomers.keys() == begins.keys()
        assert not newcomers.keys() & directory.nodes.keys()
        assert all(at_us < scenario.heal_us // 2 for at_us in begins.values()), "there is time left for more"
        befell.update(f.kind for f in scenario.faults if newcomers.keys() & {*f.first, *f.second})
    assert min(done["move"], done["drain"], done["leave"]) > 20, done
    assert again > 5
    kinds = ("kill", "power", "wipe", "cut", "freeze", "restart")
    assert all(befell[kind] >= 5 for kind in kinds), befell


def test_aggregates_by_lagging_time_reject_and_some_rows_fail(drawn: Callable[[Feature], Drawn]) -> None:
    met: Counter[str] = Counter()
    for scenario, (plan, _) in drawn(Feature.REJECTED):
        late = [o for o in plan.query.operators if isinstance(o.spec, AggregateSpec) and o.spec.rejects]
        assert late
        for operator in late:
            ((_, body),) = scenario.config["query"][str(operator.name)].items()
            ((_, lagging),) = scenario.config["query"][body["from"]].items()
            assert lagging["class"] == LAGGING
            assert body["window"]["on"] == "seen"
            met["several windows"] += "slide" in body["window"]
            met["fails"] += lagging.get("on_error") == "skip"
        met["two"] += len(late) == 2
        logged = [f for f in scenario.config["fragments"].values() if "continuous" in (f.get("checkpoint") or ())]
        met["logged"] += any(str(o.name) in f["operators"] for f in logged for o in late)
    assert min(met["several windows"], met["fails"]) > 15, met
    assert met["two"] > 5
    assert met["logged"] > 2


def test_loads_cover_all_partitions_and_overload_some_node(
    drawn: Callable[[Feature], Drawn],
) -> None:
    full = shifted = later = spare = 0
    for scenario, (plan, directory) in drawn(Feature.BALANCING):
        assert directory.coordinator.balance_us is not None
        partitions = {str(of) for of in directory.placement}
        first = {entry["partition"]: entry["row_ns"] for entry in scenario.row_ns() if not entry["at_us"]}
        assert first.keys() == partitions
        assert {entry["partition"] for entry in scenario.row_ns()} == partitions
        rows = sum(source.reader["rate"] for source in plan.sources.values())
        cores = {of: first[str(of)] * rows / plan.unit[of.unit].partitions / 1e9 for of in directory.placement}
        nodes = [sum(cores[of] for of, nodes in directory.placement.items() if n in nodes) for n in directory.nodes]
        full += max(nodes) > directory.coordinator.cap
        shifted += any(entry["at_us"] for entry in scenario.row_ns())
        later += min((f.at_us for f in scenario.faults), default=0) >= 12_000_000
        spare += any(str(n).startswith("reserve") for n in directory.nodes)
        assert scenario.heal_us == SECONDS * 1_000_000
    assert min(full, shifted, later, spare) > 12, (full, shifted, later, spare)


def test_where_room_is_short_a_standby_often_has_too_little(drawn: Callable[[Feature], Drawn]) -> None:
    short = 0
    for scenario, (_, directory) in drawn(Feature.SHORTAGE):
        assert bool(directory.recovery.loads) == bool(directory.standbys)
        for node, own in directory.nodes.items():
            hosted = [id for id in directory.roles if node in directory.hosts(id)]
            needed = sum(directory.recovery.loads[id.unit].cores[0] for id in hosted if directory.standbys)
            short += needed > own.capacity * directory.coordinator.cap
        if directory.standbys:
            left = [f for f in scenario.faults if f.kind in ("kill", "power") and f.for_us is None]
            assert not left, "what waits for a dead node would wait for ever"
    assert short > 10
