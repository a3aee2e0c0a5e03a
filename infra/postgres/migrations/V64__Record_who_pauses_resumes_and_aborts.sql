-- Steering of a migration is an operator's decision, too.
ALTER TABLE operator_actions DROP CONSTRAINT operator_actions_action_check,
    ADD CONSTRAINT operator_actions_action_check CHECK (action IN
        ('configure', 'accept_gap', 'force_completion', 'call_off_request', 'pause', 'resume',
        'abort'));
