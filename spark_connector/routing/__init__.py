"""Where rows go, inside Spark: the queue of each row, and checks before a write."""
