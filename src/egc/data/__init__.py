"""Data: named sets and folders of images become uint8 images with labels, split and augmented."""

from egc.data.images import UnreadableError, read_images, read_readable_images
from egc.data.imageset import ImageSet, Splits
from egc.data.reader import sets_of_arrays
from egc.data.sources import Description, describe, described, open_source

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
