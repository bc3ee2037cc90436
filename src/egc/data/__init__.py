"""Data: named sets and folders of images become uint8 images with labels, split and augmented."""

from egc.data.images import read_images
from egc.data.imageset import ImageSet, Splits
from egc.data.sources import open_source

__all__ = ["ImageSet", "Splits", "open_source", "read_images"]
