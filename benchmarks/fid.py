"""The gate of FID: real training images of CIFAR-10 against real test images.

    python benchmarks/fid.py [--count 2000]

The first images of EGC's training split (what is left of the official one after validation images
were drawn at random) against the first of the official test split. With 2,000 of each, FID was
expected near 30 and is 25.1: far from 0, since few images bias it upwards, while KID, which is
unbiased, is 0 within its spread. Writes `benchmarks/fid.json`; sets whose statistics are stored
(`reference/` in the data directory) are not measured again, which `seconds` then shows.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

from egc.config import DataConfig
from egc.data import open_source
from egc.metrics.distances import compare_sets
from egc.metrics.inception import Inception

RESULTS = Path(__file__).with_name("fid.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, metavar="N")
    count = parser.parse_args().count
    splits = open_source(DataConfig(source="cifar10"))
    train, test = (data.subset(np.arange(count)) for data in (splits.train, splits.test))
    network = Inception(device="cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    figures = compare_sets(train, test, network)
    seconds = time.monotonic() - started
    results = {
        "data": f"cifar10: first {count} training images against first {count} test images",
        **figures.summary(),
        "feature_weights": network.digest,
        "seconds": round(seconds, 1),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
