"""What is minimised. An objective is a module around the network, so that it can be wrapped."""
