"""What one executor does with one claimed thing: no frames, no Spark."""
