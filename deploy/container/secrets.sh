#!/bin/sh
# Writes new passwords for compose.yaml into the folder `secrets` beside it, once; with another first argument, into that folder.
set -eu
folder=${1:-$(dirname "$0")/secrets}
if [ -e "$folder" ]; then
    echo "$folder exists: remove it for new passwords, together with the volumes of RabbitMQ and PostgreSQL" >&2
    exit 1
fi
password() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }
broker=$(password)
ledger=$(password)
# Other users cannot enter the folder. In it the files are readable for the containers' users, whose numbers differ from yours.
mkdir -m 0700 "$folder"
umask 022
printf 'default_user = steadyworker\ndefault_pass = %s\n' "$broker" > "$folder/rabbitmq.conf"
printf 'amqp://steadyworker:%s@rabbitmq:5672?management=http://rabbitmq:15672\n' "$broker" > "$folder/broker-url"
printf '%s\n' "$ledger" > "$folder/postgres-password"
printf 'postgresql://steadyworker:%s@postgres:5432/jobs?sslmode=disable\n' "$ledger" > "$folder/ledger-url"
