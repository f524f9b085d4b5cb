"""From a queue to rows."""
