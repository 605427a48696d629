"""What several runs say together: differences, guarantees by mode, coverage of states."""
