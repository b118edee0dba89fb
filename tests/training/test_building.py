"""Everything a training is made of, from its config."""
