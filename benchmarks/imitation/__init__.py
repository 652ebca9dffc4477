"""An expensive platform, imitated: what grouping is worth where each call has a price."""
