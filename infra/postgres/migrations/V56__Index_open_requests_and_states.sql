-- What is open is found however many requests have ended, and topics in a state however many there are.
CREATE INDEX migration_requests_to_start ON migration_requests (requested_at) WHERE taken_at IS NULL;
CREATE INDEX migration_requests_started ON migration_requests (requested_at) WHERE state = 'started';
CREATE INDEX migration_requests_by_topic ON migration_requests (topic);
CREATE INDEX logs_by_state ON logs (migration_state, topic_name) WHERE deleted_at IS NULL;
