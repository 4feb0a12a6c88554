"""Mistakes in a replica's protocol, its consumers and its producers, each against one clause of a rule, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

RULES: Final[dict[str, TextMutant]] = {
    "redo-stays-though-live-pauses": TextMutant(
        "between two forced rec_dones a redo stays though live pauses, so that nobody has results (R2)",
        "consistency/dpc/stabilization.py",
        "            and self.live is not LiveState.PAUSES\n",
        "",
    ),
    "resumed-live-does-not-replay": TextMutant(
        "live that resumes takes over the state of a redo, but not its replay (R5, G4)",
        "consistency/dpc/instance.py",
        "        self._replays_on(other.replay)\n",
        "",
    ),
    "replay-leaves-old-buffers": TextMutant(
        "after a replay the input buffers of operators are those from before it (R9)",
        "consistency/dpc/undo.py",
        "        self._buffers = self._new_buffers(end, self.fragment.snapshot())\n",
        "",
    ),
    "later-name-goes-first": TextMutant(
        "of two replicas that both want to correct the later name goes first (K2)",
        "consistency/dpc/partners.py",
        "            if asker < self._own:",
        "            if asker > self._own:",
    ),
    "grant-of-who-has-left": TextMutant(
        "the grant of a partner that has left counts (K1, D3)",
        "consistency/dpc/partners.py",
        "        self._asked = {number: name for number, name in self._asked.items() if name in self.told}\n",
        "",
    ),
    "standby-is-a-partner": TextMutant(
        "a standby counts as a replica that may come back and serve (H3, R4)",
        "consistency/dpc/partners.py",
        "        return self._idle.issuperset(self._partners)",
        "        return not self._partners",
    ),
    "live-resumes-though-suspended": TextMutant(
        "without a partner live resumes although the policy is to suspend (R5)",
        "consistency/dpc/stabilization.py",
        "        if self._policy is not Policy.SUSPEND:\n            if run.sunion.resume_live():",
        "        if True:\n            if run.sunion.resume_live():",
    ),
    "full-redo-waits-for-its-partner": TextMutant(
        "a redo with a full output waits though its partner is read (A2)",
        "consistency/dpc/stabilization.py",
        "        elif isinstance(self.live, PartnerServes):\n            # Consumers",
        "        elif False:\n            # Consumers",
    ),
    "redo-ends-once-past-live": TextMutant(
        "the redo of a replica with partners ends when it has passed live (R7)",
        "consistency/dpc/stabilization.py",
        "        return self.live_runs and run.partners.nobody and run.sunion.redo_is_ahead",
        "        return self.live_runs and run.sunion.redo_is_ahead",
    ),
    "redo-ends-before-the-log-has-it": TextMutant(
        "a redo ends before the log has got the slice that it asks for (G6)",
        "consistency/dpc/stabilization.py",
        "        return self.run.log.wants(self.stable) or self._finish(now)",
        "        return self._finish(now)",
    ),
    "earlier-wait-for-a-correction-counts": TextMutant(
        "the wait for an earlier correction counts for the next one (T9)",
        "consistency/dpc/up_failure.py",
        "            taint.forget_correction()\n",
        "            pass\n",
    ),
    "snapshot-positions-at-n-star": TextMutant(
        "the snapshot of a tainted replica begins at its checkpoint, its positions at n* (A3, R8)",
        "consistency/dpc/up_failure.py",
        "        return self.taint.snapshot.take(), self.run.sunion.acknowledged()",
        "        return self.taint.snapshot.take(), self.run.sunion.needed_from(self.run.sunion.cursors.released)",
    ),
    "recovered-before-it-caught-up": TextMutant(
        "recovery ends though an input is behind its MAIN (A3)",
        "consistency/dpc/recovering.py",
        "        if run.inputs.caught_up():\n",
        "        if True:\n",
    ),
    "periodic-mark-is-used-twice": TextMutant(
        "the periodic checkpoint of one failure is that of the next one (C1, R7)",
        "consistency/dpc/taint.py",
        "        run.mark = None\n",
        "",
    ),
    "redo-repeats-what-was-released": TextMutant(
        "a redo from a periodic checkpoint releases again what was released since (R8)",
        "consistency/dpc/instance.py",
        "            theirs.restore(state, ours.released())",
        "            theirs.restore(state)",
    ),
    "waits-while-a-partner-served-count": TextMutant(
        "the time in which a partner served counts as a wait (T8)",
        "consistency/dpc/waits.py",
        "        if not self._serves():\n            self._serves_since = now\n",
        "        pass\n",
    ),
    "installed-operators-have-empty-buffers": TextMutant(
        "after an install the input buffers are those of the state before it (R9)",
        "consistency/dpc/undo.py",
        "        self._buffers = self._new_buffers(checkpoint.restart, checkpoint.fragment)\n",
        "",
    ),
    "episode-ends-at-the-threshold": TextMutant(
        "an input that lags about as long as allowed is reported again and again (S5)",
        "consistency/dpc/skew.py",
        "            if age <= self.alpha_x_us // 2:",
        "            if age <= self.alpha_x_us:",
    ),
}
