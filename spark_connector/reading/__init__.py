"""From streams to rows."""
