"""A stranger's project: models, data and tasks that know of the suite what its documentation says."""
