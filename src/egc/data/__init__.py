"""Data: named sets and folders of images become uint8 images with labels, split and augmented."""

from egc.data.arrays import sets_of_arrays
from egc.data.description import Description, described
from egc.data.images import UnreadableError, read_images, read_readable_images
from egc.data.imageset import ImageSet, Splits
from egc.data.sources import describe, open_source

__all__ = [
    "Description",
    "ImageSet",
    "Splits",
    "UnreadableError",
    "describe",
    "described",
    "open_source",
    "read_images",
    "read_readable_images",
    "sets_of_arrays",
]
