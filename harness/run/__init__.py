"""One run: settings, nodes, clients, the interpreter, the child process that runs a test, and its supervisor."""
