#!/usr/bin/env bash
# A drill for the loss of a majority: three nodes lose two disks, and a new cluster replaces them. Ends with status 0 if all new
# tokens are larger than all old ones, and if a storage backend that knows the old ones accepts the new and rejects the old.
#
#   deploy/drill.sh                                   # needs ringfence, curl, jq and cargo
#   RINGFENCE=target/release/ringfence deploy/drill.sh
#   HOST=127.0.0.9 STORAGE=127.0.0.1:7480 deploy/drill.sh   # with a storage backend that you started for http://127.0.0.9:7411
set -euo pipefail
# EPOCHREALTIME has a decimal point.
export LC_ALL=C
ringfence=$(command -v "${RINGFENCE:-ringfence}" || { echo "drill: set RINGFENCE to the program" >&2; exit 1; })
host=${HOST:-127.0.0.1}
work=$(mktemp -d)
declare -A pid
trap 'kill -9 "${pid[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

url() { echo "http://$host:741$1"; }
peers=1=$host:7511,2=$host:7512,3=$host:7513
export RINGFENCE_URLS=$(url 1),$(url 2),$(url 3)

# start ID DATA [OPTION]...
start() {
  "$ringfence" serve --id "$1" --data "$2" --http "$host:741$1" --peer "$host:751$1" --peers "$peers" \
    --die-with-parent $$ "${@:3}" >>"$work/log" 2>&1 &
  pid[$1]=$!
}
stop() { kill -9 "${pid[$1]}"; wait "${pid[$1]}" 2>/dev/null || true; unset "pid[$1]"; }
fail() { echo "drill: $*" >&2; tail -n 20 "$work/log" >&2; exit 1; }
ready() {
  for _ in {1..600}; do
    curl -sf "$(url "$1")/readyz" >/dev/null && return
    sleep 0.1
  done
  fail "node $1 is not ready after 60 s"
}
acquire() { "$ringfence" acquire "$1" --ttl 60s --output json | jq .token; }
# write KEY TOKEN STATUS
write() {
  local status
  status=$(curl -sX PUT "http://$storage/$1" -H "Ringfence-Key: $1" -H "Ringfence-Token: $2" -d x -o /dev/null -w '%{http_code}')
  [ "$status" = "$3" ] || fail "the storage answered $status to a write of $1 with token $2, not $3"
}

storage=${STORAGE:-}
if [ -z "$storage" ]; then
  storage=$host:7480
  root=$(realpath "$(dirname "$0")/..")
  cargo build -q --manifest-path "$root/Cargo.toml" -p ringfence-storage
  "${CARGO_TARGET_DIR:-$root/target}/debug/ringfence-storage" "$(url 1)" "$storage" "$work/files" &
  pid[storage]=$!
fi

echo "three nodes, leases, and writes that the storage accepts"
for id in 1 2 3; do start $id "$work/$id"; done
for id in 1 2 3; do ready $id; done
old=()
for key in files/a files/b; do
  old+=("$(acquire $key)")
  write $key "${old[-1]}" 204
done

echo "node 3 hangs; nodes 1 and 2 grant without it, and then lose their disks"
kill -STOP "${pid[3]}"
old+=("$(acquire files/c)")
write files/c "${old[2]}" 204
begun=$EPOCHREALTIME
for id in 1 2 3; do stop $id; done
rm -r "$work/1" "$work/2"

echo "a backup from node 3, and a new cluster"
"$ringfence" backup save --data "$work/3" "$work/backup.json"
for id in 1 2 3; do start $id "$work/new-$id" --restore "$work/backup.json"; done
for id in 1 2 3; do ready $id; done

echo "all tokens are larger, and the storage accepts them and rejects the old ones"
new=()
for key in files/a files/b files/c; do
  new+=("$(acquire $key)")
  write $key "${new[-1]}" 204
done
seconds=$(jq -n "$EPOCHREALTIME - $begun | . * 10 | round / 10")
for n in "${new[@]}"; do
  for o in "${old[@]}"; do [ "$n" -gt "$o" ] || fail "token $n is not above $o"; done
done
write files/a "${old[0]}" 412
write files/b "${old[1]}" 412
write files/c "${old[2]}" 412
echo "recovered in $seconds s, from the loss to the last of three accepted writes"
