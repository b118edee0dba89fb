"""A training goes on from its checkpoint as if it had never stopped."""
