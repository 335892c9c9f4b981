# Machines for the commands of docs/operations.md: $R/N is the root of machine N, and $MACHINE the one where commands run. Needs
# $R, $PROGRAM and $HOST. Three nodes run when this has been read; if $SECURED is not empty, with TLS and access rules.
set -euo pipefail
cd "$R"
mkdir bin
ln -s "$PROGRAM" bin/ringfence
PATH=$R/bin:$PATH
declare -A PID
TOKEN=0

systemctl() {
  local unit=$MACHINE/${*: -1}
  case $1 in
    start) start "$unit" ;;
    stop) halt TERM "$unit" ;;
    disable) halt TERM "$unit" ;;
    restart) halt TERM "$unit"; start "$unit" ;;
    kill) if [ "${2#--signal=}" = KILL ]; then halt KILL "$unit"; else kill -s "${2#--signal=}" "${PID[$unit]}"; fi ;;
  esac
}
start() {
  local root=$R/${1%/*}
  mkdir -p "$root/var/lib/ringfence"
  case $1 in
    */ringfence) (
      set -a; source "$root/etc/default/ringfence"
      exec ringfence serve --die-with-parent $$
    ) >> "$root/log" 2>&1 & ;;
    */redis-server) setpriv --pdeathsig KILL redis-server --bind "$HOST" --port 742"${1%/*}" --save '' > "$root/log" & ;;
  esac
  PID[$1]=$!
  # As with Type=notify, until it listens, or has ended.
  [[ $1 = */redis-server ]] || until curl -kso /dev/null "$(url "${1%/*}")" || ! kill -0 $!; do sleep 0.05; done
}
# Also of a process that is stopped, or has ended by itself.
halt() {
  [ -n "${PID[$2]:-}" ] || return 0
  kill -s CONT "${PID[$2]}" 2>/dev/null || true
  kill -s "$1" "${PID[$2]}" 2>/dev/null || true
  wait "${PID[$2]}" || true
  unset "PID[$2]"
}
journalctl() { tail -n "${*: -1}" "$R/$MACHINE/log"; }
# Settings name files of the machine that they are on.
scp() {
  local from=("${@:1:$#-1}") to
  to=$(local_path "${@: -1}")
  for file in "${from[@]}"; do
    [ "$file" = -p ] || cp "$(local_path "$file")" "$to"
  done
  [[ "${from[-1]}" != */default/ringfence ]] || sed -i "s|$R/[0-9]/|$R/$MACHINE/|" "$to/ringfence"
}
# There is one user.
chown() { :; }
local_path() {
  local number=${1#10.0.0.}
  if [ "$number" = "$1" ]; then echo "$1"; else echo "$R/${number%%:*}${1#*:"$R/$MACHINE"}"; fi
}
on() { local MACHINE=$1; "${@:2}"; }

fail() { echo "failed: $*"; tail -n 15 "$R"/*/log; exit 1; }
# eventually WHAT COMMAND...
eventually() {
  for _ in $(seq 600); do
    if "${@:2}" > /dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  fail "not within a minute: $1"
}
url() { echo "http${SECURED:+s}://$HOST:742$1"; }
curl() { if [ -n "$SECURED" ]; then command curl --cacert "$R/0/etc/ringfence/authority.pem" --oauth2-bearer "$CREDENTIAL" "$@"; else command curl "$@"; fi; }
# The certificates of a node, and the settings that name them.
secure() {
  [ -n "$SECURED" ] || return 0
  local etc=$R/$1/etc/ringfence
  mkdir -p "$etc"
  [ -e "certificates/node-$1.pem" ] || ringfence cert node --dir certificates --id "$1" --hosts "$HOST" > /dev/null
  for end in .pem .key -peer.pem -peer.key; do cp "certificates/node-$1$end" "$etc/node$end"; done
  cp certificates/authority.pem certificates/node-authority.pem access.toml "$etc"
  printf 'RINGFENCE_%s\n' TLS_CERTIFICATE="$etc/node.pem" TLS_KEY="$etc/node.key" ACCESS="$etc/access.toml" \
    TLS_CLIENT_AUTHORITY="$etc/authority.pem" \
    PEER_CERTIFICATE="$etc/node-peer.pem" PEER_KEY="$etc/node-peer.key" PEER_AUTHORITY="$etc/node-authority.pem" \
    >> "$R/$1/etc/default/ringfence"
}
is_ready() { curl -sf --max-time 2 "$(url "$1")/readyz"; }
ready() { eventually "node $1 is ready" is_ready "$1"; }
status() { curl -sf --max-time 2 "$(url "$1")/v1/cluster"; }
are_voters() { [ "$(status "$1" | jq -r '[.members | to_entries[] | select(.value.voter) | .key] | join(" ")')" = "${*:2}" ]; }
# All of these, and no others, vote and are ready.
votes() {
  for id; do
    eventually "$* vote, as $id knows" are_voters "$id" "$@"
    ready "$id"
  done
}
ended() { eventually "node $1 has logged $2" grep -q "$2" "$R/$1/log"; on "$1" systemctl stop ringfence; }
refused() { eventually "node $1 is refused" grep -q "is no member of the cluster\|knows node\|does not know" "$R/$1/log"; }
mirrored() { eventually "the fence is in Redis" has_fence; }
has_fence() { [ "$(redis-cli -h "$HOST" -p 7429 EXISTS 'ringfence:{a}')" = 1 ]; }
# A node that waits to be added, and has no list of the members.
joiner() {
  mkdir -p "$R/$1/etc/default"
  printf 'RINGFENCE_%s\n' ID="$1" DATA="$R/$1/var/lib/ringfence" HTTP="$HOST:742$1" PEER="$HOST:752$1" JOIN=true \
    > "$R/$1/etc/default/ringfence"
  secure "$1"
  on "$1" systemctl start ringfence
}

# Acquires a key, for ten minutes, and remembers lease and token.
acquire() {
  local grant
  grant=$(ringfence acquire "$1" --ttl 10m --output json)
  LEASE=$(jq -r .lease_id <<< "$grant")
  TOKEN=$(jq .token <<< "$grant")
}
# The last lease is still held, and the next token is larger.
keeps() {
  ringfence renew "$LEASE" > /dev/null || fail "the lease is lost"
  grants_more
}
grants_more() {
  local before=$TOKEN
  acquire "next/$RANDOM"
  [ "$TOKEN" -gt "$before" ] || fail "token $TOKEN is not above $before"
}
# No setting that founds a cluster is left.
are_clean() { if grep 'RESTORE\|FIRST_REVISION' "$R"/[123]/etc/default/ringfence; then fail "this founds another cluster"; fi; }
lose() { on "$1" systemctl kill --signal=KILL ringfence; rm -rf "$R/$1/var/lib/ringfence"; }
# Overwrites a byte of the log's second sector.
damage() {
  local segments=("$R/$1"/var/lib/ringfence/log/*.wal)
  printf '\xff' | dd of="${segments[0]}" bs=1 seek=600 conv=notrunc status=none
}
# Puts the data of a node on a file system that is full. Needs a mount namespace of its own.
fill() {
  local data=$R/$1/var/lib/ringfence
  mv "$data" "$R/aside"
  mkdir "$data"
  mount -t tmpfs -o size=48m ringfence "$data"
  cp -r "$R/aside/." "$data"
  head -c 48M /dev/zero > "$data/other" 2> /dev/null || true
}
free() { rm "$R/$1/var/lib/ringfence/other"; }
# Fills the log until node 3 has no space for it.
flood() {
  local long
  long=$(printf 'x%.0s' $(seq 400))
  for _ in $(seq 100); do
    if grep -q 'No space left' "$R/3/log"; then return 0; fi
    cat $(printf '/proc/sys/kernel/random/uuid %.0s' $(seq 25)) | jq -nRc --arg long "$long" '{operations: [inputs
      | {acquire: {lease_id: ., keys: [range(64) as $key | "\(.)/\($key)/\($long)"], ttl_ms: 600000}}]}' |
      curl -sX POST -d @- "$(url 1)/v1/batch" > /dev/null
  done
  fail "node 3 still has space"
}

# Certificates of all nodes that have ended.
outdate() {
  for id in 1 2 3; do
    faketime -f -9612h ringfence cert node --dir certificates --id $id --hosts "$HOST" --force > /dev/null
    for end in .pem .key -peer.pem -peer.key; do cp "certificates/node-$id$end" "$R/$id/etc/ringfence/node$end"; done
    on $id systemctl restart ringfence
  done
}
# A node has logged that its certificate has ended.
ended_for() { eventually "node $1 says that its certificate has ended" grep -q "a certificate of this node ended on" "$R/$1/log"; }
# All certificates of these nodes are as good as new.
lasts() {
  for id; do
    eventually "the certificates of node $id are new" are_new "$id"
  done
}
are_new() {
  local now
  now=$(date +%s)
  status "$1" | jq -e "[.certificates[] | select(.authority | not).ends_unix_s] | length == 2 and min > $now + 360 * 86400"
}

export RINGFENCE_URLS
RINGFENCE_URLS=$(url 1),$(url 2),$(url 3)
mkdir -p 0/var/backups
for id in 0 1 2 3 4 5 8 9; do mkdir -p $id/var/lib/ringfence $id/var/backups $id/etc/default $id/etc/ringfence; done
if [ -n "$SECURED" ]; then
  ringfence cert authorities --dir certificates > /dev/null
  cp certificates/authority.pem 0/etc/ringfence
  CREDENTIAL=$(ringfence access credential --file 0/etc/ringfence/operator.credential > digest; cat 0/etc/ringfence/operator.credential)
  printf '[principals.operator]\ncredentials = ["%s"]\nallow = [{ keys = "*", may = ["acquire", "read", "revoke"] }]\ncluster = ["metrics", "operate"]\n' \
    "$(cat digest)" > access.toml
  export RINGFENCE_AUTHORITY=$R/0/etc/ringfence/authority.pem RINGFENCE_CREDENTIAL=$CREDENTIAL
fi
for id in 1 2 3; do
  printf 'RINGFENCE_%s\n' ID=$id DATA="$R/$id/var/lib/ringfence" HTTP="$HOST:742$id" PEER="$HOST:752$id" \
    PEERS="1=$HOST:7521,2=$HOST:7522,3=$HOST:7523" > $id/etc/default/ringfence
  secure $id
  on $id systemctl start ringfence
done
votes 1 2 3
