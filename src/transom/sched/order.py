"""From a request that waits to its rank: what is cached of it, and how much output it may bring."""

from dataclasses import dataclass

from transom.kv.cache import HybridCache
from transom.sched.output_lengths import Outputs
from transom.sched.policy import LOOKING, SchedulePolicy, rank
from transom.sched.request import Progress


@dataclass(frozen=True, slots=True)
class Ranker:
    """Ranks requests by what cache and outputs are now."""

    policy: SchedulePolicy
    cache: HybridCache
    outputs: Outputs

    def version(self) -> int:
        """As long as it is the same, so is what is cached, as far as the policy asks."""
        return self.cache.version if self.policy in LOOKING else 0

    def cached(self, progress: Progress) -> int:
        """Tokens that need not be computed: a walk of the tree, if the policy asks."""
        if self.policy not in LOOKING:
            return 0
        namespace = self.cache.namespace(progress.id, progress.request.salt)
        return self.cache.offers(namespace, progress.tokens(), progress.start_limit)[0].begin.start

    def rank(self, progress: Progress, cached: int) -> int:
        expected = 0
        if self.policy is SchedulePolicy.SRPT:
            expected = self.outputs.lengths().expected(progress.outputs)
        return rank(self.policy, progress, cached=cached, outputs_expected=expected)
