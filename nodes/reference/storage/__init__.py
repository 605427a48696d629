"""A storage service: a program on a machine of its own that keeps one database for several brokers.

``python -m nodes.reference.storage CONFIG.json`` runs it; ``client`` is a broker's side, ``shared_state`` keeps an
engine's state in it. Who holds an epoch fences all who hold older ones.
"""
