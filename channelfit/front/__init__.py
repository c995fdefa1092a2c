"""The functions that Python users call, and the command line over them."""
