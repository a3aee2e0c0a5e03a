"""The main job, shown and proven: stock clients write and read while a topic becomes hybrid."""
