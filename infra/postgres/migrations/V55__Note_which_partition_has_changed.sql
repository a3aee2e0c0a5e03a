-- Which partition has changed, where nothing else of the topic has: who follows a topic of 5,000
-- partitions reads one row. Null: the topic itself, or it is not known.
ALTER TABLE tracking_changes ADD COLUMN partition integer;
