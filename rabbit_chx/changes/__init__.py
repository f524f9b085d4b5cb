"""Change queues while a group consumes them: hold, drain, switch, release."""
