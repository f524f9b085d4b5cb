"""Plan the steps from a live broker to a topology, and count the keys that each step moves."""
