"""Mutants made by rule: small changes of the reference broker's source, each of which a default campaign should catch.

``operators`` finds the possible mutations of a source, ``drawing`` draws some over the lines that campaigns execute,
``child`` runs seeds in a separate process with one mutation, ``hunting`` hunts for a list of them, ``page`` tells the
results.
"""
