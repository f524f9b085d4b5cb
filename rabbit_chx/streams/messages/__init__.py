"""Stored messages: chunks, decoding, encoding."""
