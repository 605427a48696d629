"""Ports of the tests' own servers: none is given twice, and the server that was told one may listen there."""

import socket

from loopback import _kept, free_ports


def test_a_port_that_is_kept_is_not_given_again():
    """As the port of another by an offset, which the kernel does not choose."""
    for port in free_ports(2, 1000):
        assert _kept(port) is None
        assert _kept(port + 1000) is None


def test_ports_and_those_above_them_are_all_different():
    ports = free_ports(130, 2)
    assert len({*ports, *(port + 2 for port in ports)}) == 260


def test_a_server_listens_on_the_port_that_it_was_given():
    for port in free_ports(2, 1000):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass
        with socket.create_server(("127.0.0.1", port + 1000)):
            pass
