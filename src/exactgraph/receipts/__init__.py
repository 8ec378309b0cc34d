"""Evidence about one (model, device, environment, protocol): derived from files, checked again by anyone, without torch."""
