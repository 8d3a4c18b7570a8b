"""How many prompt tokens eviction policies find, compared with the best possible policy. See `report`."""
