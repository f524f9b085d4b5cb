"""A member of a group that shares the streams of an exchange."""
