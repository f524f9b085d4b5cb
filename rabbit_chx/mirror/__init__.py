"""What RabbitMQ computes: hashes, rings, and the queue that a message is routed to."""
