"""Stormproof: chaos testing for highly available message brokers.

``stormproof.load("runs")`` opens a store for analysis with pandas.
"""

from harness.frames import RunFrames, StoreFrames, load

__all__ = ["RunFrames", "StoreFrames", "load"]
