"""Guidance and constraints on the logits, on the device or in the user's plain processors, equal either way."""
