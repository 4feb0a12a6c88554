"""Which partitions to replicate actively when there are too few machines for all (PPA paper, sections III and IV).

Pure: topologies and plans go in, plans come out.  ``topology`` has what is planned for, ``fidelity`` how good a plan
is, ``trees`` the minimal complete trees, ``search`` what every planner gets and gives; ``dynamic``, ``greedy``,
``structure`` and ``exact`` are the planners.
"""
