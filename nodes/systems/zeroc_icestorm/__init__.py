"""The real IceStorm, of ZeroC's Ice: replicas, clients, guarantees."""
