"""The queues that a group consumes."""
