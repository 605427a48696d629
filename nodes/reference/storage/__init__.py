"""A storage service: a program on a separate machine that keeps one database for several brokers.

``python -m nodes.reference.storage CONFIG.json`` runs it; ``client`` is a broker's side, ``shared_state`` keeps an
engine's state in it. The holder of an epoch fences all holders of older ones.
"""
