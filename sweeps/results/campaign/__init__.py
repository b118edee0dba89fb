"""The measurements behind the published results: what is run within a time budget, packed, and shown on a page."""
