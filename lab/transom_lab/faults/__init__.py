"""Scheduler lifetimes drawn from seeds, with aborts, crashes and floods; a judge checks every step."""
