"""Many stored messages decoded at once, into an Arrow batch."""
