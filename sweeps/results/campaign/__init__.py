"""The measurements behind the published results: run within a time budget, packed, and shown on a page."""
