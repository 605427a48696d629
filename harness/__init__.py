"""The life of a test from start to verdict: command line, generator, interpreter, history, store, backends."""
