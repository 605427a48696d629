"""Rules that the four designs share.

Each design has its own in ``nodes/systems/reference/<design>/rules/``, in modules of the same names:

* ``table``: ``RULES``, the table of all rules of the design (``Rules``), with its parts: ``INVARIANTS``, ``BOUNDS`` and
  ``WORK``, ``KEEPS`` (what an idle node keeps in memory), ``DRAWING`` (random settings of the default campaign) and
  ``ABSTRACTION`` (situations that guided simulation distinguishes).
* ``deadlines``: ``DEADLINES``, the time limits of pending work.
* ``states``: ``STATES``, the states of interest that logs show, and the functions that parse the design's log lines.
* ``roles``, ``members``, ``data``: the watchers of the invariants, by what they watch. ``roles``: who leads and serves,
  by which election, lock or lease. ``members``: who belongs to the group. ``data``: what is stored, replicated and
  confirmed. A design without a changing group has no ``members``.
"""
