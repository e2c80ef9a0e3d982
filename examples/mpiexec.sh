#!/bin/sh
# usage: mpiexec.sh HOSTFILE SRC DST
# HOSTFILE has one line with a host's name for each rank to run on that host.
exec mpiexec -machinefile "$1" pcopy --checkpoint "$HOME/move.job" --verify --errors failed.jsonl "$2" "$3"
