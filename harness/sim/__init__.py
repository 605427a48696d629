"""Simulation: nodes, clients, faults and network in one process, under simulated time, repeatable from a seed."""
