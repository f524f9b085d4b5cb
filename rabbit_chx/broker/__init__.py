"""The only room that opens a socket. Import what you need from its files."""
