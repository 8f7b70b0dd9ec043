#!/bin/sh
# Sets kernel parameters and registry mirrors of a node, looks again every minute, and reports what could not be set.
#
# It undoes nothing: a parameter that is no longer wanted keeps its value until the node restarts, as what runs there may
# rely on it by now. Of the mirrors it replaces and removes only files that it has written.
#
# ROOT, SETTINGS, STATUS, MOUNTS and ONCE are for tests.
set -u
root=${ROOT:-/host}
settings=${SETTINGS:-/settings}
status=${STATUS:-/status}
mounts=${MOUNTS:-/proc/self/mountinfo}
marker='# Written by fleetwright: changes are lost.'
said=nothing

report() { printf '%s\n' "${NODE_NAME:+$NODE_NAME: }$*" >>"$status/new"; }

# squash makes one blank of several, and none at the ends: the kernel writes tabs where people write spaces.
squash() (
  set -f # a * is no file
  # shellcheck disable=SC2086
  set -- $1
  printf '%s' "$*"
)

# parameter KEY VALUE: as in sysctl.d(5), dots are slashes unless the first separator is a slash.
parameter() {
  rest=${1#"${1%%[./]*}"}
  case $rest in
  .*) path=$(printf '%s' "$1" | tr './' '/.') ;;
  *) path=$1 ;;
  esac
  file=$root/proc/sys/$path
  if [ ! -f "$file" ]; then
    report "$1: this kernel has no such parameter"
    return
  fi
  have=$(cat "$file" 2>/dev/null)
  [ "$(squash "$have")" = "$(squash "$2")" ] && return
  { printf '%s\n' "$2" >"$file"; } 2>/dev/null
  have=$(cat "$file" 2>/dev/null)
  [ "$(squash "$have")" = "$(squash "$2")" ] || report "$1: is $have and could not be set to $2"
}

parameters() {
  [ -f "$settings/parameters" ] || return
  while IFS= read -r line || [ -n "$line" ]; do
    [ -n "$line" ] && parameter "${line%% *}" "${line#* }"
  done <"$settings/parameters"
}

runtime() {
  [ -f "$settings/runtime" ] || return
  config=$root/etc/containerd/config.toml
  # containerd keeps what it mounts into every Pod in a folder of its plugin's name, wherever its configuration is.
  if [ ! -f "$config" ] && ! grep -qs 'io\.containerd\.' "$mounts"; then
    report "containerd: it does not seem to be the runtime of this node"
  fi
  wanted=' '
  certs=$root/etc/containerd/certs.d
  for mirror in "$settings"/mirror-*; do
    [ -f "$mirror" ] || continue
    registry=$(head -n 1 "$mirror")
    wanted="$wanted$registry "
    hosts=$certs/$registry/hosts.toml
    if [ -L "$hosts" ] || { [ -e "$hosts" ] && [ "$(head -n 1 "$hosts" 2>/dev/null)" != "$marker" ]; }; then
      report "mirror of $registry: $registry/hosts.toml is somebody else's and was left alone"
      continue
    fi
    text=$(printf '%s\n' "$marker" && tail -n +2 "$mirror")
    [ -f "$hosts" ] && [ "$(cat "$hosts")" = "$text" ] && continue
    # Renamed into place: containerd never reads half a file.
    if ! { mkdir -p "$certs/$registry" && printf '%s\n' "$text" >"$hosts.new" && mv -f "$hosts.new" "$hosts"; } 2>/dev/null; then
      report "mirror of $registry: hosts.toml could not be written"
    fi
  done
  if [ "$wanted" != ' ' ] && ! grep -qs '^[[:space:]]*config_path.*/etc/containerd/certs\.d' "$config" "$root"/etc/containerd/conf.d/*.toml; then
    report "containerd: config.toml has no config_path of /etc/containerd/certs.d: mirrors have no effect"
  fi
  for hosts in "$certs"/*/hosts.toml; do
    [ ! -L "$hosts" ] && [ -f "$hosts" ] && [ "$(head -n 1 "$hosts")" = "$marker" ] || continue
    registry=$(basename "$(dirname "$hosts")")
    case $wanted in
    *" $registry "*) continue ;;
    esac
    if rm -f "$hosts" 2>/dev/null; then
      rmdir "${hosts%/*}" 2>/dev/null # certificates may be beside it
    else
      report "mirror of $registry: hosts.toml could not be removed"
    fi
  done
}

trap 'exit 0' TERM INT
while :; do
  : >"$status/new"
  parameters
  runtime
  mv -f "$status/new" "$status/problems" # the readiness probe never reads half of it
  problems=$(cat "$status/problems")
  if [ -z "$problems" ]; then
    : >"$status/ok"
  else
    rm -f "$status/ok"
  fi
  if [ "$problems" != "$said" ]; then
    said=$problems
    printf '%s\n' "${problems:-everything is as declared}"
  fi
  [ -n "${ONCE:-}" ] && exit 0
  sleep 60 &
  wait $!
done
