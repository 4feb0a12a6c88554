"""In which order lost partitions come back, and where, while there is too little room for all (rules O1-O7).

Pure, for the paper on incremental recovery (Su and Zhou, DEBS 2021) with output fidelity beside it.  ``choosing`` and
``program`` say which partitions, ``goals`` what they are worth, ``ordering`` in which order, ``placing`` where;
``schedule`` does all of it again when something has changed.  ``forecast`` plays a schedule ahead, ``bound`` says how
good one can be at most, ``cluster`` reads what may be lost.
"""
