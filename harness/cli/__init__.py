"""The commands of ``stormproof``, one module for each group of commands."""
