"""``python -m benchmarks.ab`` is ``strata bench``."""

import sys

from benchmarks.ab.command import main

sys.exit(main())
