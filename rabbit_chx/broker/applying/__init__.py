"""Carry out a plan on a live broker, and move keys without breaking their order."""
