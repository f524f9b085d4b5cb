"""One member of a group: its seat, its queues, its handlers."""
