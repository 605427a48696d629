"""A durable connection: messages that an application sends while no broker serves are kept in a file, and transferred
in order.

``repository`` is the file, ``connection`` the interface for applications, ``links`` the access to brokers of each kind.
"""
