"""The gateway: a program on a separate machine that hosts the lock file of two servers (design ``fiorano``).

``python -m nodes.reference.gateway CONFIG.json`` runs it. The lock is a lease with an epoch, which only grows.
"""
