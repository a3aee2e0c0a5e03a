#!/usr/bin/env bash
# The ACLs of the worker: docs/rights.md. Made by `make docs`.
# PRINCIPAL=User:tideline-worker bash worker.sh --bootstrap-server HOST:PORT [--command-config FILE]
set -euo pipefail
: "${PRINCIPAL:=User:tideline-worker}" "${KAFKA_ACLS:=kafka-acls.sh}"
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Alter --operation Describe --operation DescribeConfigs --cluster
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Describe --group '*'
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation AlterConfigs --operation Delete --operation Describe --operation DescribeConfigs --operation Read --topic '*'
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Describe --operation Write --transactional-id '*'
