"""Files from the rig, one small file for each format; `read` opens any of them."""

from channelfit.reading.formats.contents import Contents, Epoch, Signal

__all__ = ["Contents", "Epoch", "Signal"]
