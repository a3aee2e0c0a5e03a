#!/usr/bin/env bash
# The ACLs of the jobs: docs/rights.md. Made by `make docs`.
# PRINCIPAL=User:tideline-jobs bash jobs.sh --bootstrap-server HOST:PORT [--command-config FILE]
set -euo pipefail
: "${PRINCIPAL:=User:tideline-jobs}" "${KAFKA_ACLS:=kafka-acls.sh}"
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation DescribeConfigs --cluster
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Describe --group 'tideline-jobs'
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Delete --operation Describe --operation DescribeConfigs --operation Read --topic '*'
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Read --topic '__remote_log_metadata'
