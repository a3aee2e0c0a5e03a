-- Every table of the control plane, but for what names B0 and the epoch at which it was set: that is in
-- V11 to V15, and V11 to V14 have the names that seed 000 gives them. V02 to V10 do not exist.

-- Topics and logs -----------------------------------------------------------------------------------

-- Topics are keyed by a number of our own, because a topic that is born diskless is known before
-- Kafka has given it an id, and because a deleted topic stays here as a tombstone: its id is
-- refused for ever (schedule 19).
CREATE TABLE topics (
    topic_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    topic_id uuid UNIQUE,
    kind text NOT NULL CHECK (kind IN ('migrated', 'born_diskless')),
    status text NOT NULL CHECK (status IN ('tracking', 'active', 'aborted', 'deleted')),
    tracked boolean NOT NULL DEFAULT true,
    timestamp_type text NOT NULL CHECK (timestamp_type IN ('CreateTime', 'LogAppendTime')),
    max_message_bytes integer NOT NULL CHECK (max_message_bytes >= 0),
    tiering_paused boolean NOT NULL DEFAULT false,
    -- Batches committed until then are tiered whatever their age.
    tiering_requested_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- A round of tracking ends with an abort. What was acknowledged in one counts in no other.
    round integer NOT NULL DEFAULT 1 CHECK (round >= 1),
    -- A deleted topic says when, by whom and why; so does a name whose creation did not end.
    deleted_at timestamptz,
    deleted_by text,
    deleted_why text,
    -- Kafka's own defaults (message.timestamp.before.max.ms, message.timestamp.after.max.ms), in ms.
    timestamp_before_max_ms bigint NOT NULL DEFAULT 9223372036854775807
        CHECK (timestamp_before_max_ms >= 0),
    timestamp_after_max_ms bigint NOT NULL DEFAULT 3600000 CHECK (timestamp_after_max_ms >= 0),
    -- Frozen and sealed although a prefix is not complete; NULL: nobody forced it.
    completion_forced_by text,
    -- When the last migration was aborted; NULL: none was.
    aborted_at timestamptz,
    CONSTRAINT migrated_topic_has_id CHECK (topic_id IS NOT NULL OR kind = 'born_diskless'),
    CONSTRAINT live_topic_is_tracked CHECK (tracked OR status IN ('aborted', 'deleted')),
    CONSTRAINT deleted_topic_is_not_tracked CHECK (status <> 'deleted' OR NOT tracked),
    CONSTRAINT tombstone_says_when_by_whom_and_why CHECK (
        CASE WHEN status = 'deleted'
            THEN deleted_at IS NOT NULL AND deleted_by IS NOT NULL AND deleted_why IS NOT NULL
            ELSE deleted_at IS NULL AND deleted_by IS NULL AND deleted_why IS NULL
        END)
);

CREATE UNIQUE INDEX topics_live_name ON topics (name) WHERE status <> 'deleted';
CREATE INDEX topics_deleted_at ON topics (deleted_at) WHERE status = 'deleted';
-- What the worker asks twice a second.
CREATE INDEX topics_being_born ON topics (topic_key)
    WHERE status = 'tracking' AND kind = 'born_diskless';

-- One row per partition (seed 002, 4.1.1). Every column that changes with a commit is unindexed,
-- so that commits are heap-only updates.
CREATE TABLE logs (
    log_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    partition integer NOT NULL CHECK (partition >= 0),
    topic_name text NOT NULL,
    migration_state text NOT NULL
        CHECK (migration_state IN ('TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY')),
    -- Earliest readable offset of the whole log, -1 while unknown.
    log_start_offset bigint NOT NULL DEFAULT -1,
    -- First offset that retention has left in the suffix, -1 while it has none.
    suffix_start bigint NOT NULL DEFAULT -1,
    -- Next offset of the suffix, -1 while it has none.
    high_watermark bigint NOT NULL DEFAULT -1,
    -- Largest timestamp (ms) ever committed to the suffix, -1 if none.
    max_timestamp bigint NOT NULL DEFAULT -1,
    -- First offset in tiered storage and last one (inclusive), -1 if none.
    tiered_log_start_offset bigint NOT NULL DEFAULT -1,
    tiered_high_offset bigint NOT NULL DEFAULT -1,
    prefix_max_timestamp bigint NOT NULL DEFAULT -1,
    prefix_max_timestamp_offset bigint NOT NULL DEFAULT -1,
    -- Fencing token: every attempt takes the next one by updating the row.
    generation integer NOT NULL DEFAULT 0,
    -- open -> closed -> reopened within one generation, never back: an acknowledgement of a
    -- closure that became void must not count for another one.
    quiesce text NOT NULL DEFAULT 'open' CHECK (quiesce IN ('open', 'closed', 'reopened')),
    quiesce_deadline timestamptz,
    -- What was seeded: a digest of the input, and the last offset in it.
    seeds_digest text,
    seeds_last_offset bigint NOT NULL DEFAULT -1,
    tiering_complete boolean NOT NULL DEFAULT false,
    tiering_reason text,
    deleted_at timestamptz,
    UNIQUE (topic_id, partition),
    CONSTRAINT suffix_starts_up_to_high_watermark CHECK (suffix_start <= high_watermark),
    CONSTRAINT closed_quiesce_has_deadline
        CHECK ((quiesce = 'closed') = (quiesce_deadline IS NOT NULL))
) WITH (fillfactor = 50);

-- Topics in a state are found however many there are.
CREATE INDEX logs_by_state ON logs (migration_state, topic_name) WHERE deleted_at IS NULL;

-- Names of topics whose tracking has changed, by the transaction that did it. Rows are only added,
-- so that the partitions of a topic do not wait for each other in their write pauses.
CREATE TABLE tracking_changes (
    changed_by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    name text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of phases, too, it is noted that they have changed: who adds up migrations reads what changed.
    -- Gateways pass over it, because no route depends on a phase.
    routed boolean NOT NULL DEFAULT true,
    -- Which partition has changed, where nothing else of the topic has: who follows a topic of 5,000
    -- partitions reads one row. Null: the topic itself, or it is not known.
    partition integer
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off);

CREATE INDEX tracking_changes_in_order ON tracking_changes (changed_by);

-- What was changed before this transaction may be forgotten: who read before it reads everything.
CREATE TABLE tracking_changes_kept (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    forgotten_before xid8 NOT NULL DEFAULT '0'
);

INSERT INTO tracking_changes_kept DEFAULT VALUES;

-- Gateways, and what they say -------------------------------------------------------------------------

-- Each renewal of a lease reads what all of them say: one role may not say more than others can read.
CREATE TABLE gateways (
    gateway_id integer PRIMARY KEY CHECK (gateway_id >= 0),
    broker_id integer NOT NULL,
    incarnation uuid NOT NULL,
    -- A process that stopped cleanly has released its lease: nobody waits for it to lapse.
    status text NOT NULL CHECK (status IN ('active', 'fenced', 'released', 'retired')),
    -- A waiter times by its own clock how long this stays unchanged (schedule 15).
    renewals bigint NOT NULL DEFAULT 0,
    lease_ms integer NOT NULL CHECK (lease_ms > 0),
    address text NOT NULL CHECK (octet_length(address) <= 512),
    version text NOT NULL CHECK (octet_length(version) <= 512),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why it was fenced, or who attested that a retired one is cut off.
    status_reason text,
    -- Gateways lead clients to one that is near them. Null: as its broker's broker.rack says.
    rack text CHECK (rack <> '' AND octet_length(rack) <= 512),
    -- node=host:port, comma separated: where clients reach the brokers of other gateways through
    -- this one, while those are away. Null: nowhere.
    stand_ins text CHECK (octet_length(stand_ins) <= 262144),
    -- Whether it accepts connections.
    serving boolean NOT NULL,
    -- The timeline on which it renewed or registered last.
    timeline bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Incarnations that may never act again. One that was fenced or replaced may still run, cut off from
-- Postgres, and pass a topic through that it never heard of.
CREATE TABLE ended_incarnations (
    incarnation uuid PRIMARY KEY,
    gateway_id integer NOT NULL,
    reason text NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who or what has shown that it does not. Null: nobody has.
    accounted text,
    accounted_at timestamptz,
    -- Where it was; the row of its gateway has the newest address only.
    address text NOT NULL DEFAULT 'an unknown address'
);

CREATE INDEX ended_incarnations_unaccounted ON ended_incarnations (gateway_id)
    WHERE accounted IS NULL;

-- No topic starts to migrate before every gateway has acknowledged that it tracks it.
CREATE TABLE tracking_acks (
    topic_key bigint NOT NULL REFERENCES topics (topic_key),
    gateway_id integer NOT NULL REFERENCES gateways (gateway_id),
    incarnation uuid NOT NULL,
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    round integer NOT NULL DEFAULT 1,
    PRIMARY KEY (topic_key, gateway_id)
);

-- What each gateway had relayed when it stopped forwarding for a closed generation (schedule 14).
CREATE TABLE quiesce_acks (
    log_id bigint NOT NULL REFERENCES logs (log_id),
    generation integer NOT NULL,
    gateway_id integer NOT NULL REFERENCES gateways (gateway_id),
    incarnation uuid NOT NULL,
    highest_acknowledged_offset bigint NOT NULL,
    read_ceiling bigint NOT NULL,
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (log_id, generation, gateway_id, incarnation)
);

-- Incarnations that could act when a generation was closed: B0 waits for each of them, until it
-- acknowledges or is over. One that registered later is none, whatever it acknowledges.
CREATE TABLE quiesce_witnesses (
    log_id bigint NOT NULL REFERENCES logs (log_id) ON DELETE CASCADE,
    generation integer NOT NULL,
    incarnation uuid NOT NULL,
    PRIMARY KEY (log_id, generation, incarnation)
);

-- What a gateway says that Kafka did, or is about to do. It counts when the worker has asked the
-- brokers: Postgres cannot, and a gateway's credentials may be in other hands. Told by a login role.

-- Topics that are to be born diskless.
CREATE TABLE asked_births (
    name text NOT NULL,
    asked_by text NOT NULL,
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1000000),
    timestamp_type text NOT NULL CHECK (timestamp_type IN ('CreateTime', 'LogAppendTime')),
    max_message_bytes integer NOT NULL CHECK (max_message_bytes >= 0),
    timestamp_before_max_ms bigint CHECK (timestamp_before_max_ms >= 0),
    timestamp_after_max_ms bigint CHECK (timestamp_after_max_ms >= 0),
    -- max.message.bytes as the client gave it; null: it gave none.
    given_max_message_bytes text,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why the worker does not take it; null: it has not decided so.
    refused text,
    PRIMARY KEY (name, asked_by)
);

-- Topics that Kafka may have deleted.
CREATE TABLE reported_deletions (
    topic_id uuid PRIMARY KEY REFERENCES topics (topic_id),
    reported_by text NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- WAL files and batches -------------------------------------------------------------------------------

-- Postgres looks after a table when a fifth of it is dead. Of 10^9 rows that are 2 * 10^8, and the
-- one vacuum that follows takes hours. What grows with what clients send (here, producers, tiering,
-- collection) is looked after more often, and a vacuum may do ten times the work between two of its
-- pauses. The work of all of them goes through every index: the share is not smaller than a fiftieth,
-- so that a row that lives and dies is read over fifty times at most.
-- Without truncation: it waits for a lock that nobody shares, and commits wait behind it.
-- Queues (lessened_files, tracking_changes) are nearly empty, and read from their beginning, over
-- everything that is dead there: they are looked after by a count.

-- A key is registered before its object is uploaded, and committed at most once. Garbage
-- collection marks a key deleting by compare-and-set; such a key is never committed (schedule 17).
CREATE TABLE wal_files (
    file_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object_key text NOT NULL UNIQUE,
    gateway_id integer NOT NULL,
    incarnation uuid NOT NULL,
    status text NOT NULL DEFAULT 'registered'
        CHECK (status IN ('registered', 'committed', 'deleting')),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    committed_at timestamptz,
    -- Since when no batch is known to lie in it. Never again: only a commit adds batches.
    unreferenced_at timestamptz,
    size bigint,
    -- The answer of the commit, element by element, so that a retry with an unknown outcome finds
    -- its own success.
    outcome_errors text[],
    outcome_base_offsets bigint[],
    outcome_append_times bigint[],
    outcome_log_starts bigint[],
    outcome_high_watermarks bigint[],
    -- A WAL object ends with the outcomes of earlier commits of its stream, so that the bucket tells
    -- what Postgres does (decision 22). Who carries the outcomes of a file stays as long as that file
    -- is read.
    -- Place in the commit stream of its incarnation; null: it has no batches.
    stream_sequence bigint,
    -- Places, from 0, of the batches that are in the object and were not committed with it.
    withdrawn integer[],
    -- The committed file whose object tells the outcomes of this one.
    carried_by bigint,
    CONSTRAINT committed_file_has_outcome CHECK (status <> 'committed' OR (
        committed_at IS NOT NULL AND size IS NOT NULL AND outcome_errors IS NOT NULL
        AND outcome_base_offsets IS NOT NULL AND outcome_append_times IS NOT NULL
        AND outcome_log_starts IS NOT NULL AND outcome_high_watermarks IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000,
    vacuum_truncate = off);

CREATE INDEX wal_files_not_live ON wal_files (status, file_id) WHERE status <> 'committed';
CREATE INDEX wal_files_unreferenced ON wal_files (unreferenced_at)
    WHERE unreferenced_at IS NOT NULL;
CREATE INDEX wal_files_untold ON wal_files (gateway_id, incarnation, stream_sequence)
    WHERE status = 'committed' AND stream_sequence IS NOT NULL AND carried_by IS NULL;
CREATE INDEX wal_files_carried ON wal_files (carried_by)
    WHERE carried_by IS NOT NULL AND unreferenced_at IS NULL;

-- WAL files that lost batches, or were committed without one: those alone can have become dead. One
-- row for each transaction that took batches from a file, never merged with another's: what one
-- transaction still sees, another one may be deleting, and its own row comes with its commit.
CREATE TABLE lessened_files (
    note_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    file_id bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off);

-- Coordinates of record batches. The key is the last offset, so that the batch that holds an
-- offset is the first one at or after it. Written by commit_file alone, which holds the rows of
-- the log and the file: foreign keys would only cost each batch two more lookups.
-- A batch is DISKLESS while its split_id is null, SPLIT when it is set, and TIERED when its row is
-- gone: a merged segment stands for it then (seed 002, 4.7).
CREATE TABLE batches (
    log_id bigint NOT NULL,
    last_offset bigint NOT NULL,
    base_offset bigint NOT NULL,
    file_id bigint NOT NULL,
    byte_offset bigint NOT NULL,
    byte_size integer NOT NULL,
    log_append_time boolean NOT NULL,
    append_time bigint NOT NULL,
    -- ms; equals append_time under LogAppendTime.
    max_timestamp bigint NOT NULL,
    -- Largest max_timestamp of this log up to and including this batch: grows with the offset, so
    -- a lookup by timestamp is an index lookup.
    running_max_timestamp bigint NOT NULL,
    split_id bigint,
    PRIMARY KEY (log_id, last_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000,
    vacuum_truncate = off);

CREATE INDEX batches_by_running_max ON batches (log_id, running_max_timestamp, last_offset);
CREATE INDEX batches_by_file ON batches (file_id);
-- A batch is as old as its largest timestamp says, or as its commit: a producer whose clock is years
-- ahead must not keep its partition from being tiered. The index is on the older of the two, and holds
-- both, so that counting what is old reads no row, and none of what is not old.
CREATE INDEX batches_by_age ON batches (log_id, least(max_timestamp, append_time))
    INCLUDE (max_timestamp, append_time, last_offset, file_id, byte_size) WHERE split_id IS NULL;

-- Producers -------------------------------------------------------------------------------------------

-- Idempotent producer state: one row per producer, its last five batches in parallel arrays,
-- oldest first (Kafka: ProducerStateEntry). One row makes a commit a single heap-only update.
CREATE TABLE producer_state (
    log_id bigint NOT NULL,
    producer_id bigint NOT NULL CHECK (producer_id >= 0),
    producer_epoch integer NOT NULL,
    base_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    append_times bigint[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who has been idle is found without reading everybody. By the hour: an index on the time itself
    -- would make every commit of a producer a new entry in each index of the table; so it does once an
    -- hour.
    updated_hour integer NOT NULL GENERATED ALWAYS AS (floor(extract(epoch FROM
        updated_at - timestamptz '1970-01-01 00:00:00+00') / 3600)::integer) STORED,
    -- Up to this sequence batches of the epoch were appended whose offsets are not known: below B0,
    -- where retention had taken them or they lay too far back, or before a rebuild. Null: there are
    -- none.
    unlocated_sequence integer,
    PRIMARY KEY (log_id, producer_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 2000,
    vacuum_truncate = off);

CREATE INDEX producer_state_by_hour ON producer_state (updated_hour);

-- Producer state where the next merged segment begins: a jsonb array of {producer_id,
-- producer_epoch, last_sequence, last_offset, offset_delta, timestamp}. The seeds at B0 (under
-- their digest), then the state at the end of the last merged segment.
CREATE TABLE producer_snapshots (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    seeds_digest text,
    end_offset bigint,
    entries jsonb NOT NULL
);

-- One row: when producers were expired last, by the database's clock, which a restore, a failover or
-- an administrator may set forward. After a jump nobody is forgotten for as long as one may be idle.
CREATE TABLE producer_expiry (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_run timestamptz NOT NULL,
    not_before timestamptz NOT NULL DEFAULT '-infinity'
);

-- Migrations, and what operators decide ---------------------------------------------------------------

-- Runs of migrations that may begin no round (any more): each has begun one, or was aborted first.
CREATE TABLE tracking_runs (
    run text PRIMARY KEY,
    -- The round that it began or joined, of which topic; none if it was aborted before that.
    topic_key bigint REFERENCES topics (topic_key) ON DELETE CASCADE,
    round integer,
    ended boolean NOT NULL DEFAULT false,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX tracking_runs_of_topic ON tracking_runs (topic_key);

-- Evidence: what each phase observed, last attempt only.
CREATE TABLE migration_phases (
    log_id bigint NOT NULL REFERENCES logs (log_id),
    phase text NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'waiting', 'done', 'failed', 'aborted')),
    generation integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    waiting_reason text,
    evidence jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (log_id, phase),
    CONSTRAINT ended_phase_has_time
        CHECK ((status IN ('done', 'failed', 'aborted')) = (ended_at IS NOT NULL))
);

-- What a migration will take is told by those that crossed last, however many there are.
CREATE INDEX migration_phases_crossed ON migration_phases (ended_at, log_id)
    WHERE phase = 'seed_and_persist' AND status = 'done';

-- Triggers that wait for the worker. What became of one is kept until another one of the topic takes
-- its place.
CREATE TABLE migration_requests (
    topic_id uuid PRIMARY KEY,
    topic text NOT NULL,
    requested_by text NOT NULL,
    options jsonb NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_at timestamptz,
    state text NOT NULL DEFAULT 'received' CHECK (state IN
        ('received', 'retrying', 'started', 'done', 'refused', 'called_off')),
    reason text NOT NULL DEFAULT '',
    tries integer NOT NULL DEFAULT 0,
    next_try_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What is open is found however many requests have ended.
CREATE INDEX migration_requests_to_start ON migration_requests (requested_at) WHERE taken_at IS NULL;
CREATE INDEX migration_requests_started ON migration_requests (requested_at) WHERE state = 'started';
CREATE INDEX migration_requests_by_topic ON migration_requests (topic);

-- Topic configs that Tideline overrides in Kafka, and what the user had (restored on abort).
CREATE TABLE config_overrides (
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    key text NOT NULL,
    override_value text,
    user_value text,
    PRIMARY KEY (topic_id, key)
);

-- Topics whose migration has a place or waits for one, over all triggers. A topic is here before it is
-- tracked, so nothing is referenced.
CREATE TABLE migration_places (
    topic_id uuid PRIMARY KEY,
    topic text NOT NULL,
    -- The first run of the workflow that asked: the fence of who gives the place back.
    run text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    taken_at timestamptz,
    -- When whoever has it was last heard of, or looked for.
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What operators allow of all migrations together; the newest row holds. NULL: no limit but the worker's
-- setting (topics), or none (partitions).
CREATE TABLE migration_limits (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topics integer CONSTRAINT topics_not_negative CHECK (topics >= 0),
    partitions integer CONSTRAINT partitions_not_negative CHECK (partitions >= 0),
    set_by text NOT NULL,
    reason text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What became of each topic of a planned wave. A plan starts a topic once; a person starts it again.
CREATE TABLE plan_outcomes (
    plan text NOT NULL CHECK (plan <> ''),
    topic text NOT NULL,
    -- allowed: a person who was asked has let the topic's batch begin. left_behind: the wave has gone
    -- on without a topic whose migration took too long, and goes on.
    outcome text NOT NULL CHECK (outcome IN (
        'started', 'done', 'aborted', 'refused', 'failed', 'rejected', 'allowed', 'left_behind')),
    reason text NOT NULL,
    -- The run of the wave that told it.
    run text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (plan, topic)
);

-- An operator's word that clients reach the brokers of a Kafka cluster only through gateways. Rows
-- stay when the word is withdrawn: who said what, and when, is the record.
CREATE TABLE cluster_attestations (
    attestation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id text NOT NULL CHECK (cluster_id <> ''),
    attested_by text NOT NULL CHECK (attested_by <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    attested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    withdrawn_by text,
    withdrawn_reason text,
    withdrawn_at timestamptz,
    CONSTRAINT withdrawn_by_somebody_for_a_reason CHECK (
        (withdrawn_at IS NULL) = (withdrawn_by IS NULL)
        AND (withdrawn_at IS NULL) = (withdrawn_reason IS NULL)
        AND withdrawn_by <> '' AND withdrawn_reason <> '')
);

CREATE UNIQUE INDEX cluster_attestations_in_force ON cluster_attestations (cluster_id)
    WHERE withdrawn_at IS NULL;

-- What an operator decided that no rule could: who, why, when. Never updated, never deleted. No
-- reference to topics: an option may be changed before the topic is tracked.
CREATE TABLE operator_actions (
    action_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    -- NULL: the whole topic.
    partition integer,
    action text NOT NULL
        CHECK (action IN ('configure', 'accept_gap', 'force_completion', 'call_off_request', 'pause',
            'resume', 'abort')),
    decided_by text NOT NULL CHECK (decided_by <> ''),
    reason text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX operator_actions_by_topic ON operator_actions (topic, action_id);

-- What the worker's watches found to disagree with Postgres in Kafka. A row stays when it ends: a tail
-- past B0 that is gone from a broker later was acknowledged by it all the same.
CREATE TABLE watch_findings (
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    -- tail: a replica's log goes on past B0. short: one ends below it. config: set past the gateways.
    -- grown: a partition that Kafka has and that has no row here. acl: ACLs of the topic that name a
    -- host. share_group: share groups that subscribe to it.
    kind text NOT NULL
        CHECK (kind IN ('tail', 'short', 'config', 'grown', 'acl', 'share_group')),
    -- The partition's number, or the config's key.
    subject text NOT NULL,
    detail jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    PRIMARY KEY (topic_id, kind, subject)
);

-- Tiering: split, merge, coverage ---------------------------------------------------------------------

-- Tokens of claims, in one sequence: a token is never used twice.
CREATE SEQUENCE tiering_tokens AS bigint;

-- Who splits a WAL file. An expired claim holds until somebody takes it over.
CREATE TABLE wal_file_claims (
    file_id bigint PRIMARY KEY,
    worker uuid NOT NULL,
    token bigint NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

-- One contiguous run of offsets of one partition out of one WAL file (seed 002, 10.4, option A).
-- It is recorded and not copied: it has no object of its own, and its bytes are those of its batches in
-- the WAL object, which stays until they are merged.
CREATE TABLE split_files (
    split_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    file_id bigint NOT NULL,
    token bigint NOT NULL,
    log_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    byte_size bigint NOT NULL CHECK (byte_size > 0),
    batch_count integer NOT NULL CHECK (batch_count > 0),
    max_timestamp bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (base_offset <= last_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
    vacuum_truncate = off);

CREATE INDEX split_files_of_log ON split_files (log_id, base_offset);
-- The second telling of a split finds what the first one has recorded.
CREATE INDEX split_files_recorded ON split_files (file_id, token);

-- Who merges a partition. The row stays when nobody does: the token fences.
CREATE TABLE merge_claims (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    worker uuid,
    token bigint NOT NULL DEFAULT 0,
    segment_id uuid,
    expires_at timestamptz,
    CONSTRAINT claim_of_segment_expires CHECK ((segment_id IS NULL) = (expires_at IS NULL))
);

-- Merged segments, with the states of Kafka's remote log segments. The range and the figures are
-- the plan's until the segment is finished. Objects: object_key_stem with Kafka's suffixes.
CREATE TABLE merged_segments (
    segment_id uuid PRIMARY KEY,
    log_id bigint NOT NULL REFERENCES logs (log_id),
    token bigint NOT NULL,
    state text NOT NULL CHECK (state IN
        ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')),
    object_key_stem text NOT NULL UNIQUE,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    size_bytes bigint NOT NULL,
    max_timestamp bigint NOT NULL DEFAULT -1,
    leader_epoch integer NOT NULL,
    record_count bigint NOT NULL DEFAULT 0,
    batch_count integer NOT NULL,
    offset_index_bytes integer NOT NULL DEFAULT 0,
    time_index_bytes integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    -- Why it was given up or deleted.
    reason text,
    -- What its objects are to be, and when they were found to be so, a while after it was finished:
    -- until then nothing that died since it was merged is collected. NULL: not known, it was added by
    -- a rebuild.
    snapshot_bytes integer,
    epoch_checkpoint_bytes integer,
    seen_whole_at timestamptz,
    CONSTRAINT segment_has_offsets CHECK (base_offset <= last_offset),
    CONSTRAINT finished_segment_has_time
        CHECK (state <> 'COPY_SEGMENT_FINISHED' OR finished_at IS NOT NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
    vacuum_truncate = off);

CREATE INDEX merged_segments_by_log ON merged_segments (log_id, last_offset, segment_id);
CREATE UNIQUE INDEX merged_segments_readable ON merged_segments (log_id, last_offset)
    WHERE state = 'COPY_SEGMENT_FINISHED';
CREATE INDEX merged_segments_begun ON merged_segments (log_id)
    WHERE state = 'COPY_SEGMENT_STARTED';
CREATE INDEX merged_segments_unseen ON merged_segments (finished_at)
    WHERE state = 'COPY_SEGMENT_FINISHED' AND seen_whole_at IS NULL;

-- What the last coverage run said of a partition's prefix, for the B0 it looked at.
CREATE TABLE coverage_results (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    generation integer NOT NULL,
    boundary bigint NOT NULL,
    complete boolean NOT NULL,
    reason text NOT NULL,
    detail jsonb NOT NULL,
    run_id text NOT NULL,
    observed_at timestamptz NOT NULL,
    since timestamptz NOT NULL,
    -- What it found in the bucket: when it listed the partition, and of which segments it found every
    -- object. Without a digest something was missing, or nobody has looked since it is kept.
    objects_seen_at timestamptz,
    objects_digest bytea
);

-- Failed attempts in a row: of a WAL file (split, its file_id) or a partition (merge, its log_id).
CREATE TABLE tiering_failures (
    scope text NOT NULL CHECK (scope IN ('split', 'merge')),
    key bigint NOT NULL,
    failures integer NOT NULL,
    error text NOT NULL,
    parked boolean NOT NULL,
    retry_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key)
);

-- Counters of split and merge (seed 002, 4.8.1). A job lives only as long as its run; what the
-- worker exports must outlive it. Names: tideline/domain/tiering_totals.py.
CREATE TABLE tiering_totals (
    total text PRIMARY KEY,
    value bigint NOT NULL CHECK (value >= 0)
);

-- What was split and merged, noted in the transaction that did it: so a count is right whoever is
-- killed, tried again or run twice. Rows are only added, so that nobody waits for another; a run that
-- ends adds its own up into tiering_totals.
CREATE TABLE tiering_work (
    worker uuid NOT NULL,
    total text NOT NULL,
    value bigint NOT NULL CHECK (value >= 0),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX tiering_work_by_worker ON tiering_work (worker);
CREATE INDEX tiering_work_by_age ON tiering_work (noted_at);

-- Collection ------------------------------------------------------------------------------------------

-- Objects that nothing refers to any more, marked for deletion. They are deleted after a grace, then
-- forgotten.
CREATE TABLE marked_objects (
    bucket text NOT NULL CHECK (bucket IN ('diskless', 'tiered')),
    object_key text NOT NULL,
    segment_id uuid NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why it is dead. What is unfinished here may have been finished in a history that a restore has
    -- taken back: it stays as long as an orphan.
    reason text NOT NULL CHECK (reason IN ('expired', 'unfinished')),
    PRIMARY KEY (bucket, object_key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);

CREATE INDEX marked_objects_by_age ON marked_objects (marked_at);
CREATE INDEX marked_objects_of_segment ON marked_objects (segment_id);

-- Objects that were listed and that nothing refers to, since when. One that was written anew since is
-- another object: its time starts again. Times of modification are S3's, in ms.
CREATE TABLE orphan_reports (
    bucket text NOT NULL CHECK (bucket IN ('diskless', 'tiered')),
    object_key text NOT NULL,
    size bigint NOT NULL,
    etag text NOT NULL,
    modified_ms bigint NOT NULL,
    first_run bigint NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_run bigint NOT NULL,
    PRIMARY KEY (bucket, object_key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);

CREATE INDEX orphan_reports_by_age ON orphan_reports (first_seen, bucket, object_key);
CREATE INDEX orphan_reports_by_run ON orphan_reports (last_run);

-- Runs of the collection: what each found due, beside what was listed, and what became of it. A run
-- that found more due than it may delete is held until somebody allows exactly that.
CREATE TABLE gc_runs (
    run_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'held', 'done')),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    -- When it was counted what is due: what an allowance of it is about.
    judged_at timestamptz,
    listed_objects bigint,
    listed_bytes bigint,
    due_objects bigint NOT NULL DEFAULT 0,
    due_bytes bigint NOT NULL DEFAULT 0,
    due_orphans bigint NOT NULL DEFAULT 0,
    due_orphan_bytes bigint NOT NULL DEFAULT 0,
    deleted_objects bigint NOT NULL DEFAULT 0,
    held_because text,
    allowed_by text,
    allowed_because text,
    allowed_at timestamptz,
    -- The run that deleted what this one was held for.
    used_by bigint,
    CONSTRAINT allowance_says_who_and_why CHECK ((allowed_at IS NULL)
        = (allowed_by IS NULL) AND (allowed_at IS NULL) = (allowed_because IS NULL)),
    CONSTRAINT held_run_says_why CHECK ((state = 'held') = (held_because IS NOT NULL))
);

-- Who reads objects for long: what died after pinned_at is collected once nobody holds such a pin.
CREATE TABLE read_pins (
    pin_id uuid PRIMARY KEY,
    reader text NOT NULL,
    pinned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

-- What the last verification of a topic found: the table from object storage beside what gateways
-- serve.
CREATE TABLE verify_verdicts (
    topic_id uuid PRIMARY KEY,
    run_id uuid NOT NULL,
    verified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sample double precision NOT NULL CHECK (sample > 0 AND sample <= 1),
    ranges bigint NOT NULL,
    records bigint NOT NULL,
    byte_count bigint NOT NULL,
    differences bigint NOT NULL,
    detail jsonb NOT NULL DEFAULT '[]'
);

-- Installation, jobs and their records ----------------------------------------------------------------

-- Which installation of Tideline the rows belong to, and which history of commits. One row, made
-- here: a database that is made anew is another installation.
CREATE TABLE installation (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    installation_id uuid NOT NULL DEFAULT gen_random_uuid(),
    history_id uuid NOT NULL DEFAULT gen_random_uuid(),
    cluster_id text CHECK (cluster_id <> ''),
    halted text CHECK (halted <> ''),
    -- The one on which commits are taken. After a promotion nothing is committed before it is known
    -- that the new timeline lacks no commit that somebody was told.
    timeline bigint NOT NULL
);

INSERT INTO installation (timeline)
    VALUES (('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint);

-- Histories that an operator began after commits were lost; the first one has no row.
CREATE TABLE histories (
    history_id uuid PRIMARY KEY,
    before_id uuid NOT NULL,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_by text NOT NULL CHECK (begun_by <> ''),
    reason text NOT NULL CHECK (reason <> '')
);

-- Proof that nothing was taken back: who has seen a beat finds its token here again.
CREATE TABLE history_beats (
    beat bigint PRIMARY KEY,
    token uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO history_beats (beat) VALUES (1);

-- When each periodic job last did all its work. A job that never runs tells nobody by itself.
CREATE TABLE job_successes (
    job text PRIMARY KEY,
    succeeded_at timestamptz NOT NULL
);

-- The newest whole run of each periodic job, and the last one that failed: job_successes says when
-- one last ended well. A run that never ends was killed, or hangs.
CREATE TABLE job_attempts (
    job text PRIMARY KEY,
    run_id uuid NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    failed_at timestamptz,
    error text,
    -- What the newest run knows of rows that it could not tell.
    records_overdue_since timestamptz,
    records_lost bigint NOT NULL DEFAULT 0
);

-- The embedded catalog of the Iceberg tables that runs of the jobs tell, as every JDBC catalog of
-- Iceberg has it.
CREATE TABLE tideline_records.iceberg_tables (
    catalog_name varchar(255) NOT NULL,
    table_namespace varchar(255) NOT NULL,
    table_name varchar(255) NOT NULL,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);

CREATE TABLE tideline_records.iceberg_namespace_properties (
    catalog_name varchar(255) NOT NULL,
    namespace varchar(255) NOT NULL,
    property_key varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);
