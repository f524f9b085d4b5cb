"""What is below `StreamPublisher`: lots of messages, their outboxes, and a thread for each stream that sends them."""
