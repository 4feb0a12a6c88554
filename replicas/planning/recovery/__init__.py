"""Plans in which order, and where, lost partitions come back while room is short (rules O1-O6).

Pure, after the paper on incremental recovery (Su and Zhou, DEBS 2021), extended by output fidelity.  ``choosing`` and
``program`` choose partitions, ``goals`` value them, ``ordering`` orders and ``placing`` places them;
``schedule`` repeats this when something has changed.  ``forecast`` simulates a schedule, ``bound`` bounds its value,
``cluster`` reads the cluster.
"""
