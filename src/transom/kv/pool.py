"""Pages of one component: who owns each, and how many rows read it."""

import numpy as np
from numpy.typing import NDArray

Pages = NDArray[np.int64]
"""Page ids in the one index type of the core. Arrays held by nodes are never written to."""
