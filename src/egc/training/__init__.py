"""Training: the loop, what feeds it, what it writes down, and how it picks up where it stopped."""
