"""What every room needs and none owns: addresses, timeouts, names, texts, signals."""
