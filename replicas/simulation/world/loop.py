"""A run loop for trio without the parts that a simulation does not need.

In each round trio's own loop asks the kernel for sockets, of which there are none, and in each step instruments for
hooks that they lack: a good part of the cost of a simulated run.  Tasks, scopes and nurseries stay trio's.  With an
unknown version of trio, its own loop runs: slower, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableSequence
from operator import attrgetter
from random import Random
from typing import Any, Final

import trio
import trio.lowlevel
from outcome import Error, Value

from replicas.link.signal import WOKEN
from replicas.simulation.world.clock import JumpClock

#: Versions of trio with the expected internals.
KNOWN: Final = ("0.35.",)
#: Rounds between two checks for other threads and signals.
_ROUNDS: Final = 64

_run: Any = trio._core._run
_age: Callable[[Any], int] = attrgetter("_counter")


def fits() -> bool:
    return trio.__version__.startswith(KNOWN)


def make_loop(original: Any, order: Random) -> Any:
    """Returns a loop that replaces trio's; for other clocks than ours it runs ``original``.

    Args:
      order: draws the order of tasks that are runnable at one time.
    """

    @trio.lowlevel.enable_ki_protection
    def loop(
        runner: Any, main: Any, arguments: Any, host_uses_signal_set_wakeup_fd: bool = False
    ) -> Generator[float, Any, None]:
        if not isinstance(runner.clock, JumpClock) or runner.is_guest:
            yield from original(runner, main, arguments, host_uses_signal_set_wakeup_fd)
            return
        try:
            runner.entry_queue.wakeup.wakeup_on_signals()
            runner.clock.start_clock()
            runner.init_task = runner.spawn_impl(runner.init, (main, arguments), None, "<init>", system_task=True)
            yield from _rounds(runner, runner.clock, order)
        except trio.TrioInternalError:
            raise
        except BaseException as error:
            raise trio.TrioInternalError("the simulation cannot go on") from error
        finally:
            runner.close()
            _run.GLOBAL_RUN_CONTEXT.__dict__.clear()
            if runner.ki_pending:
                runner.main_task_outcome = Error(KeyboardInterrupt())

    return loop


@trio.lowlevel.enable_ki_protection
def _rounds(runner: Any, clock: JumpClock, order: Random) -> Generator[float, Any, None]:
    queue, deadlines, hooks = runner.runq, runner.deadlines, runner.instruments.data
    unpolled = 0
    while runner.tasks:
        timeout = 0.0
        if not queue:
            timeout = clock.deadline_to_sleep_time(deadlines.next_deadline())
        unpolled += 1
        if timeout or unpolled == _ROUNDS:
            unpolled = 0
            idle = runner.waiting_for_idle if timeout else None
            events = yield 0.0 if idle else timeout
            runner.io_manager.process_events(events)
            while idle and not events and not queue:  # wait_all_tasks_blocked
                runner.reschedule(idle.popitem(0)[1])
        for hook in hooks.get("before_io_wait", ()):
            hook.before_io_wait(timeout)
        for hook in hooks.get("after_io_wait", ()):
            hook.after_io_wait(timeout)
        if deadlines._heap and deadlines._heap[0][0] <= clock.now:
            deadlines.expire(clock.now)
        batch = list(queue)
        queue.clear()
        if len(batch) > 1:
            batch.sort(key=_age)
            _shuffle(batch, order.random)
        _steps(runner, batch, "before_task_step" in hooks)


def _shuffle(batch: MutableSequence[Any], draw: Callable[[], float]) -> None:
    """Shuffles as ``Random.shuffle``, which would be most of the cost of a round."""
    for last in range(len(batch) - 1, 0, -1):
        at = int(draw() * (last + 1))
        batch[last], batch[at] = batch[at], batch[last]


@trio.lowlevel.enable_ki_protection
def _steps(runner: Any, batch: list[Any], hooked: bool) -> None:
    """Runs a step of each task."""
    context, shielded, waits = _run.GLOBAL_RUN_CONTEXT, _run.CancelShieldedCheckpoint, _run.WaitTaskRescheduled
    for task in batch:
        context.task = task
        if hooked:
            runner.instruments.call("before_task_step", task)
        send, sent = task._next_send_fn, task._next_send
        task._next_send_fn = task._next_send = None
        try:
            message = task.context.run(send, sent)
        except StopIteration as stop:
            ended: Any = Value(stop.value)
        except BaseException as error:
            # Leaves out the frame of this function, and those of Context.run.
            trace = error.__traceback__
            for _ in range(1 + _run.CONTEXT_RUN_TB_FRAMES):
                trace = trace and trace.tb_next
            ended = Error(error.with_traceback(trace))
            del trace
        else:
            task._schedule_points += 1
            if type(message) is waits:
                task._cancel_points += 1
                task._abort_func = message.abort_func
                if runner.ki_pending and task is runner.main_task:
                    task._attempt_delivery_of_pending_ki()
                if task._cancel_status.effectively_cancelled:
                    task._attempt_delivery_of_any_pending_cancel()
            elif message is shielded:
                runner.reschedule(task, WOKEN)
            else:
                raise TypeError(f"{task.name} waits for {message!r}, which is not of trio")
            continue
        runner.task_exited(task, ended)
        del ended  # it may hold a traceback, and with it all objects of the task
    context.__dict__.pop("task", None)
