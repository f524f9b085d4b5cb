"""Read what a live broker holds: exchanges, queues, bindings, policies, and the order of its rings."""
