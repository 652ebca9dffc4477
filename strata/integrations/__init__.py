"""What fits strata to the libraries that its users have. Each needs the extra of its name."""
