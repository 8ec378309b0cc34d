"""Where the time of a decode step goes."""
