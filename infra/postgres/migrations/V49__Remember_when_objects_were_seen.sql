-- What a coverage run found in the bucket: when it listed a partition, and of which segments it found every
-- object. Without a digest something was missing, or nobody has looked since it is kept.
ALTER TABLE coverage_results
    ADD COLUMN objects_seen_at timestamptz,
    ADD COLUMN objects_digest bytea;
