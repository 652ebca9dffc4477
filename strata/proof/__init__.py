"""Shows that each dependency call is needed, or says why it is not, on the software runtime."""
