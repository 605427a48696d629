"""One module per check, each with a function ``check(run) -> CheckOutcome`` and the ``CHECK`` made of it."""
