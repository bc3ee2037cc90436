"""`python -m egc` is `egc`."""

from egc.cli import main

raise SystemExit(main())
