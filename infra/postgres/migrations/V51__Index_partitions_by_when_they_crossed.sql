-- What a migration will take is told by those that crossed last, however many there are.
CREATE INDEX migration_phases_crossed ON migration_phases (ended_at, log_id)
    WHERE phase = 'seed_and_persist' AND status = 'done';
