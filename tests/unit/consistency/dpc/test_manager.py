"""One unit replica through failures: buckets of 10, X = 40, αX = 30, hard limit 35."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from consistency.dpc.events import (
    Action,
    Advance,
    Announce,
    ClearSuffix,
    Configure,
    Emit,
    Event,
    Grant,
    InstallSnapshot,
    Interrupt,
    LogRequest,
    PartnerAsks,
    PartnerGrants,
    Proceed,
    Reject,
    SliceToLog,
)
from consistency.dpc.instance import Checkpoint, Instance
from consistency.dpc.manager import DpcManager
from consistency.dpc.partners import Ask, Partners
from consistency.dpc.stabilization import Stabilization
from operators.rejections import Rejection
from operators.sunion.sunion import SUnion
from spe.plan.nodes import Checkpoints, Node, Policy, Reconcile
from spe.plan.plan import InputStream, Limits, Unit
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.union import UnionSpec
from spe.query.query import QueryOperator
from spe.query.windows import TumblingWindow
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.names import Kind, NodeId, NodeState, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.support.operators import step_sizes

SCHEMA = Schema.of(x="string")
IN = (StreamId("in0"), StreamId("in1"))
OUT = StreamId("out")
NO_CHECKPOINTS = Checkpoints()
UNIT = Unit(
    id=UnitId("u"),
    fragment="f",
    inputs=tuple(InputStream(s, SCHEMA, 1, None) for s in IN),
    operators=(QueryOperator(OUT, UnionSpec(IN), SCHEMA),),
    outputs=(OUT,),
    partitions=1,
)


_ALL = StreamId("all")
_COUNT = AggregateSpec(_ALL, TumblingWindow(100), {}, {"n": AggregateCall("count")})
COUNTING = replace(
    UNIT,
    operators=(QueryOperator(_ALL, UnionSpec(IN), SCHEMA), QueryOperator(OUT, _COUNT, _COUNT.output_schema([SCHEMA]))),
)


@pytest.fixture(autouse=True, params=Reconcile)
def reconcile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with both ways to roll back tentative state, checkpoint and undo (R9)."""
    monkeypatch.setattr(World, "reconcile", request.param)


class World:
    """Everything around a replica: records its output, and answers its questions from plain attributes."""

    #: How the replica rolls back tentative state: checkpoint or undo.
    reconcile = Reconcile.CHECKPOINT
    #: Rows per input in one step.
    slice_rows = Limits().slice_rows

    def __init__(
        self,
        *,
        unit: Unit = UNIT,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
        failure: Policy = Policy.PROCESS,
        stabilization: Policy = Policy.PROCESS,
        partners: Sequence[str] = ("n2",),
        redo_bytes: int = 1 << 30,
        logs: bool = False,
    ) -> None:
        self.unit = unit
        self.out: list[str] = []
        self.states: list[str] = []
        self.rejections: list[Rejection] = []
        self.live = [True, True]
        self.asks: list[Ask] = []
        #: Ends of the slices that the checkpoint log got.
        self.logged: list[int] = []
        self.blocked = False
        self.upstream_is_full = False
        self.sunion = SUnion(inputs=[(0, True), (1, True)], streams=2, bucket_us=10)
        self.replica = DpcManager(
            unit,
            self.sunion,
            Node(NodeId("n1"), "", 40, 0.75, failure, stabilization, self.reconcile, checkpoints),
            outputs=self,
            inputs=self,
            partners=Partners("n1", partners, request_us=500, random=Random(0)),
            redo_bytes=redo_bytes,
            slice_rows=self.slice_rows,
            logs=logs,
        )
        #: The states that partners announced last; a running partner can stand in (K6).
        self.partner = self.replica.partners.told
        for partner in partners:
            self.replica.partners.heard(partner, NodeState.UP_FAILURE, stands_in=True)

    # Actions
    def handle(self, event: Event, now: int) -> list[Action]:
        """Performs what leaves by the outputs; returns the other actions."""
        left = []
        for action in self.replica.handle(event, now):
            match action:
                case Emit(Kind.STABLE, output, elements):
                    self.stable(output, elements)
                case Emit(_, output, elements):
                    self.tentative(output, elements)
                case Reject(rejections):
                    self.rejections += rejections
                case ClearSuffix():
                    self.clear_suffix()
                case Announce(state, fresh):
                    self.announce(state, fresh)
                case SliceToLog(end):
                    self.logged.append(end)
                    self.ask_log()
                case Interrupt(error):
                    raise error
                case _:
                    left.append(action)
        return left

    def stable(self, output: int, elements: Sequence[Element]) -> None:
        self._write("S", "B", elements)

    def tentative(self, output: int, elements: Sequence[Element]) -> None:
        self._write("T", "b", elements)

    def clear_suffix(self) -> None:
        self.out.append("clear")

    def announce(self, state: NodeState, fresh: bool) -> None:
        self.states.append(state.name + ("+fresh" if fresh else ""))

    def advance(self, now: int) -> tuple[bool, Ask | None]:
        """One step; returns whether more is waiting, and which partner is to be asked."""
        left = self.handle(Advance(), now)
        return Proceed() in left, next((a for a in left if isinstance(a, Ask)), None)

    def ask_log(self) -> None:
        """The checkpoint log asks for the slice behind its newest one, and again once it has that."""
        self.replica.handle(LogRequest(BEFORE_TIME, 0, max(self.logged, default=BEFORE_TIME)), 0)

    def partner_asks(self, asker: str, now: int) -> bool:
        return Grant() in self.handle(PartnerAsks(asker), now)

    def install(self, checkpoint: Checkpoint, positions: Sequence[int]) -> None:
        self.handle(InstallSnapshot(checkpoint, positions), 0)

    @property
    def redo(self) -> Instance:
        assert isinstance(self.replica._mode, Stabilization)
        return self.replica._mode.redo

    @property
    def is_working(self) -> bool:
        return self.replica._run.work.open is not None

    # OutputsView
    def full(self) -> bool:
        return self.blocked

    # InputsView
    def fresh(self, now: int) -> Sequence[bool]:
        return self.live

    def arriving(self, now: int) -> bool:
        return all(self.live)

    def caught_up(self) -> bool:
        return True

    def started(self, now: int) -> bool:
        return True

    def upstream_full(self) -> bool:
        return self.upstream_is_full

    def _write(self, tuples: str, boundary: str, elements: Sequence[Element]) -> None:
        for element in elements:
            if isinstance(element, Batch):
                ids = element.row_ids().tolist()
                for id, time, (*_, x) in zip(ids, element.rows.time.tolist(), element.rows.to_tuples(), strict=True):
                    self.out.append(f"{tuples}{id if tuples == 'S' else ''}/{time}{x}")
            elif isinstance(element, Boundary):
                self.out.append(f"{boundary}{element.time}" + (f"({element.upto_id})" if boundary == "B" else ""))

    # events
    def S(self, at: int, now: int, *rows: tuple[int, str]) -> None:
        one = self.sunion.inputs[at]
        first = one.position
        made = Rows.from_tuples(SCHEMA, [t for t, _ in rows], [(x,) for _, x in rows])
        one.add_stable(Batch(Kind.STABLE, first, first + len(rows), None, made), now)

    def T(self, at: int, now: int, *rows: tuple[int, str]) -> None:
        made = Rows.from_tuples(SCHEMA, [t for t, _ in rows], [(x,) for _, x in rows])
        self.sunion.inputs[at].add_tentative(Batch(Kind.TENTATIVE, 0, len(rows), None, made), now)

    def B(self, at: int, now: int, time: int) -> None:
        one = self.sunion.inputs[at]
        one.add_boundary(Boundary(Kind.STABLE, time, one.position), now)

    def b(self, at: int, now: int, time: int) -> None:
        self.sunion.inputs[at].add_boundary(Boundary(Kind.TENTATIVE, time, 0), now)

    def run(self, now: int) -> str:
        """Advances until nothing more can be done; returns the output since the last call."""
        more = True
        while more:
            more, ask = self.advance(now)
            self.replica.validate()
            self.replica.validate_rows()
            if ask is not None:
                self.asks.append(ask)
        text, self.out = " ".join(self.out), []
        return text

    def change(self, now: int, **settings: Any) -> None:
        self.handle(Configure(replace(self.replica._run.node, **settings)), now)

    def grant(self, now: int) -> None:
        self.handle(PartnerGrants(self.asks[-1].number), now)


def stable_until_ten(world: World) -> World:
    for at in (0, 1):
        world.B(at, 100, 10)
    assert world.run(100) == "B10(0)"
    assert world.states[-1] == "STABLE"
    return world


def failing(world: World) -> World:
    """Up to 120: in1's connection is gone, in0 has sent x at 15 and y at 24; the clock of [10, 20) started at 100."""
    stable_until_ten(world)
    world.live[1] = False
    world.S(0, 105, (15, "x"))
    world.B(0, 110, 20)
    world.S(0, 114, (24, "y"))
    world.B(0, 120, 30)
    assert world.run(129) == ""
    return world


def tentative(world: World) -> World:
    failing(world)
    assert world.run(130) == "T/15x T/24y b30"
    assert world.states[-1] == "UP_FAILURE"
    return world


def healed(world: World) -> World:
    """At 150 both inputs are complete up to 50: in1 has sent u at 12 and v at 18."""
    tentative(world)
    world.live[1] = True
    world.B(0, 150, 50)
    world.S(1, 150, (12, "u"), (18, "v"))
    world.B(1, 150, 50)
    return world


class TestGoingTentative:
    def test_process_releases_everything_that_is_complete(self) -> None:
        """At 130, αX after its clock started, with all later buckets that in0 has finished."""
        world = tentative(World())
        assert world.sunion.cursors.restart == 10

    def test_delay_holds_each_bucket_for_alpha_x(self) -> None:
        """The clock of [20, 30) started ten later."""
        world = failing(World(failure=Policy.DELAY))
        assert world.run(130) == "T/15x b20"
        assert world.run(139) == ""
        assert world.run(140) == "T/24y b30"

    def test_suspend_announces_and_sends_nothing(self) -> None:
        """When all is stable again, it is STABLE at once."""
        world = failing(World(failure=Policy.SUSPEND))
        assert world.run(130) == ""
        assert world.states[-1] == "UP_FAILURE"
        assert not world.sunion.tainted
        world.live[1] = True
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 30)
        assert world.run(150) == "S1/12u S2/15x S3/24y B30(3)"
        assert world.states[-1] == "STABLE"

    def test_suspended_replica_is_stable_without_late_buckets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """T3: its reader would wait for all that came in since."""
        monkeypatch.setattr(World, "slice_rows", 1)
        world = failing(World(failure=Policy.SUSPEND))
        assert world.run(130) == ""
        world.live[1] = True
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 30)
        assert world.advance(150)[0], "there is more"
        assert world.out
        assert world.states[-1] == "UP_FAILURE"
        world.run(150)
        assert world.states[-1] == "STABLE"

    def test_a_failure_shorter_than_alpha_x_is_masked(self) -> None:
        """in1 is complete again five before αX is over."""
        world = failing(World())
        world.S(1, 125, (12, "u"))
        world.B(1, 125, 30)
        assert world.run(125) == "S1/12u S2/15x S3/24y B30(3)"
        assert world.states == ["STABLE"]

    def test_a_bucket_held_back_by_a_full_buffer_is_not_tentative(self) -> None:
        world = stable_until_ten(World())
        world.blocked = True
        for at in (0, 1):
            world.B(at, 110, 20)
        assert world.run(139) == ""  # beyond every time limit of [10, 20), which is stable but not released yet
        assert world.states[-1] == "STABLE"
        world.blocked = False
        assert world.run(139) == "B20(0)"

    def test_started_bucket_ends_although_output_is_full(self) -> None:
        """Who reads it acknowledges no part of a bucket: the output would be full for ever."""

        class Sliced(World):
            slice_rows = 1

        world = stable_until_ten(Sliced())
        world.S(0, 110, (11, "a"), (13, "b"), (15, "c"), (21, "d"))
        world.S(1, 110, (12, "u"))
        for at in (0, 1):
            world.B(at, 110, 30)
        world.advance(110)
        assert world.sunion.within_bucket
        world.blocked = True
        assert world.run(110).endswith("/15c B20(4)")
        assert world.run(139) == ""
        world.blocked = False
        assert world.run(139) == "S5/21d B30(5)"

    def test_the_second_node_of_a_chain_adds_no_alpha_x(self) -> None:
        """Its clock started with that of the node before, whose tentative bucket completes its own."""
        world = World()
        for at in (0, 1):
            world.B(at, 101, 10)
        world.run(101)
        for at in (0, 1):
            world.T(at, 130, (14, f"t{at}"))
            world.b(at, 130, 20)
        assert world.run(130) == ""
        assert world.run(131) == "T/14t0 T/14t1 b20"


class TestHoldingForACorrection:
    """T9: what is stable is not shown as tentative just before its correction; *hard* is 35."""

    def test_stable_buckets_wait_for_the_grant_up_to_hard(self) -> None:
        """Nobody grants: each goes out tentatively when its clock reaches 35, and at once when the wait does."""
        world = healed(World())
        assert world.run(150) == ""
        assert world.run(154) == ""
        assert world.run(155) == "b40", "its clock began at 120, when the boundary reached its start"
        for at in (0, 1):
            world.B(at, 184, 60)
        assert world.run(184) == ""
        assert world.run(185) == "b60", "a correction that takes this long is not waited for"
        for at in (0, 1):
            world.B(at, 186, 70)
        assert world.run(186) == "b70"

    def test_an_input_that_stops_again_ends_the_wait(self) -> None:
        world = healed(World())
        assert world.run(150) == ""
        world.live[1] = False
        assert world.run(151) == "b50"
        world.live[1] = True
        for at in (0, 1):
            world.B(at, 160, 60)
        assert world.run(160) == "", "it is back"
        world.grant(161)
        assert world.run(161) == "S1/12u S2/15x S3/18v S4/24y B60(4) clear"

    def test_each_wait_for_a_correction_has_its_own_limit(self) -> None:
        """The first began at 150 and ended at 151; the second may last from 160 until 195."""
        world = healed(World())
        assert world.run(150) == ""
        world.live[1] = False
        assert world.run(151) == "b50"
        world.live[1] = True
        for at in (0, 1):
            world.B(at, 160, 60)
        assert world.run(160) == ""
        assert world.run(185) == "b60", "it has waited for 35"
        for at in (0, 1):
            world.B(at, 187, 70)
        assert world.run(190) == ""
        assert world.run(195) == "b70"

    def test_a_bucket_that_lacks_input_does_not_wait_longer(self) -> None:
        """[30, 40) is stable, [40, 50) is not, and its input is gone: both go out at once, as before."""
        world = tentative(World())
        world.B(0, 150, 50)
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 40)
        assert world.run(150) == "b50"

    def test_slices_beyond_one_are_not_waited_for(self) -> None:
        world = tentative(World())
        world.replica._run.slice_rows = 1
        world.live[1] = True
        world.B(0, 150, 50)
        world.S(1, 150, (12, "u"), (18, "v"))
        world.B(1, 150, 50)
        assert world.run(150) == "b50"

    def test_live_waits_for_redo_up_to_hard_limit(self) -> None:
        """Without a partner live could release [30, 50) at once, but redo is about to."""
        world = healed(World(partners=()))
        world.advance(150)
        assert world.states[-1] == "STABILIZATION+fresh"
        assert world.out == []
        world.advance(155)
        assert world.out[0] == "b40", "it has waited for 35"


class TestOtherSettings:
    """X, α and policies change while a replica runs (X1, X3)."""

    def test_a_waiting_bucket_is_released_after_the_new_x(self) -> None:
        world = failing(World())  # the first bucket began to wait at 100
        world.change(129, x_us=80)
        assert world.run(159) == ""
        assert world.run(160) == "T/15x T/24y b30"

    def test_shorter_x_releases_overdue_data_at_once(self) -> None:
        world = failing(World())
        assert world.run(121) == ""
        world.change(121, alpha=0.5)
        assert world.run(121) == "T/15x T/24y b30"

    def test_waits_are_measured_against_the_x_they_had(self) -> None:
        world = failing(World())
        assert world.replica.waits.longest_us(121) == 21
        world.change(121, x_us=20)
        assert world.replica.waits.longest_us(121) == 0, "it waited for the longer X"
        assert world.run(121) == "T/15x T/24y b30"
        assert world.replica.waits.longest_us(121) == 0
        world = failing(World())
        world.change(129, x_us=80)
        assert world.run(160) != ""
        assert world.replica.waits.longest_us(160) == 60, "all of it counts for the longer X"

    def test_waits_of_before_do_not_count_for_another_x(self) -> None:
        """T8: consumers got these results while the other X was announced."""
        world = tentative(World())
        assert world.replica.waits.longest_us(131) == 30
        world.change(131, x_us=80)
        assert world.replica.waits.longest_us(131) == 11, "the next bucket waits since 120"

    def test_a_suspended_replica_goes_tentative_under_another_policy(self) -> None:
        world = failing(World(failure=Policy.SUSPEND))
        assert world.run(130) == ""
        world.change(135, during_failure=Policy.PROCESS)
        assert world.run(135) == "T/15x T/24y b30"
        assert world.sunion.cursors.restart == 10
        assert world.states[-1] == "UP_FAILURE"
        world.live[1] = True
        world.B(0, 150, 50)
        world.S(1, 150, (12, "u"), (18, "v"))
        world.B(1, 150, 50)
        assert world.run(150) == ""
        world.grant(151)
        assert world.run(151) == "S1/12u S2/15x S3/18v S4/24y B50(4) clear"

    def test_tentative_replica_that_starts_to_suspend_corrects(self) -> None:
        world = tentative(World())
        world.change(131, during_failure=Policy.SUSPEND)
        world.B(0, 132, 40)
        assert world.run(180) == ""
        world.live[1] = True
        world.B(0, 181, 180)
        world.S(1, 181, (12, "u"))
        world.B(1, 181, 180)
        world.run(181)
        world.grant(182)
        assert world.run(182) == "S1/12u S2/15x S3/24y B180(3) clear"
        assert world.states[-1] == "STABLE"

    def test_a_correction_ends_under_the_policy_that_it_began_with(self) -> None:
        world = healed(World(partners=()))
        world.run(150)
        assert world.states[-1] in ("STABILIZATION+fresh", "STABLE")
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.change(151, during_stabilization=Policy.SUSPEND)
        assert world.run(151) == "S1/12u S2/15x S3/18v S4/24y B50(4) clear"


class TestCorrecting:
    def test_with_a_grant_the_redo_gives_all_in_order(self) -> None:
        """The request is due at once: the newest bucket began to wait at 150."""
        world = healed(World())
        assert world.run(150) == ""
        assert world.asks == [Ask("n2", 1)]
        world.grant(151)
        assert world.states[-1] == "STABILIZATION"
        assert world.run(151) == "S1/12u S2/15x S3/18v S4/24y B50(4) clear"
        assert world.states[-1] == "STABLE"
        assert world.replica.counts.reconciliations == 1

    def test_a_request_does_not_wait_for_a_stable_newest_bucket(self) -> None:
        """[50, 60) went out tentatively, but began to wait less than αX ago (R1)."""
        world = tentative(World())
        world.B(0, 140, 60)
        assert world.run(140) == "b60"
        world.live[1] = True
        world.S(1, 150, (12, "u"), (18, "v"))
        world.B(1, 150, 50)
        world.run(150)
        assert len(world.asks) == 1

    def test_a_failure_during_redo_is_announced_in_the_same_step(self) -> None:
        """in1 is lost again at 50; when redo ends, [50, 60) is due: a new checkpoint and tentative results (R7)."""
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.live[1] = False
        world.S(0, 160, (55, "z"))
        world.B(0, 160, 60)
        out = world.run(185)
        assert out == "S1/12u S2/15x S3/18v S4/24y B50(4) clear T/55z b60"
        assert world.states[-2:] == ["STABILIZATION", "UP_FAILURE"]
        assert world.sunion.cursors.restart == 50

    def test_overlapping_failures_are_corrected_once_at_the_end(self) -> None:
        """A is lost after 10, B after 30.  When A is back nothing is asked for; when B is back, redo starts at 10."""
        world = stable_until_ten(World())
        world.B(1, 105, 30)
        world.live[0] = False
        assert world.run(130) == "b30"  # A is gone and B complete up to 30
        world.live = [True, False]
        world.S(0, 170, (12, "a"))
        world.B(0, 170, 60)
        world.run(172)
        assert world.asks == []
        world.live = [True, True]
        world.B(1, 180, 60)
        world.run(180)
        assert len(world.asks) == 1
        world.grant(181)
        assert world.run(181) == "S1/12a B60(1) clear"

    def test_a_full_redo_buffer_forces_progress(self) -> None:
        """The stable part is redone, then rec_done comes while the failure lasts (R2)."""
        world = tentative(World(redo_bytes=1))
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 20)
        world.run(150)
        world.grant(151)
        assert world.run(151) == "S1/12u S2/15x B20(2) clear T/24y b30"
        assert world.states[-1] == "UP_FAILURE"

    def test_a_request_without_a_reason_is_withdrawn(self) -> None:
        world = healed(World())
        world.run(150)
        world.live[1] = False
        world.run(190)
        world.grant(191)
        assert world.states[-1] == "UP_FAILURE"
        assert world.partner_asks("n0", 192), "R3: what is not wanted any more is no reason to refuse"

    def test_a_grant_counts_only_while_a_redo_is_due(self) -> None:
        """R3: the input was lost just before the grant came, and the request is not withdrawn yet."""
        world = healed(World())
        world.run(150)
        world.live[1] = False
        world.grant(151)
        assert world.states[-1] == "UP_FAILURE"

    def test_live_continues_during_redo_without_partner(self) -> None:
        """R5: fresh results while correcting."""
        world = healed(World(partners=()))
        out = world.run(150)
        assert "STABILIZATION+fresh" in world.states
        assert out == "S1/12u S2/15x S3/18v S4/24y B30(4) clear B50(4)"
        assert world.states[-1] == "STABLE"

    @pytest.fixture
    def delaying(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
        """Healed at 150 up to 50, further than live has released: live holds back new buckets."""
        monkeypatch.setattr(World, "slice_rows", 1)  # one slice would take redo past everything
        world = World(partners=request.param, failure=Policy.DELAY, stabilization=Policy.DELAY)
        failing(world)
        assert world.run(130) == "T/15x b20"
        world.live[1] = True
        world.S(0, 150, (42, "w"))
        world.B(0, 150, 50)
        world.S(1, 150, (12, "u"), (18, "v"))
        world.B(1, 150, 50)
        return world

    @pytest.mark.parametrize("delaying", [()], indirect=True)
    def test_the_redo_of_an_only_replica_ends_once_past_live(self, delaying: World) -> None:
        """R7: live released nothing of [40, 50), so its results are new, not corrections."""
        redone = "S1/12u S2/15x B18(2) S3/18v S4/24y B40(4)"
        assert delaying.run(150) == f"T/24y b40 {redone} clear S5/42w B50(5)"
        assert delaying.states[-2:] == ["STABILIZATION+fresh", "STABLE"]

    @pytest.mark.parametrize("delaying", [("n2",)], indirect=True)
    def test_the_redo_of_one_of_two_continues_past_live(self, delaying: World) -> None:
        """R7: as STABLE it would be preferred to its partner, which is ahead."""
        assert delaying.run(150) == "T/24y b40"
        delaying.grant(151)
        delaying.partner["n2"] = None
        assert delaying.run(151) == "S1/12u S2/15x B18(2) S3/18v S4/24y B40(4) S5/42w B50(5) clear"
        assert delaying.states[-2:] == ["STABILIZATION+fresh", "STABLE"]

    def test_live_gets_rows_that_redo_has_already_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """R6: redo has passed live, which holds [40, 50) back until 180."""
        monkeypatch.setattr(World, "slice_rows", 1)
        world = World(failure=Policy.DELAY, stabilization=Policy.DELAY)
        failing(world)
        assert world.run(130) == "T/15x b20"
        world.live[1] = True
        world.S(0, 150, (42, "w"), (44, "v"), (46, "t"))
        world.B(0, 150, 50)
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 50)
        assert world.run(150) == "T/24y b40"
        world.grant(151)
        world.partner["n2"] = None
        while "S4/42w" not in world.out:
            assert world.advance(151)[0]
        world.out.clear()
        assert world.run(180) == "T/42w b44 S5/44v B46(5) T/44v b46 S6/46t B50(6) T/46t b50 clear"
        world.S(1, 190, (55, "z"))
        for at in (0, 1):
            world.B(at, 190, 60)
        assert world.run(190) == "S7/55z B60(7)"

    def test_no_redo_begins_while_an_input_is_silent(self) -> None:
        """R1: no redo, although the oldest unstable bucket is younger than αX."""
        world = healed(World())
        world.live[1] = False
        world.run(150)
        assert world.asks == []
        world.live[1] = True
        world.run(151)
        assert [ask.partner for ask in world.asks] == ["n2"]

    @pytest.mark.parametrize("state", [NodeState.STABILIZATION, NodeState.RECOVERING])
    def test_live_resumes_when_the_partner_does_not_serve(self, state: NodeState) -> None:
        """R5: the partner corrects or recovers, so no replica would have fresh results."""
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.partner["n2"] = state
        world.run(151)
        assert "STABILIZATION+fresh" in world.states

    def test_suspended_live_stays_paused_without_a_partner(self) -> None:
        """R5: the partner dies; the policy is to suspend, so live does not resume."""
        world = healed(World(stabilization=Policy.SUSPEND))
        world.run(150)
        world.grant(151)
        world.partner["n2"] = None
        assert world.run(151) == "S1/12u S2/15x S3/18v S4/24y B50(4) clear"
        assert world.states[-2:] == ["STABILIZATION", "STABLE"]

    def test_redo_of_paused_live_ends_within_x_of_the_last(self) -> None:
        """R2: rec_dones during a failure are X apart while somebody has results, but nobody has."""
        world = tentative(World(stabilization=Policy.SUSPEND, partners=()))
        world.upstream_is_full = True
        for now, end in ((165, 20), (175, 30)):
            world.B(1, now, end)
            world.run(now)
            assert world.states[-2:] == ["STABILIZATION", "UP_FAILURE"]
            assert world.sunion.cursors.restart == end
        assert world.replica.counts.reconciliations == 2

    def test_a_redo_starts_from_the_checkpoint_of_its_own_failure(self) -> None:
        """C1, R7: the earlier checkpoint is discarded with its redo."""
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.run(151)
        world.live[1] = False
        world.S(0, 160, (52, "z"))
        world.B(0, 160, 60)
        world.run(190)
        world.live[1] = True
        world.B(0, 191, 70)
        world.B(1, 191, 70)
        world.run(191)
        world.grant(192)
        assert world.run(192) == "S5/52z B70(5) clear"

    def test_live_resumes_when_the_partner_dies_during_redo(self) -> None:
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.partner["n2"] = None
        world.run(151)
        assert "STABILIZATION+fresh" in world.states
        assert world.states[-1] == "STABLE"

    def test_live_that_resumes_behind_redo_takes_over_its_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """R5: u came too late for live, and rows that redo released while live paused are gone."""
        monkeypatch.setattr(World, "slice_rows", 1)
        world = World(unit=COUNTING)
        failing(world)
        assert world.run(130) == "b20 b30"
        world.B(0, 149, 60)
        assert world.run(149) == "b60"
        world.live[1] = True
        world.S(1, 150, (12, "u"))
        world.B(1, 150, 60)
        assert world.run(150) == ""
        world.grant(151)
        world.S(0, 152, (62, "a"), (64, "b"), (66, "c"))
        for at in (0, 1):
            world.B(at, 152, 80)
        while (world.sunion.cursors.redo or 0) < 66:
            assert world.advance(152)[0]
        world.out.clear()
        world.partner["n2"] = None
        world.live[1] = False
        world.S(0, 153, (95, "d"))
        world.B(0, 153, 110)
        assert world.run(153) == "b90 B80(0) T/997 b110 clear"

    def test_a_second_failure_starts_from_a_checkpoint_of_its_own(self) -> None:
        world = healed(World())
        world.run(150)
        world.grant(151)
        world.run(151)
        world.live[1] = False
        world.S(0, 160, (52, "z"))
        world.B(0, 160, 60)
        assert world.run(190) == "T/52z b60"
        assert world.sunion.cursors.restart == 50

    def test_full_output_pauses_live_so_corrections_are_sent(self) -> None:
        """While live runs, corrections are held back (V4), so consumers could never acknowledge and make room."""
        world = healed(World(partners=()))
        world.blocked = True
        world.run(150)
        assert world.states[-2:] == ["STABILIZATION+fresh", "STABILIZATION"]
        world.blocked = False
        assert world.run(151) == "S1/12u S2/15x S3/18v S4/24y B50(4) clear"
        assert world.states[-1] == "STABLE"

    def test_redo_with_full_output_ends_while_partner_serves(self) -> None:
        """During a correction consumers read the partner (F4); they acknowledge here once this replica is STABLE."""
        world = healed(World())
        world.run(150)
        world.blocked = True
        world.grant(151)
        assert world.run(151) == "clear"
        assert world.states[-1] == "STABLE"
        world.blocked = False
        assert world.run(160) == "S1/12u S2/15x S3/18v S4/24y B50(4)"
        assert world.states[-1] == "STABLE"

    def test_forced_rec_dones_are_x_apart_during_a_failure(self) -> None:
        """R2: an input that stays slightly too old advances bucket by bucket; one redo covers many buckets."""
        world = tentative(World())
        world.upstream_is_full = True
        world.B(0, 150, 1000)
        for step in range(60):
            now = 200 + step
            world.B(1, now, 20 + 10 * step)
            world.run(now)
            if world.states[-1] == "UP_FAILURE" and world.asks:
                world.grant(now)
                world.run(now)
        assert 2 <= world.replica.counts.reconciliations <= 3  # 60 us are one and a half X

    def test_a_finished_redo_ends_although_the_output_is_full(self) -> None:
        world = healed(World())
        world.run(150)
        world.grant(151)
        assert world.advance(151)[0]
        world.blocked = True
        world.run(151)
        assert world.states[-1] == "STABLE"


class TestStandingIn:
    """K6: a replica without results of its own grants no partner a reconciliation."""

    @pytest.mark.parametrize(("live", "granted"), [([True, True], True), ([True, False], False)])
    def test_a_stable_replica_stands_in_with_all_inputs_fresh(self, live: list[bool], granted: bool) -> None:
        world = stable_until_ten(World())
        world.live = live
        assert world.partner_asks("n2", 110) is granted

    @pytest.mark.parametrize(("live", "granted"), [([True, False], True), ([False, False], False)])
    def test_a_replica_in_up_failure_stands_in_with_one_fresh_input(self, live: list[bool], granted: bool) -> None:
        world = tentative(World())
        world.live = live
        assert world.partner_asks("n2", 150) is granted

    def test_a_replica_that_suspends_cannot_stand_in(self) -> None:
        world = stable_until_ten(World(failure=Policy.SUSPEND))
        world.live = [True, False]
        world.S(0, 105, (15, "x"))
        world.B(0, 110, 20)
        world.run(150)
        assert world.states[-1] == "UP_FAILURE"
        assert not world.partner_asks("n2", 150)

    def test_live_resumes_when_the_partner_can_no_longer_stand_in(self) -> None:
        world = healed(World())
        world.run(150)
        world.grant(151)
        assert not world.replica.live_runs
        world.partner["n2"] = None
        world.advance(151)
        assert world.replica.live_runs


class TestPeriodicCheckpoints:
    def released_behind_a_checkpoint(self, **options: Any) -> World:
        """The checkpoint is at 10; up to 20 everything is released."""
        world = stable_until_ten(World(checkpoints=Checkpoints(every_us=100), **options))
        world.S(0, 110, (11, "a"), (15, "b"))
        world.S(1, 110, (12, "c"))
        for at in (0, 1):
            world.B(at, 110, 20)
        assert world.run(110) == "S1/11a S2/12c S3/15b B20(3)"
        return world

    def test_acknowledgements_wait_for_the_checkpoint(self) -> None:
        """A1: a replica restored from the checkpoint needs everything after it."""
        world = self.released_behind_a_checkpoint()
        assert world.sunion.acknowledged() == [0, 0]
        for at in (0, 1):
            world.B(at, 220, 30)
        assert world.run(220) == "B30(3)"
        assert world.sunion.acknowledged() == [2, 1]
        assert world.sunion.stable_bytes == 0

    def test_a_partner_needs_no_input_from_before_its_snapshot(self) -> None:
        """A3: rows since the checkpoint are held for a redo of ours."""
        world = self.released_behind_a_checkpoint()
        taken = world.replica.snapshot()
        assert taken is not None
        assert (taken[0].restart, taken[1]) == (20, [2, 1])

    def test_redo_starts_at_the_checkpoint_and_drops_repetitions(self) -> None:
        world = self.released_behind_a_checkpoint()
        world.live[1] = False
        world.S(0, 120, (25, "x"))
        world.B(0, 120, 30)
        assert world.run(150) == "T/25x b30"
        assert (world.sunion.cursors.restart, world.sunion.cursors.restart_point) == (20, 10)
        world.live[1] = True
        world.S(1, 160, (22, "y"))
        world.B(0, 160, 40)
        world.B(1, 160, 40)
        world.run(160)
        world.grant(161)
        assert world.sunion.cursors.restart_point == 10  # a snapshot for a partner begins there, too
        assert world.run(161) == "S4/22y S5/25x B40(5) clear"
        assert world.replica.counts.redone_rows == 5
        assert world.states[-1] == "STABLE"

    def test_each_failure_begins_at_a_checkpoint_of_its_own(self) -> None:
        """C1, R7: between the two failures no time has passed for a periodic one; the redo takes what came since."""
        world = self.released_behind_a_checkpoint(partners=())
        restarts = []
        for number, now in enumerate((120, 170)):
            end = 20 + 20 * number
            world.live[1] = False
            world.S(0, now, (end + 5, "x"))
            world.B(0, now, end + 10)
            assert world.run(now + 30) == f"T/{end + 5}x b{end + 10}"
            restarts.append(world.sunion.cursors.restart_point)
            world.live[1] = True
            world.S(1, now + 31, (end + 2, "y"))
            for at in (0, 1):
                world.B(at, now + 31, end + 20)
            assert world.run(now + 31) == f"S{4 + 2 * number}/{end + 2}y S{5 + 2 * number}/{end + 5}x " + (
                f"B{end + 10}({5 + 2 * number}) clear B{end + 20}({5 + 2 * number})"
            )
            assert world.states[-1] == "STABLE"
        assert restarts == [10, 40]

    def test_a_request_waits_for_stable_input_beyond_n_star(self) -> None:
        """R1 compares F with n*, wherever the redo starts."""
        world = self.released_behind_a_checkpoint(redo_bytes=1 << 20)
        world.live[1] = False
        world.B(0, 120, 30)
        world.run(150)
        world.run(151)
        assert world.asks == []

    def test_a_checkpoint_is_due_when_upstream_is_full(self) -> None:
        """R8: upstream waits for acknowledgements, which wait for the checkpoint."""
        world = self.released_behind_a_checkpoint()
        assert world.sunion.acknowledged() == [0, 0]
        world.upstream_is_full = True
        world.run(111)
        assert world.sunion.acknowledged() == [2, 1]

    def test_a_full_upstream_forces_a_redo_that_makes_room(self) -> None:
        """R2: all inputs have reached n* and wait for room, which only a checkpoint at n* makes."""
        world = self.released_behind_a_checkpoint(redo_bytes=1 << 20)
        world.live[1] = False
        world.B(0, 120, 30)
        assert world.run(150) == "b30"
        world.upstream_is_full = True
        world.run(151)
        world.grant(152)
        assert world.run(152) == "clear b30"
        assert world.states[-3:] == ["UP_FAILURE", "STABILIZATION", "UP_FAILURE"]
        assert world.sunion.acknowledged() == [2, 1]
        assert world.sunion.cursors.restart_point == 20
        world.run(160)
        assert len(world.asks) == 1  # a second redo would gain nothing

    def test_checkpoint_is_due_when_redo_data_reach_half_the_cap(self) -> None:
        """Whatever the interval is."""
        world = self.released_behind_a_checkpoint(redo_bytes=1)
        assert world.sunion.stable_bytes == 0
        assert world.sunion.acknowledged() == [2, 1]

    def test_snapshot_has_state_and_later_releases(self) -> None:
        """The log goes beyond the checkpoint; repetitions are dropped as they are computed."""
        world = self.released_behind_a_checkpoint()
        world.live[1] = False
        world.S(0, 120, (25, "x"))
        world.B(0, 120, 30)
        world.run(150)
        taken = world.replica.snapshot()
        assert taken is not None
        checkpoint, positions = taken
        assert (checkpoint.restart, positions) == (10, [0, 0])
        other = World()
        other.install(checkpoint, positions)
        other.S(0, 200, (11, "a"), (15, "b"), (25, "x"))
        other.S(1, 200, (12, "c"), (22, "y"))
        for at in (0, 1):
            other.B(at, 200, 30)
        assert other.run(200) == "S4/22y S5/25x B30(5)"


class TestRecovering:
    def test_with_a_full_output_a_recovering_replica_begins_to_serve(self) -> None:
        world = World()
        world.blocked = True
        for at in (0, 1):
            world.B(at, 100, 10)
        assert world.run(100) == ""
        assert world.states[-1] == "STABLE"

    def test_a_restored_partner_makes_the_same_ids(self) -> None:
        """A replica that gives tentative results gives its state from before the failure."""
        world = tentative(World())
        taken = world.replica.snapshot()
        assert taken is not None
        checkpoint, positions = taken
        assert (checkpoint.restart, positions) == (10, [0, 0])
        other = World()
        other.install(checkpoint, positions)
        other.S(0, 200, (15, "x"), (24, "y"))
        other.S(1, 200, (12, "u"))
        for at in (0, 1):
            other.B(at, 200, 30)
        assert other.run(200) == "S1/12u S2/15x S3/24y B30(3)"

    def test_an_install_discards_the_earlier_checkpoint(self) -> None:
        """A3: it belongs to another state; a redo from it would lack everything before the install."""
        world = World()
        world.S(0, 100, (5, "p"))
        for at in (0, 1):
            world.B(at, 100, 10)
        assert world.run(100) == "S1/5p B10(1)"
        taken = world.replica.snapshot()
        assert taken is not None
        other = World(checkpoints=Checkpoints(every_us=1000))
        assert other.run(150) == ""  # it takes a checkpoint of the empty state
        other.install(*taken)
        for at in (0, 1):
            other.B(at, 200, 20)
        assert other.run(200) == "B20(1)"
        other.live[1] = False
        other.S(0, 210, (22, "z"))
        other.B(0, 210, 30)
        assert other.run(240) == "T/22z b30"
        other.live[1] = True
        other.B(0, 250, 40)
        other.B(1, 250, 40)
        other.run(250)
        other.grant(251)
        assert other.run(251) == "S2/22z B40(2) clear"

    def test_recovery_lasts_until_all_inputs_caught_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A3: what MAIN had announced as this replica connected has not all come."""
        world = World()
        monkeypatch.setattr(world, "caught_up", lambda: False)
        for at in (0, 1):
            world.B(at, 100, 10)
        assert world.run(100) == "B10(0)"
        assert world.states == []
        monkeypatch.setattr(world, "caught_up", lambda: True)
        world.run(101)
        assert world.states == ["STABLE"]

    def test_installed_state_is_corrected_like_any_other(self) -> None:
        """R9: the window counts a row from before the install, also when tentative data are undone."""
        world = World(unit=COUNTING)
        world.S(0, 100, (5, "p"))
        for at in (0, 1):
            world.B(at, 100, 10)
        world.run(100)
        taken = world.replica.snapshot()
        assert taken is not None
        other = World(unit=COUNTING, partners=())
        other.install(*taken)
        for at in (0, 1):
            other.B(at, 200, 20)
        assert other.run(200) == "B20(0)"
        other.live[1] = False
        other.S(0, 210, (60, "w"))
        other.B(0, 210, 110)
        assert other.run(231) == "T/992 b110"
        other.live[1] = True
        other.S(1, 233, (70, "v"))
        other.B(1, 233, 110)
        assert other.run(233) == "S1/993 B110(1) clear"

    def test_a_recovering_replica_gives_no_snapshot(self) -> None:
        assert World().replica.snapshot() is None


KEYED = Schema.of(key="int64!")
#: Windows [10, 30), [30, 50), …
MANY = AggregateSpec(IN[0], TumblingWindow(20, 10), {"key": "key"}, {"n": AggregateCall("count")})
GROUPS = 40
#: Rows per input in a slice, rows that a step releases.
FEW = 4


def deliver_groups(world: World, begin: int, now: int) -> None:
    """One row of each of many groups on in0, FEW at a time."""
    one = world.sunion.inputs[0]
    times = [begin + n // FEW for n in range(GROUPS)]
    rows = Rows.from_tuples(KEYED, times, [(n,) for n in range(GROUPS)])
    one.add_stable(Batch(Kind.STABLE, one.position, one.position + GROUPS, None, rows), now)


def with_windows(spec: AggregateSpec = MANY, **options: Any) -> World:
    windows = QueryOperator(OUT, spec, spec.output_schema([KEYED]))
    inputs = tuple(InputStream(s, KEYED, 1, None) for s in IN)
    return World(unit=Unit(UnitId("u"), "f", inputs, (windows,), (OUT,), partitions=1), **options)


def many_groups() -> World:
    """The groups of the window that ends at 30 have come and are stable."""
    world = stable_until_ten(with_windows())
    deliver_groups(world, 10, 105)
    for at in (0, 1):
        world.B(at, 110, 20)
    world.run(110)
    return world


def failing_with_many_groups() -> World:
    """in1 is gone, and the window went out tentatively."""
    world = many_groups()
    world.live[1] = False
    world.B(0, 130, 30)
    assert world.run(141).count("T") == GROUPS
    assert world.replica.state is NodeState.UP_FAILURE
    return world


def rows_out(world: World) -> int:
    return len([one for one in world.out if one[0] in "ST"])


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(World, "slice_rows", FEW)
    with step_sizes(8, 8, FEW):
        yield


@pytest.mark.usefixtures("small_steps")
class TestSlicesInPortions:
    """B8: between two portions of a slice the node does other work, but the unit starts nothing else."""

    def test_a_window_with_many_groups_leaves_in_portions(self) -> None:
        world = many_groups()
        for at in (0, 1):
            world.B(at, 110, 30)
        most = released = 0
        while world.advance(110)[0]:
            most, released = max(most, rows_out(world) - released), rows_out(world)
            assert ("B30(40)" in world.out) == (released == GROUPS)  # the boundary comes after the last row
        assert released == GROUPS
        assert most == FEW

    def test_suspended_replica_is_stable_without_late_buckets(self) -> None:
        """T3: also where a slice of its backlog takes several steps."""
        world = stable_until_ten(with_windows(failure=Policy.SUSPEND))
        for begin in (10, 30):
            deliver_groups(world, begin, 110)
        world.B(0, 110, 80)
        world.live[1] = False
        world.run(160)
        assert world.states[-1] == "UP_FAILURE"
        world.live[1] = True
        for at in (0, 1):
            world.B(at, 400, 90)
        while world.advance(400)[0]:
            is_late = world.is_working or world.sunion.stable_end > world.sunion.next
            assert world.states[-1] == ("UP_FAILURE" if is_late else "STABLE")
        assert rows_out(world) == 2 * GROUPS
        assert world.states[-1] == "STABLE"

    def test_recovery_ends_although_a_slice_waits_at_each_call(self) -> None:
        """A3: each slice is finished before the next one arrives, but at each call of the replica one waits."""
        world = with_windows()
        for end in (30, 60):
            now = 100 + end
            deliver_groups(world, end - 20, now)
            for at in (0, 1):
                world.B(at, now, end)
            while world.is_working or world.sunion.stable_end > world.sunion.next:
                world.advance(now)
        assert world.states == ["STABLE"]

    def test_a_snapshot_waits_for_the_end_of_the_slice(self) -> None:
        world = many_groups()
        for at in (0, 1):
            world.B(at, 110, 30)
        while not rows_out(world):
            world.advance(110)
        while world.replica.prepare_snapshot():
            assert rows_out(world) < GROUPS
            assert world.advance(110)[0]
        assert rows_out(world) == GROUPS
        taken = world.replica.snapshot()
        assert taken is not None
        assert taken[0].restart == 30
        assert taken[0].outputs[0]["last_id"] == GROUPS

    def test_a_grant_counts_at_the_end_of_the_slice(self) -> None:
        world = failing_with_many_groups()
        deliver_groups(world, 30, 146)
        world.B(0, 146, 40)
        world.run(146)
        world.live[1] = True
        world.B(1, 147, 30)
        world.run(147)
        world.B(0, 148, 50)
        world.b(1, 148, 50)
        while not rows_out(world):
            assert world.advance(148)[0]
        assert rows_out(world) < GROUPS
        world.grant(148)
        while world.replica.state is NodeState.UP_FAILURE:
            assert world.advance(148)[0]
        assert world.replica.state is NodeState.STABILIZATION
        assert rows_out(world) == GROUPS

    @pytest.mark.parametrize("partners", [(), ("n2",)])
    def test_back_to_back_live_slices_do_not_delay_a_correction(
        self, partners: Sequence[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """K1, R5: each live slice takes several portions, and at its end the next slice is already due."""
        monkeypatch.setattr(World, "slice_rows", 1000)
        world = stable_until_ten(with_windows(replace(MANY, window=TumblingWindow(10)), partners=partners))
        world.live[1] = False
        deliver_groups(world, 10, 105)
        world.B(0, 106, 20)
        world.run(141)
        assert world.states[-1] == "UP_FAILURE"
        world.live[1] = True
        end = 30
        for at in (0, 1):
            world.B(at, 142, end)
        began = 0
        while end < 500 and world.states[-1] != "STABLE":
            if world.sunion.next >= end and (not began or end < began + 100):
                deliver_groups(world, end, 142)
                end += 10
                world.B(0, 142, end)
                world.b(1, 142, end)
            if world.advance(142)[1] is not None:
                world.handle(PartnerGrants(1), 142)
            if not began and world.states[-1].startswith("STABILIZATION"):
                began = end
        assert 0 < began <= 60
        assert world.states[-1] == "STABLE"
        assert end < began + 100

    def test_a_replica_that_granted_does_not_begin_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """K2: no partner was reachable; while a slice is in work, one appears and asks."""
        monkeypatch.setattr(World, "slice_rows", 1000)
        world = stable_until_ten(with_windows(replace(MANY, window=TumblingWindow(10))))
        world.live[1], world.partner["n2"] = False, None
        deliver_groups(world, 10, 105)
        world.B(0, 106, 20)
        world.run(141)
        world.live[1] = True
        for at in (0, 1):
            world.B(at, 142, 30)
        deliver_groups(world, 30, 142)
        world.run(142)
        for at in (0, 1):
            world.B(at, 700, 40)
        assert world.advance(700) == (True, None)
        assert world.is_working
        slice = world.replica._run.work.open
        assert slice is not None
        assert slice.leave is not None
        world.partner["n2"] = NodeState.UP_FAILURE
        assert world.partner_asks("n2", 700)
        while world.is_working:
            world.advance(700)
        assert world.replica.state is NodeState.UP_FAILURE

    def test_a_state_is_rebuilt_for_a_snapshot_in_portions(self) -> None:
        """While tainted, with undo/redo: each portion feeds few rows to operators.  The result is the state at n*."""
        world = failing_with_many_groups()
        portions = 0
        while world.replica.prepare_snapshot():
            portions += 1
        assert portions >= (GROUPS // FEW if World.reconcile is Reconcile.UNDO else 0)
        taken = world.replica.snapshot()
        assert taken is not None
        other = World(unit=world.unit)
        other.install(*taken)
        for at in (0, 1):
            other.B(at, 200, 30)
        assert other.run(200).count("S") == GROUPS

    def test_a_redo_begins_when_its_state_is_complete(self) -> None:
        """Until then heartbeats report the outputs of live, and partners get no snapshot."""
        world = failing_with_many_groups()
        world.live[1] = True
        world.B(1, 147, 30)
        world.run(147)
        world.grant(147)
        steps = 0
        while not rows_out(world):
            assert world.replica.prepare_snapshot() == (world.redo.rebuilding or world.is_working)
            assert world.advance(148)[0]
            steps += 1
        assert steps > GROUPS // 8
        world.run(148)
        assert world.replica.state is NodeState.STABLE


class TestLongestWait:
    """From the first arrival of a bucket to its first release (T8); X = 40, αX = 30."""

    def test_a_tentative_bucket_has_waited_alpha_x(self) -> None:
        world = failing(World())
        assert world.replica.waits.longest_us(129) == 29  # it waits still
        assert world.run(130)
        assert world.replica.waits.longest_us(131) == 30

    def test_a_masked_failure_is_a_shorter_wait(self) -> None:
        world = failing(World())
        world.S(1, 125, (12, "u"))
        world.B(1, 125, 30)
        world.run(125)
        assert world.replica.waits.longest_us(126) == 25

    def test_waits_are_counted_relative_to_x_once_per_release(self) -> None:
        world = healed(World())
        world.run(150)
        before = world.replica.waits.x_used.status()
        assert before.counts[before.bounds.index(0.75)] == 1, "both buckets of one release: the first waited 30 of 40"
        world.grant(151)
        world.run(151)
        assert world.replica.waits.x_used.status() == before, "a redo releases nothing that is new"

    def test_a_released_bucket_stops_waiting_and_the_next_one_waits(self) -> None:
        world = failing(World())
        assert world.replica.waits.waiting_us(129) == 29
        world.run(130)
        assert world.replica.waits.waiting_us(131) == 11

    def test_under_suspend_the_wait_is_as_long_as_the_failure(self) -> None:
        world = failing(World(failure=Policy.SUSPEND))
        world.run(130)
        assert world.replica.waits.longest_us(145) == 45
        world.live[1] = True
        world.B(1, 150, 30)
        world.run(150)
        assert world.replica.waits.longest_us(151) == 50

    def test_a_second_release_by_a_redo_is_no_wait(self) -> None:
        world = healed(World())
        world.run(150)
        before = world.replica.waits.longest_us(150)
        world.grant(151)
        world.run(151)
        assert world.replica.waits.longest_us(151) == before == 30

    def test_buckets_while_a_partner_serves_are_no_wait(self) -> None:
        world = healed(World())
        world.run(150)
        world.grant(151)
        for at in (0, 1):
            world.B(at, 160, 60)
        assert world.replica.waits.longest_us(400) == 30
        world.run(400)
        assert world.replica.counts.reconciliations == 1
        assert world.replica.waits.longest_us(400) == 30

    def test_each_slice_of_a_backlog_waits_until_its_own_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two buckets become complete at once; the second one is released 68 later, because work takes time."""
        monkeypatch.setattr(World, "slice_rows", 1)
        world = stable_until_ten(World())
        world.S(0, 110, (11, "a"), (21, "b"))
        for at in (0, 1):
            world.B(at, 110, END_OF_TIME)
        assert world.advance(112)[0]
        world.run(180)
        assert world.replica.waits.longest_us(1000) == 70

    def test_a_full_output_does_not_count_as_waiting(self) -> None:
        world = stable_until_ten(World())
        world.blocked = True
        for at in (0, 1):
            world.B(at, 110, 20)
        world.run(110)
        assert world.replica.waits.longest_us(138) == 10
        world.blocked = False
        world.run(139)
        assert world.replica.waits.longest_us(139) == 10

    def test_buckets_during_recovery_are_no_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World()
        monkeypatch.setattr(world, "started", lambda now: False)
        for at in (0, 1):
            world.B(at, 100, 10)
        world.run(100)
        world.B(0, 110, 20)
        world.run(190)
        monkeypatch.setattr(world, "started", lambda now: True)
        assert world.run(200) != ""
        assert world.states[-1] == "UP_FAILURE"
        assert world.replica.waits.longest_us(200) == 0
