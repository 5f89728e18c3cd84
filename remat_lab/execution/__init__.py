"""The only room (with ``zoo``) that imports torch: capture a model, run schedules on it, measure."""
