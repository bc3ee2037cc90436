"""Pictures, pages and progress: renders what it is given, computes nothing, knows no model."""
