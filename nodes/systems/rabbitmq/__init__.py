"""RabbitMQ under test: classic queues, mirrored ones, quorum queues."""
