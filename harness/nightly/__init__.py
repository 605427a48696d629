"""Nights: a matrix of tests that runs unattended, its record, its pages and its alarms."""
