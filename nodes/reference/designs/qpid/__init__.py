"""The design ``qpid``: active-passive, hot standby, backups that browse the primary's queues."""
