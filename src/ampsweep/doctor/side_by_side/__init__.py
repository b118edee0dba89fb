"""Two dtypes side by side: the same step in float32 and in a training's own precision, operator by operator."""
