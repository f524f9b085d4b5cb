"""From rows to confirmed messages."""
