"""The channel: rate expressions, the units in them, states, gates, transitions and the current."""
