"""The pretended shared base of candidates."""
