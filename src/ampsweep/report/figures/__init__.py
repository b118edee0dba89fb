"""Panels and other pictures of a report as figures."""
