"""Measuring models: accuracy, and how real their samples look to an independent judge."""
