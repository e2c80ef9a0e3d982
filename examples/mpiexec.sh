#!/bin/sh
# usage: mpiexec.sh HOSTFILE SRC DST
# Copies SRC to DST with many ranks. For each rank, HOSTFILE has one line with the name of the host on which it runs.
exec mpiexec -machinefile "$1" pcopy --checkpoint "$HOME/move.job" --verify --errors failed.jsonl "$2" "$3"
