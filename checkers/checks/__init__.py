"""One module per check, each a function ``check(run) -> Outcome``."""
