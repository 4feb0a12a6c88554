"""Offline checkers: did a recorded run, simulated or real, keep its promises?  They know nothing of the engine.

Input: the :mod:`history <spe.stream.history>` of a run, its plan, and the stable streams of a run
without failures.  Output: findings, and how much was really checked.  Imports ``spe`` only.
"""
