"""Causes for systems that record neither traces nor grants: from the history, the faults, the roles and the disks.

``sends`` tells which confirmed messages arrived, ``circumstances`` what the faults and the roles were at a time. The
other modules turn these facts into causes. A cause states recorded facts, and in ``Cause.inferred`` what follows from
them; each must pass the checks that its module names. Where two causes fit, both are stated; where none fits, none is.
"""
