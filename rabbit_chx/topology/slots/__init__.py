"""Slots: how many there are, which queue has each, and which to move."""
