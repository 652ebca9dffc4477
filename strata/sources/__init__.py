"""Where the bytes of experts come from."""
