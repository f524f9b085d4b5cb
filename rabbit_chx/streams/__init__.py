"""Read and write RabbitMQ streams: the stream protocol, and chunks of messages as Arrow batches."""
