"""What EGC is compared with: other networks and objectives, and comparisons at equal compute."""
