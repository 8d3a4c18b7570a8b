"""`python -m transom` is `transom`."""

import sys

from transom.cli.main import main

sys.exit(main())
