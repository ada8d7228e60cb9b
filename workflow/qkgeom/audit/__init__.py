"""Whether every number of a run follows from its weights: digests along the chain, and scores derived anew."""
