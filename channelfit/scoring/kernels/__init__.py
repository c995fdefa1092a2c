"""From one symbolic description of a channel to source text for each target."""
