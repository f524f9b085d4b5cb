"""One message: its fields, its value, its trace."""
