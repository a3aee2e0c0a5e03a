-- acl: ACLs of the topic that name a host; share_group: share groups that subscribe to it.
ALTER TABLE watch_findings DROP CONSTRAINT watch_findings_kind_check;
ALTER TABLE watch_findings ADD CONSTRAINT watch_findings_kind_check
    CHECK (kind IN ('tail', 'short', 'config', 'grown', 'acl', 'share_group'));
