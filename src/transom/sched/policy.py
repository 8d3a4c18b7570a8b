"""Who is looked at first of those that wait: one number per request, for each policy. Pure."""

from enum import StrEnum

from transom.sched.request import Progress


class SchedulePolicy(StrEnum):
    """Of one tenant's requests. Whoever was passed over often enough goes first in each of them."""

    LPM = "lpm"
    """The longest cached prefix first: what is there is used before it has to go."""
    FCFS = "fcfs"
    """As they came, a step of priority being some arrivals ahead."""
    SRPT = "srpt"
    """The fewest tokens still to compute first, expected outputs among them."""
    PRIORITY = "priority"
    """Classes: a higher priority before any lower one."""


LOOKING = (SchedulePolicy.LPM, SchedulePolicy.SRPT)
"""Policies that ask for cached prefixes."""


def rank(policy: SchedulePolicy, progress: Progress, *, cached: int, outputs_expected: int) -> int:
    """Smaller goes first; of equals, the senior. `cached` tokens of what is known need not be computed."""
    match policy:
        case SchedulePolicy.LPM:
            return -cached
        case SchedulePolicy.FCFS:
            return 0
        case SchedulePolicy.SRPT:
            return progress.length - cached + min(progress.limit - progress.length, outputs_expected)
        case SchedulePolicy.PRIORITY:
            return -progress.request.priority
