"""Every sentence of a comparison, written once: functions from the figures of `analysis` to text, for all renderers."""
