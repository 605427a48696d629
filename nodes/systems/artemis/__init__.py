"""Apache ActiveMQ Artemis under test: one broker, or a primary and a backup."""
