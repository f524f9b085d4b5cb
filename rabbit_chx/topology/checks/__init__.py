"""Judge a topology, and compare it with a live broker."""
