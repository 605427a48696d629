"""Published misbehaviours of real systems, each with a twin that passes under the same faults."""
