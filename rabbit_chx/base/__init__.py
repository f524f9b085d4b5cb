"""What every package needs and none owns: addresses, timeouts, names, texts, signals."""
