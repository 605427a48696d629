"""A durable connection: what an application sends while no broker serves is kept in a file, and transferred in order.

``repository`` is the file, ``connection`` what applications use, ``links`` how it reaches brokers of each kind.
"""
