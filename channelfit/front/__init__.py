"""The front door: the functions that Python users call, and the command line over them."""
