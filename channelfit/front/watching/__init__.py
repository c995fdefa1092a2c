"""`channelfit watch`: run folders shown on a page of this computer, while their fits go on."""
