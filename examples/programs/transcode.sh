#!/bin/sh
# Transcodes one film, and reports how far it is.
#
#   steadyworker exec --queue transcodes --time-limit 6h --stall-limit 5m -- \
#     ./transcode.sh {payload.source} {payload.target} {payload.seconds}
set -eu
source=$1 target=$2 seconds=$3

# No retry can mend a missing source: 66 makes the job a dead letter.
[ -r "$source" ] || { echo "no such film: $source" >&2; exit 66; }

# ffmpeg writes lines such as `out_time_us=12000000` to its progress URL; a pipe would hide its exit code.
ffmpeg -nostdin -y -loglevel error -progress "$target.progress" -i "$source" "$target.part.mp4" &
ffmpeg=$!
trap 'wait "$ffmpeg" || true; exit 79' TERM  # ffmpeg is in this process group, so it got the signal, too
while kill -0 "$ffmpeg" 2>/dev/null; do
    done=$(sed -n 's/^out_time_us=\([0-9]*\).*/\1/p' "$target.progress" 2>/dev/null | tail -n 1)
    [ -z "$done" ] || echo "progress $((done / 1000000)) $seconds" >&3
    sleep 1
done
wait "$ffmpeg"
rm -f "$target.progress"
mv "$target.part.mp4" "$target"
