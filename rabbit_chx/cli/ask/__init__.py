"""What the command line asks for: options, files, access to a broker."""
