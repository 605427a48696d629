"""The design ``icestorm``: highly available IceStorm, after its documentation and Garcia-Molina's election."""
