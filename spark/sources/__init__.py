"""Where the jobs' frames come from."""
