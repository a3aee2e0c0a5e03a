-- grown: a partition that Kafka has and that has no row here.
ALTER TABLE watch_findings DROP CONSTRAINT watch_findings_kind_check;
ALTER TABLE watch_findings ADD CONSTRAINT watch_findings_kind_check
    CHECK (kind IN ('tail', 'short', 'config', 'grown'));
