"""How far each eviction policy is from the best possible one on a known trace."""
