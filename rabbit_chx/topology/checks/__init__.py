"""Checks of a topology, with or without a live broker."""
