"""The contract of systems under test, item by item: `stormproof systems check NAME`."""
