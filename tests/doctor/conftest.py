"""Nothing here but this: with it pytest puts the folder on the path, for the models of planted faults."""
