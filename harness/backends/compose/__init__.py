"""Nodes as the services of a user's Compose file: its project, its networks, its disks, its clients' places."""
