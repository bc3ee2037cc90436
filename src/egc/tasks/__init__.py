"""What a trained model can do. Each task takes a `Model` and gives plain results."""
