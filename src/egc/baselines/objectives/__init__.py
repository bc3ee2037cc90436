"""What the baselines minimise."""
