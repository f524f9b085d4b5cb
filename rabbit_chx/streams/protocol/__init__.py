"""The stream protocol: frames, connections and commands."""
