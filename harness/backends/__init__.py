"""Machines to run nodes on: Linux namespaces, containers; one persistent root shell a node underneath."""
