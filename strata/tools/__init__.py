"""Commands for people: replay, selftest; what they share."""
