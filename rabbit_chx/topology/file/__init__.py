"""Topology files: read, checked and written."""
