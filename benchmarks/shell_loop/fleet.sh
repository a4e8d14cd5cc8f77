#!/bin/bash
# `until python train.py; do :; done` on all hosts of a fleet; when one dies, all are killed and started again at once.
# That is the best a shell can do: no host waits for another to notice, and a lost one is replaced in no time.
#
#     fleet.sh FOLDER COMMAND...      FOLDER/hosts has the number of hosts, read anew before each start
folder=$1
shift
running=()
trap 'kill -9 "${running[@]}" 2>/dev/null' EXIT
trap exit INT TERM
for ((launch = 1; ; launch++)); do
  hosts=$(<"$folder/hosts") running=()
  for ((host = 0; host < hosts; host++)); do
    "$@" --launch $launch --hosts "$hosts" --host $host >>"$folder/host-$host.log" 2>&1 &
    running+=($!)
  done
  for ((left = hosts; left > 0; left--)); do wait -n || break; done
  ((left == 0)) && exit
  echo "$launch died $EPOCHREALTIME" >>"$folder/fleet.log"
  kill -9 "${running[@]}" 2>/dev/null
  wait
  echo "$launch gone $EPOCHREALTIME" >>"$folder/fleet.log"
done
