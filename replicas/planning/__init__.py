"""Plans which partitions to replicate actively when machines are short (PPA paper, sections III and IV).

Pure: topologies and plans go in, plans come out.  ``topology`` has the input, ``fidelity`` the quality of a plan,
``trees`` the minimal complete trees, ``search`` the interface of all planners; ``dynamic``, ``greedy``,
``structure`` and ``exact`` are the planners.
"""
