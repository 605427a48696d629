"""The broker around an engine: client sessions, services, configuration, the process."""
