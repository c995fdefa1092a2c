"""channelfit: kinetic models of ion channels, fitted to voltage-clamp recordings."""

__version__ = "0.1.0"
