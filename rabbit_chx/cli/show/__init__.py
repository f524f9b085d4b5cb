"""What the command line shows: tables, JSON, progress."""
