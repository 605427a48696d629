"""The HA Joram design: a group of replicas behind one master, with eager synchronous replication."""
