"""The commands of ``stormproof``, a module for each of their kinds."""
