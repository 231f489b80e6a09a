#!/bin/sh
# Dumps one PostgreSQL database into one file, which appears whole or not at all.
#
#   steadyworker exec --queue backups --time-limit 2h -- ./backup.sh {payload.database} /backups/{key}.dump
#
# pg_dump reads the server and the password from PGHOST, PGUSER and PGPASSFILE.
set -eu
database=$1 target=$2

# Descriptor 3 takes reports: this one shows in `steadyworker jobs`, and counts for --stall-limit.
echo "progress 0 1 dumping $database" >&3

pg_dump --format=custom --file="$target.part" -- "$database"
mv "$target.part" "$target"
echo "progress 1 1 done" >&3
