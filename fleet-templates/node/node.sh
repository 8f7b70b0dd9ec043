#!/bin/sh
# Sets kernel parameters and registry mirrors of a node, looks again every minute, and reports what could not be set.
#
# It undoes nothing: a parameter that is no longer wanted keeps its value until the node restarts, as what runs there may
# rely on it by now. Of the mirrors it replaces and removes only files that it has written.
#
# ROOT, SETTINGS, STATUS and ONCE are for tests.
set -u
root=${ROOT:-/host}
settings=${SETTINGS:-/settings}
status=${STATUS:-/status}
marker='# Written by fleetwright: changes are lost.'
said=

report() { printf '%s\n' "$*" >>"$status/new"; }

# squash makes one blank of several: the kernel writes tabs where people write spaces.
squash() { printf '%s' "$1" | tr -s ' \t\n' '   '; }

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
  while IFS= read -r line; do
    [ -n "$line" ] && parameter "${line%% *}" "${line#* }"
  done <"$settings/parameters"
}

runtime() {
  [ -f "$settings/runtime" ] || return
  config=$root/etc/containerd/config.toml
  if [ ! -f "$config" ]; then
    report "containerd: there is no /etc/containerd/config.toml: it may not be the runtime of this node"
  fi
  [ -d "$settings" ] || return
  wanted=' '
  certs=$root/etc/containerd/certs.d
  for mirror in "$settings"/mirror-*; do
    [ -f "$mirror" ] || continue
    registry=$(head -n 1 "$mirror")
    wanted="$wanted$registry "
    hosts=$certs/$registry/hosts.toml
    if [ -f "$hosts" ] && [ "$(head -n 1 "$hosts")" != "$marker" ]; then
      report "mirror of $registry: $registry/hosts.toml is somebody else's and was left alone"
      continue
    fi
    text=$(printf '%s\n' "$marker" && tail -n +2 "$mirror")
    [ -f "$hosts" ] && [ "$(cat "$hosts")" = "$text" ] && continue
    # Renamed into place: containerd never reads half a file.
    if ! { mkdir -p "$certs/$registry" && printf '%s\n' "$text" >"$hosts.new" && mv "$hosts.new" "$hosts"; } 2>/dev/null; then
      report "mirror of $registry: hosts.toml could not be written"
    fi
  done
  if [ "$wanted" != ' ' ] && ! grep -q 'config_path.*certs\.d' "$config" 2>/dev/null; then
    report "containerd: config.toml has no config_path of /etc/containerd/certs.d: mirrors have no effect"
  fi
  for hosts in "$certs"/*/hosts.toml; do
    [ -f "$hosts" ] && [ "$(head -n 1 "$hosts")" = "$marker" ] || continue
    registry=$(basename "$(dirname "$hosts")")
    case $wanted in
    *" $registry "*) ;;
    *) rm -f "$hosts" ;;
    esac
  done
}

trap 'exit 0' TERM INT
while :; do
  : >"$status/new"
  parameters
  runtime
  problems=$(cat "$status/new")
  if [ -z "$problems" ]; then
    : >"$status/ok"
  else
    rm -f "$status/ok"
  fi
  if [ "$problems" != "$said" ]; then
    said=$problems
    printf '%s\n' "${problems:-everything is as declared}"
    { printf '%s\n' "$problems" >/dev/termination-log; } 2>/dev/null
  fi
  [ -n "${ONCE:-}" ] && exit 0
  sleep 60 &
  wait $!
done
