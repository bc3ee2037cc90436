"""Pictures and pages: figures, the model card and the self-contained report."""
